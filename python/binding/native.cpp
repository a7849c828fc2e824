#include "native.h"

#include <torch/csrc/utils/pybind.h>

#include <sstream>

#include "invattn/core/error.h"
#include "invattn/io/printable.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/detector.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/rebindable.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "python_branch.h"

namespace invattn::python {
namespace {

template <class T>
bool is(const torch::nn::Module& module) {
  return dynamic_cast<const T*>(&module) != nullptr;
}

}  // namespace

std::string Native::kind() const {
  if (is<AttentionImpl>(*module_)) return "attention";
  if (is<ConvolutionImpl>(*module_)) return "convolution";
  if (is<PythonBranch>(*module_)) return "python";
  if (is<InvertibleResidualImpl>(*module_)) return "residual";
  if (is<SequentialImpl>(*module_)) return "sequential";
  if (is<SqueezeImpl>(*module_)) return "squeeze";
  if (is<ActNormImpl>(*module_)) return "actnorm";
  if (is<FlowImpl>(*module_)) return "flow";
  if (is<DetectorImpl>(*module_)) return "detector";
  return "part";
}

py::object Native::options() const {
  if (const auto* attention = dynamic_cast<const AttentionImpl*>(module_.get())) return py::cast(attention->options());
  if (const auto* convolution = dynamic_cast<const ConvolutionImpl*>(module_.get())) return py::cast(convolution->options());
  if (const auto* squeeze = dynamic_cast<const SqueezeImpl*>(module_.get())) return py::cast(squeeze->options());
  if (const auto* actnorm = dynamic_cast<const ActNormImpl*>(module_.get())) return py::cast(actnorm->options());
  if (const auto* flow = dynamic_cast<const FlowImpl*>(module_.get())) return py::cast(flow->options());
  if (const auto* detector = dynamic_cast<const DetectorImpl*>(module_.get())) return py::cast(detector->options());
  return py::none();
}

std::string Native::describe() const {
  if (const auto* bijection = dynamic_cast<const BijectionImpl*>(module_.get())) return bijection->describe();
  if (const auto* branch = dynamic_cast<const BranchImpl*>(module_.get())) return branch->describe();
  return as<DetectorImpl>("describe").describe();
}

std::string Native::text() const {
  std::ostringstream text;
  module_->pretty_print(text);
  return text.str();
}

std::vector<std::pair<std::string, Native>> Native::children() const {
  std::vector<std::pair<std::string, Native>> result;
  for (const auto& item : module_->named_children()) result.emplace_back(item.key(), Native(item.value()));
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> Native::parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& item : module_->named_parameters(/*recurse=*/false)) result.emplace_back(item.key(), item.value());
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> Native::buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& item : module_->named_buffers(/*recurse=*/false)) result.emplace_back(item.key(), item.value());
  return result;
}

void Native::rebind(const std::string& name, const at::Tensor& tensor) const { invattn::rebind(*module_, name, tensor); }

void Native::share_buffer(const std::string& name, const at::Tensor& tensor) const {
  for (auto& item : module_->named_buffers(/*recurse=*/false)) {
    if (item.key() != name) continue;
    require(tensor.sizes() == item.value().sizes(), "rebind", "expected a buffer ", in_quotes(name), " of shape ", item.value().sizes(),
            ", got ", tensor.sizes(), ". Correct it.");
    item.value().set_data(tensor);
    return;
  }
  fail(ErrorKind::kUsage, "rebind", "expected the name of a buffer, got ", in_quotes(name), ". named_buffers() lists them.");
}

void Native::refuse(const char* what) const {
  fail(ErrorKind::kUsage, "invattn", "expected ", what, ", got a module of the kind '", kind(), "'. Use one that fits.");
}

}  // namespace invattn::python

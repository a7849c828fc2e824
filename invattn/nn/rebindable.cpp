#include "invattn/nn/rebindable.h"

#include <cstddef>
#include <memory>

#include "invattn/core/error.h"

namespace invattn {

void RebindableModule::rebind(const std::string& name, const at::Tensor& tensor) {
  at::Tensor* parameter = parameters_.find(name);
  require(parameter != nullptr, "rebind", "expected the name of a parameter, got '", name, "'. named_parameters() lists them.");
  require(tensor.defined(), "rebind", "expected a tensor ", parameter->sizes(), " in the place of '", name, "', got an undefined one.");
  require(tensor.sizes() == parameter->sizes() && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble), "rebind",
          "expected a tensor ", parameter->sizes(), " of float32 or float64 in the place of '", name, "', got ", tensor.sizes(), " of ",
          tensor.scalar_type(), ". Correct or convert it.");
  rebound(name, tensor);
  *parameter = tensor;
}

void RebindableModule::rebound(const std::string& name, const at::Tensor& /*tensor*/) {
  fail(ErrorKind::kUsage, "rebind", "expected a module whose parameters may be replaced, got one that keeps '", name,
       "' to itself. Override rebound().");
}

void rebind(torch::nn::Module& root, const std::string& name, const at::Tensor& tensor) {
  std::shared_ptr<torch::nn::Module> child;
  torch::nn::Module* module = &root;
  std::size_t begin = 0;
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    const auto children = module->named_children();
    const auto* found = children.find(name.substr(begin, dot - begin));
    require(found != nullptr, "rebind", "expected the name of a parameter, got '", name, "'. named_parameters() lists them.");
    child = *found;
    module = child.get();
    begin = dot + 1;
  }
  auto* owner = dynamic_cast<RebindableModule*>(module);
  require(owner != nullptr, "rebind", "expected a parameter that may be replaced, got '", name, "'.");
  owner->rebind(name.substr(begin), tensor);
}

}  // namespace invattn

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <optional>
#include <tuple>

#include "bindings.h"
#include "interrupt.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/detector.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "native.h"
#include "python_branch.h"

namespace invattn::python {
namespace {

using WithoutGil = py::call_guard<py::gil_scoped_release>;

/// g of a block or of a branch by itself.
BranchImpl& branch_of(const Native& native) {
  if (auto* block = dynamic_cast<InvertibleResidualImpl*>(&native.module())) return block->branch();
  return native.as<BranchImpl>("a residual block or a branch");
}

at::Tensor forward(const Native& native, const at::Tensor& x, const std::optional<Given>& given = std::nullopt) {
  if (auto* bijection = dynamic_cast<BijectionImpl*>(&native.module())) return bijection->forward(x, given.value_or(Given()));
  if (auto* branch = dynamic_cast<BranchImpl*>(&native.module())) return branch_value(*branch, x, given.value_or(Given()));
  return native.as<DetectorImpl>("a module with a forward pass").forward(x);
}

void bind_construction(py::class_<Native>& native) {
  native.def_static("attention", [](const AttentionOptions& options) { return Native(std::make_shared<AttentionImpl>(options)); });
  native.def_static("convolution", [](const ConvolutionOptions& options) { return Native(std::make_shared<ConvolutionImpl>(options)); });
  native.def_static("actnorm", [](const ActNormOptions& options) { return Native(std::make_shared<ActNormImpl>(options)); });
  native.def_static("squeeze", [](const SqueezeOptions& options) { return Native(std::make_shared<SqueezeImpl>(options)); });
  native.def_static(
      "flow", [](const FlowOptions& options) { return Native(std::make_shared<FlowImpl>(options)); }, WithoutGil());
  native.def_static(
      "detector", [](const DetectorOptions& options) { return Native(std::make_shared<DetectorImpl>(options)); }, WithoutGil());
  native.def_static("python_branch", [](py::object module, const std::string& policy, double constant, const at::Tensor& scale) {
    return Native(std::make_shared<PythonBranch>(std::move(module), parse_name<Policy>(policy, "InvertibleResidual"), constant, scale));
  });
  native.def_static("residual", [](const Native& branch) {
    return Native(std::make_shared<InvertibleResidualImpl>(branch.shared_as<BranchImpl>("a branch")));
  });
  native.def_static("sequential", [](const std::vector<Native>& parts) {
    auto result = std::make_shared<SequentialImpl>();
    for (const Native& part : parts) result->push_back(part.shared_as<BijectionImpl>("a bijection"));
    return Native(result);
  });
}

void bind_tree(py::class_<Native>& native) {
  native.def_property_readonly("kind", &Native::kind)
      .def_property_readonly("options", &Native::options)
      .def("describe", &Native::describe)
      .def("text", &Native::text)
      .def("same_as", &Native::same_as)
      .def("children", &Native::children)
      .def("parameters", &Native::parameters)
      .def("buffers", &Native::buffers)
      .def("rebind", &Native::rebind)
      .def("share_buffer", &Native::share_buffer)
      .def("train", &Native::train)
      .def("refresh", [](const Native& self, const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
        self.as<PythonBranch>("a branch written in Python").refresh(parameters);
      });
}

void bind_maps(py::class_<Native>& native) {
  native.def("forward", &forward, py::arg("x"), py::arg("given") = py::none(), WithoutGil())
      .def(
          "forward_log_det",
          [](const Native& self, const at::Tensor& x, const LogDetOptions& options, const std::optional<Given>& given) {
            return self.as<BijectionImpl>("a bijection").forward_log_det(x, options, given.value_or(Given()));
          },
          py::arg("x"), py::arg("options"), py::arg("given") = py::none(), WithoutGil())
      .def(
          "inverse",
          [](const Native& self, const at::Tensor& y, const SolverOptions& options, const std::optional<Given>& given) {
            auto& bijection = self.as<BijectionImpl>("a bijection");
            auto solution = interruptible([&] { return bijection.inverse(y, options, given.value_or(Given())); });
            return std::make_pair(std::move(solution.x), std::move(solution.report));
          },
          py::arg("y"), py::arg("options"), py::arg("given") = py::none())
      .def(
          "project",
          [](const Native& self) {
            if (auto* branch = dynamic_cast<BranchImpl*>(&self.module())) return branch->project();
            self.as<BijectionImpl>("a bijection").project();
          },
          WithoutGil())
      .def(
          "log_prob",
          [](const Native& self, const at::Tensor& x, const LogDetOptions& options) {
            return self.as<FlowImpl>("a flow").log_prob(x, options);
          },
          WithoutGil())
      .def("sample",
           [](const Native& self, int64_t count, double temperature, int64_t seed, const SolverOptions& options) {
             auto& flow = self.as<FlowImpl>("a flow");
             auto solution = interruptible([&] { return flow.sample(count, temperature, seed, options); });
             return std::make_pair(std::move(solution.x), std::move(solution.report));
           })
      .def("draw_latents", [](const Native& self, int64_t count, double temperature,
                              int64_t seed) { return self.as<FlowImpl>("a flow").draw_latents(count, temperature, seed); })
      .def(
          "response",
          [](const Native& self, const at::Tensor& x, int64_t factor) { return self.as<AttentionImpl>("attention").response(x, factor); },
          WithoutGil())
      .def(
          "local_constants",
          [](const Native& self, const at::Tensor& x, const LocalConstantOptions& options, const std::optional<Given>& given) {
            const at::NoGradGuard no_grad;
            return local_constants(*branch_linearization(branch_of(self), x.detach(), given.value_or(Given())), x.detach(), options);
          },
          py::arg("x"), py::arg("options"), py::arg("given") = py::none(), WithoutGil());
}

void bind_promises(py::class_<Native>& native) {
  native
      .def("certificates",
           [](const Native& self) {
             std::vector<std::tuple<std::string, Certificate, bool>> result;
             for (const StoredBlock& block : certificates_of(self.module())) {
               result.emplace_back(block.name, block.certificate, block.current);
             }
             return result;
           })
      .def("certificate", [](const Native& self) { return self.as<InvertibleResidualImpl>("a residual block").certificate(); })
      .def("measured", [](const Native& self) { return self.as<InvertibleResidualImpl>("a residual block").measured(); })
      .def("restore", [](const Native& self,
                         const Certificate& certificate) { self.as<InvertibleResidualImpl>("a residual block").restore(certificate); })
      .def("bound", [](const Native& self, int64_t positions) {
        return self.as<AttentionImpl>("attention").bound(positions).total().item<double>();
      });
}

/// For the benchmark of what a call from Python costs on top.
double seconds_per_call(const Native& native, const at::Tensor& x, int64_t calls) {
  const auto started = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) forward(native, x);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count() / static_cast<double>(calls);
}

}  // namespace

void bind_modules(py::module_& m) {
  py::class_<Given>(m, "Given", "What is known of a batch beside x.")
      .def(py::init([](const at::Tensor& mask) { return Given{mask}; }), py::arg("mask"))
      .def_static("of_lengths", &Given::of_lengths, py::arg("lengths"), py::arg("positions"))
      .def_readonly("mask", &Given::mask, "(B, N): which positions are real.");
  py::class_<Native> native(m, "Native", "A module of the library, with the weights that the package's modules give it.");
  bind_construction(native);
  bind_tree(native);
  bind_maps(native);
  bind_promises(native);
  native.def("seconds_per_call", &seconds_per_call, WithoutGil());
}

}  // namespace invattn::python

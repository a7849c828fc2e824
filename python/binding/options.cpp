#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "invattn/lipschitz/certificate.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/logdet/options.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/detector.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/squeeze.h"
#include "invattn/solver/options.h"
#include "option_values.h"

namespace invattn::python {

void bind_option_classes(py::module_& m) {
  bind_options<LocalConstantOptions>(m, "LocalConstantOptions", "How local Lipschitz constants are measured.");
  bind_options<AttentionOptions>(m, "AttentionOptions", "What an attention branch is.");
  bind_options<ConvolutionOptions>(m, "ConvolutionOptions", "What a convolution branch is.");
  bind_options<ActNormOptions>(m, "ActNormOptions", "What an ActNorm is.");
  bind_options<SqueezeOptions>(m, "SqueezeOptions", "What a Squeeze is.");
  bind_options<FlowOptions>(m, "FlowOptions", "What a Flow is. The defaults are the paper's network for CIFAR-10.");
  bind_options<ResNetOptions>(m, "ResNetOptions", "The backbone of a Detector.");
  bind_options<DetectorOptions>(m, "DetectorOptions", "What a Detector is. The defaults are the paper's network.");
  bind_options<GuardOptions>(m, "GuardOptions", "How a Guard works.");
  bind_options<FixedPointOptions>(m, "FixedPointOptions", "The paper's algorithm, x <- y - g(x).");
  bind_options<AndersonOptions>(m, "AndersonOptions", "Anderson acceleration of the fixed point, the default.");
  bind_options<NewtonKrylovOptions>(m, "NewtonKrylovOptions", "Newton's method with GMRES.");
  bind_options<SeriesLogDet>(m, "SeriesLogDet", "The truncated power series of a log-determinant: cheap and biased.");
  bind_options<RouletteLogDet>(m, "RouletteLogDet", "The unbiased series of a log-determinant.");
  bind_options<ExactLogDet>(m, "ExactLogDet", "The log-determinant of the full Jacobian, for small sizes.");
  bind_options<Certificate>(m, "Certificate", "What is promised of one residual branch.")
      .def_property_readonly("contraction", &Certificate::contraction, "Whether the branch is certified a contraction.")
      .def("text", &Certificate::text, "One line for people.")
      .def("__str__", &Certificate::text);

  m.def(
      "attention_preset",
      [](const std::string& preset, const std::string& kind, int64_t channels) {
        return attention_preset(parse_name<AttentionPreset>(preset, "attention_preset"),
                                parse_name<AttentionKind>(kind, "attention_preset"), channels);
      },
      py::arg("preset"), py::arg("kind"), py::arg("channels"), "Options with a name: plain, paper, published-code, guarded or strict.");
  m.def(
      "flow_preset", [](const std::string& preset) { return flow_preset(parse_name<FlowPreset>(preset, "flow_preset")); },
      py::arg("preset"), "Options with a name: paper, improved, plane or residual-flow.");
  m.def(
      "solver_options_named",
      [](const std::string& name) { return std::visit([](const auto& chosen) { return py::cast(chosen); }, solver_options_named(name)); },
      py::arg("name"));
  m.def(
      "log_det_options_named",
      [](const std::string& name) -> py::object {
        if (name == "series") return py::cast(SeriesLogDet{});
        if (name == "roulette") return py::cast(RouletteLogDet{});
        if (name == "exact") return py::cast(ExactLogDet{});
        fail(ErrorKind::kUsage, "log_det", "expected the estimator ", list_names(name, {"series", "roulette", "exact"}), ", got '", name,
             "'. Correct it.");
      },
      py::arg("name"));
}

}  // namespace invattn::python

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "interrupt.h"
#include "invattn/core/names.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/safetensors.h"
#include "invattn/metrics/bits_per_dimension.h"
#include "invattn/metrics/image_quality.h"
#include "invattn/metrics/segmentation.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/detector.h"
#include "invattn/ops/kernels.h"
#include "invattn/ops/linearization.h"
#include "invattn/solver/solve.h"
#include "native.h"

namespace invattn::python {
namespace {

using WithoutGil = py::call_guard<py::gil_scoped_release>;

/// Of a model of any kind that the library writes.
Native load_any(const std::string& path) {
  return Native(load_model(path, [](const std::string& description) -> std::shared_ptr<torch::nn::Module> {
    const auto json = parse_json(description, "load");
    const bool detector = json.is_object() && json.value("type", "") == "detector";
    if (detector) return make_detector(description).ptr();
    return make_bijection(description);
  }));
}

void save_any(const std::string& path, const Native& native) {
  if (auto* detector = dynamic_cast<DetectorImpl*>(&native.module())) return save_detector(path, *detector);
  save(path, native.as<BijectionImpl>("a bijection or a detector"));
}

/// Solves x + g(x) = y for a function g of Python's.
std::pair<at::Tensor, InverseReport> solve_function(const py::function& g, const at::Tensor& y, const SolverOptions& options) {
  const TensorMap map = [&g](const at::Tensor& x) {
    const py::gil_scoped_acquire gil;
    return py::cast<at::Tensor>(g(x));
  };
  const ResidualProblem problem{map, [&map](const at::Tensor& x) {
                                  const std::shared_ptr<Linearization> at_x = autograd_linearization(map, x);
                                  return [at_x](const at::Tensor& v) { return at_x->jvp(v); };
                                }};
  auto solution = interruptible([&] {
    const at::NoGradGuard no_grad;
    return solve(problem, y, options);
  });
  return {std::move(solution.x), std::move(solution.report)};
}

void bind_metrics(py::module_& m) {
  m.def("mean_squared_errors", &mean_squared_errors, py::arg("images"), py::arg("references"), WithoutGil());
  m.def("structural_similarities", &structural_similarities, py::arg("images"), py::arg("references"), WithoutGil());
  m.def("valid_score", &valid_score, py::arg("mean_squared_errors"), py::arg("limit") = 10.0);
  m.def("bits_per_dimension", &bits_per_dimension, py::arg("log_prob"), py::arg("dimensions"), py::arg("levels") = 1.0);
  m.def("segmentation_scores", &segmentation_scores, py::arg("prediction"), py::arg("truth"), WithoutGil());
  m.def(
      "mean_scores", [](const std::vector<SegmentationScores>& images) { return mean_scores(images); }, py::arg("images"));
  py::class_<SegmentationScores>(m, "SegmentationScores", "How well a grey map finds objects. Higher is better but for `mae`.")
      .def_readonly("mae", &SegmentationScores::mae, "Mean absolute error.")
      .def_readonly("s_measure", &SegmentationScores::s_measure, "Structure measure, alpha 0.5.")
      .def_readonly("weighted_f", &SegmentationScores::weighted_f, "Weighted F-measure.")
      .def_readonly("adaptive_f", &SegmentationScores::adaptive_f, "F-measure at twice the mean of the prediction.")
      .def_readonly("adaptive_e", &SegmentationScores::adaptive_e, "Enhanced-alignment measure at the same threshold.")
      .def_readonly("f", &SegmentationScores::f, "F-measure per threshold 0..255.")
      .def_readonly("e", &SegmentationScores::e, "Enhanced-alignment measure per threshold.")
      .def_readonly("precision", &SegmentationScores::precision)
      .def_readonly("recall", &SegmentationScores::recall)
      .def_property_readonly("mean_f", &SegmentationScores::mean_f)
      .def_property_readonly("max_f", &SegmentationScores::max_f)
      .def_property_readonly("mean_e", &SegmentationScores::mean_e)
      .def_property_readonly("max_e", &SegmentationScores::max_e);
}

}  // namespace

void bind_functions(py::module_& m) {
  m.def("load", &load_any, py::arg("path"), WithoutGil());
  m.def("save", &save_any, py::arg("path"), py::arg("native"), WithoutGil());
  m.def("solve", &solve_function, py::arg("g"), py::arg("y"), py::arg("options"));
  m.def(
      "use_kernels", [](const std::string& choice) { use_kernels(parse_name<Kernels>(choice, "use_kernels")); }, py::arg("choice"),
      "auto, reference (plain ATen operations) or fast, for the whole process.");
  m.def("chosen_kernels", [] { return std::string(to_string(chosen_kernels())); });
  m.def("kernel_instruction_set", [] { return std::string(kernel_instruction_set()); });
  bind_metrics(m);
}

}  // namespace invattn::python

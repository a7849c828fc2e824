#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/logdet/log_det.h"
#include "invattn/nn/bijection.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/sequential.h"
#include "invattn/solver/report.h"

namespace invattn::python {
namespace {

void bind_inverse_report(py::module_& m) {
  py::class_<InverseReport>(m, "InverseReport", "What an inverse did and whether to believe it. `print(report)` shows all of it.")
      .def_readonly("method", &InverseReport::method, "Of the solver; of a chain those that had something to solve.")
      .def_readonly("options", &InverseReport::options, "The options used.")
      .def_readonly("tolerance", &InverseReport::tolerance, "Of the stopping rule; of a chain the largest.")
      .def_readonly("residual", &InverseReport::residual, "(B) float64: rms(x + g(x) - y) / (1 + rms(y)) of what was returned.")
      .def_readonly("iterations", &InverseReport::iterations, "(B) int64: steps until the sample stopped.")
      .def_property_readonly(
          "statuses",
          [](const InverseReport& self) {
            std::vector<std::string> names;
            for (const SampleStatus status : self.statuses) names.emplace_back(to_string(status));
            return names;
          },
          "exact, converged, not converged, stagnated, diverged or not finite, per sample.")
      .def_readonly("evaluations", &InverseReport::evaluations, "Calls of g or of v -> J v.")
      .def_readonly("sample_evaluations", &InverseReport::sample_evaluations, "The same, each counted with its samples.")
      .def_readonly("seconds", &InverseReport::seconds, "Wall clock.")
      .def_readonly("trace", &InverseReport::trace, "On request: (B) residuals at the start and after every step.")
      .def_readonly("notes", &InverseReport::notes, "What a reader should know besides.")
      .def_readonly("parts", &InverseReport::parts, "Of a chain: the reports of its parts, in the order in which they were inverted.")
      .def_property_readonly("usable", &InverseReport::usable, "Something was inverted, and every sample converged or is exact.")
      .def_property_readonly("converged_count", &InverseReport::converged_count, "Samples that converged or are exact.")
      .def_property_readonly("largest_residual", &InverseReport::largest_residual)
      .def_property_readonly("most_iterations", &InverseReport::most_iterations)
      .def_property_readonly("worst_sample", &InverseReport::worst_sample, "The one with the worst status, then the largest residual.")
      .def("brief", &InverseReport::brief, "One line; a failure comes first.")
      .def("full", &InverseReport::full, "Several lines: counts, quantiles, the worst samples, notes and parts.")
      .def_static("combine", &InverseReport::combine, py::arg("reports"), "Of a chain of inverses over the same samples.")
      .def_static("exact", &InverseReport::exact, py::arg("batch"), py::arg("method"), "Of a map with a closed inverse.")
      .def("__len__", &InverseReport::batch)
      .def("__repr__", [](const InverseReport& self) { return "<InverseReport " + self.brief() + ">"; })
      .def("__str__", &InverseReport::full);
}

}  // namespace

void bind_reports(py::module_& m) {
  bind_inverse_report(m);
  py::class_<LogDet>(m, "LogDet", "log|det dy/dx| of each sample, in nats.")
      .def_readonly("value", &LogDet::value, "(B), with its graph where gradients are on.")
      .def_readonly("standard_error", &LogDet::standard_error, "(B): of the estimate; 0 where exact, NaN where one probe gives none.")
      .def_readonly("sign", &LogDet::sign, "(B): of the determinant where exact, NaN where an estimator did not look.")
      .def_readonly("exact", &LogDet::exact, "Samples, over all blocks, that a roulette did not cover and that were computed exactly.")
      .def("__repr__",
           [](const LogDet& self) { return "<LogDet of " + std::to_string(self.value.defined() ? self.value.size(0) : 0) + " samples>"; });
  m.def("chained", &chained, py::arg("parts"), "The log-determinant of a chain, from those of its parts.");
  m.def("log_det_options_for_part", &options_for_part, py::arg("options"), py::arg("index"),
        "With a seed of its own where there is one: what a part of a chain is given.");
  m.def(
      "no_log_det", [](const at::Tensor& zeros, const LogDetOptions& options) { return exact_log_det(zeros, options); }, py::arg("zeros"),
      py::arg("options"), "The log-determinant of a map that has the value given, in closed form.");
  py::class_<LogProb>(m, "LogProb", "log p(x) of each sample, in nats.")
      .def_readonly("value", &LogProb::value, "(B), with its graph where gradients are on.")
      .def_readonly("standard_error", &LogProb::standard_error, "(B): of the log-determinant's estimate.")
      .def_readonly("exact", &LogProb::exact, "As LogDet's.");
  py::class_<LocalConstants>(m, "LocalConstants", "The local Lipschitz constant of a branch at each sample.")
      .def_readonly("constants", &LocalConstants::constants, "(B) float64, on the CPU.")
      .def_readonly("vectors", &LocalConstants::vectors, "The last right singular vectors.")
      .def_readonly("iterations", &LocalConstants::iterations)
      .def_readonly("converged", &LocalConstants::converged, "All samples met the tolerance.")
      .def_property_readonly("largest", &LocalConstants::largest)
      .def_property_readonly("mean", &LocalConstants::mean)
      .def("brief", &LocalConstants::brief)
      .def("__repr__", [](const LocalConstants& self) { return "<" + self.brief() + ">"; });
}

}  // namespace invattn::python

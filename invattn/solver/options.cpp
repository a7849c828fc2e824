#include "invattn/solver/options.h"

#include <cmath>
#include <string>
#include <vector>

#include "invattn/core/field_error.h"

namespace invattn {
namespace {

template <class Options>
void validate_common(const Options& options) {
  require_field(std::isfinite(options.tolerance) && options.tolerance > 0, Options::kName, "tolerance", "expected tolerance > 0, got ",
                options.tolerance, ". Rounding allows about 1e-7 in float32 and 1e-15 in float64.");
  require_field(options.max_iterations >= 1, Options::kName, "max_iterations", "expected max_iterations >= 1, got ", options.max_iterations,
                ". The default is ", Options{}.max_iterations, ".");
}

}  // namespace

void FixedPointOptions::validate() const { validate_common(*this); }

void AndersonOptions::validate() const {
  validate_common(*this);
  require_field(memory >= 1, kName, "memory", "expected memory >= 1, got ", memory,
                ". Use the method fixed-point for steps without memory.");
  require_field(mixing > 0 && mixing <= 1, kName, "mixing", "expected mixing in (0, 1], got ", mixing,
                ". The default 1 is right for contractions.");
  require_field(std::isfinite(regularization) && regularization >= 0, kName, "regularization", "expected regularization >= 0, got ",
                regularization, ". The default is ", AndersonOptions{}.regularization, ".");
}

void NewtonKrylovOptions::validate() const {
  validate_common(*this);
  require_field(krylov >= 1, kName, "krylov", "expected krylov >= 1, got ", krylov, ". The default is ", NewtonKrylovOptions{}.krylov, ".");
  require_field(forcing > 0 && forcing < 1, kName, "forcing", "expected forcing in (0, 1), got ", forcing, ". The default is ",
                NewtonKrylovOptions{}.forcing, ".");
}

std::string_view method_name(const SolverOptions& options) {
  return std::visit([](const auto& chosen) { return std::string_view(chosen.kName); }, options);
}

SolverOptions solver_options_named(std::string_view name) {
  if (name == FixedPointOptions::kName) return FixedPointOptions{};
  if (name == AndersonOptions::kName) return AndersonOptions{};
  if (name == NewtonKrylovOptions::kName) return NewtonKrylovOptions{};
  const std::vector<std::string> names{std::string(FixedPointOptions::kName), std::string(AndersonOptions::kName),
                                       std::string(NewtonKrylovOptions::kName)};
  fail(ErrorKind::kUsage, "solver", "expected a method ", list_names(name, names), ", got '", name, "'.");
}

}  // namespace invattn

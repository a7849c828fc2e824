#include "invattn/solver/options.h"

#include <cmath>
#include <string>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {
namespace {

template <class Options>
void validate_common(const Options& options) {
  require(std::isfinite(options.tolerance) && options.tolerance > 0, Options::kName, "expected tolerance > 0, got ", options.tolerance,
          ". Rounding allows about 1e-7 in float32 and 1e-15 in float64.");
  require(options.max_iterations >= 1, Options::kName, "expected max_iterations >= 1, got ", options.max_iterations, ". The default is ",
          Options{}.max_iterations, ".");
}

}  // namespace

void FixedPointOptions::validate() const { validate_common(*this); }

void AndersonOptions::validate() const {
  validate_common(*this);
  require(memory >= 1, kName, "expected memory >= 1, got ", memory, ". Use the method fixed-point for steps without memory.");
  require(mixing > 0 && mixing <= 1, kName, "expected mixing in (0, 1], got ", mixing, ". The default 1 is right for contractions.");
  require(std::isfinite(regularization) && regularization >= 0, kName, "expected regularization >= 0, got ", regularization,
          ". The default is ", AndersonOptions{}.regularization, ".");
}

void NewtonKrylovOptions::validate() const {
  validate_common(*this);
  require(krylov >= 1, kName, "expected krylov >= 1, got ", krylov, ". The default is ", NewtonKrylovOptions{}.krylov, ".");
  require(forcing > 0 && forcing < 1, kName, "expected forcing in (0, 1), got ", forcing, ". The default is ",
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

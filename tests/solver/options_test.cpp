#include "invattn/solver/options.h"

#include <gtest/gtest.h>

#include <limits>

#include "invattn/core/error.h"

namespace invattn {
namespace {

template <class Options>
std::string error_of(const Options& options) {
  try {
    options.validate();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "valid";
}

TEST(SolverOptionsTest, DefaultsAreValidAndPrintEveryField) {
  EXPECT_EQ(error_of(FixedPointOptions{}), "valid");
  EXPECT_EQ(error_of(AndersonOptions{}), "valid");
  EXPECT_EQ(error_of(NewtonKrylovOptions{}), "valid");
  EXPECT_EQ(print_fields(FixedPointOptions{}), "tolerance=1e-06, max_iterations=500, trace=false, on_failure=report");
  EXPECT_EQ(print_fields(AndersonOptions{.tolerance = 1e-5, .on_failure = OnFailure::kThrow}),
            "tolerance=1e-05, max_iterations=100, trace=false, on_failure=throw, memory=6, mixing=1, regularization=1e-10");
  EXPECT_EQ(print_fields(NewtonKrylovOptions{.trace = true}),
            "tolerance=1e-06, max_iterations=20, trace=true, on_failure=report, krylov=20, forcing=0.1");
}

TEST(SolverOptionsTest, OutOfRangeIsNamedWithItsMethod) {
  EXPECT_EQ(error_of(FixedPointOptions{.tolerance = 0}),
            "[fixed-point] expected tolerance > 0, got 0. Rounding allows about 1e-7 in float32 and 1e-15 in float64.");
  EXPECT_EQ(error_of(AndersonOptions{.memory = 0}),
            "[anderson] expected memory >= 1, got 0. Use the method fixed-point for steps without memory.");
  EXPECT_EQ(error_of(NewtonKrylovOptions{.krylov = 0}), "[newton-krylov] expected krylov >= 1, got 0. The default is 20.");
}

TEST(SolverOptionsTest, EveryFieldIsChecked) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double tolerance : {0.0, -1e-6, nan, infinity}) {
    EXPECT_NE(error_of(FixedPointOptions{.tolerance = tolerance}), "valid") << tolerance;
    EXPECT_NE(error_of(AndersonOptions{.tolerance = tolerance}), "valid") << tolerance;
    EXPECT_NE(error_of(NewtonKrylovOptions{.tolerance = tolerance}), "valid") << tolerance;
  }
  EXPECT_NE(error_of(FixedPointOptions{.max_iterations = 0}), "valid");
  EXPECT_NE(error_of(AndersonOptions{.max_iterations = -3}), "valid");
  EXPECT_NE(error_of(NewtonKrylovOptions{.max_iterations = 0}), "valid");
  for (const double mixing : {0.0, -0.5, 1.5, nan}) EXPECT_NE(error_of(AndersonOptions{.mixing = mixing}), "valid") << mixing;
  for (const double term : {-1e-10, nan, infinity}) EXPECT_NE(error_of(AndersonOptions{.regularization = term}), "valid") << term;
  EXPECT_EQ(error_of(AndersonOptions{.regularization = 0}), "valid");
  for (const double forcing : {0.0, 1.0, -0.1, nan}) EXPECT_NE(error_of(NewtonKrylovOptions{.forcing = forcing}), "valid") << forcing;
}

TEST(SolverOptionsTest, MethodsHaveNamesBothWays) {
  for (const SolverOptions& options :
       {SolverOptions(FixedPointOptions{}), SolverOptions(AndersonOptions{}), SolverOptions(NewtonKrylovOptions{})}) {
    EXPECT_EQ(solver_options_named(method_name(options)).index(), options.index());
  }
  try {
    solver_options_named("andersen");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "[solver] expected a method fixed-point, anderson or newton-krylov (did you mean anderson?), got 'andersen'.");
  }
}

}  // namespace
}  // namespace invattn

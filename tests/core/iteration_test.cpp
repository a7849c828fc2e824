#include "invattn/core/iteration.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "tests/support/residual_sequences.h"

namespace invattn {
namespace {

/// Shows a monitor a sequence, each residual as `shown` makes it.
template <class Shown>
void expect_end(const testing::ResidualSequence& sequence, const StoppingRules& rules, const Shown& shown) {
  SCOPED_TRACE(sequence.name);
  Monitor monitor;
  for (std::size_t step = 0; step < sequence.residuals.size(); ++step) {
    const bool stops = monitor.observe(shown(sequence.residuals[step]), rules);
    ASSERT_EQ(stops, step + 1 == sequence.residuals.size()) << "after " << step << " steps";
  }
  EXPECT_EQ(monitor.status, sequence.status);
  EXPECT_EQ(monitor.iteration, sequence.iterations);
}

TEST(Monitor, EndsAsTheTableSays) {
  for (const auto& sequence : testing::residual_sequences()) {
    expect_end(sequence, StoppingRules::of(sequence.rules), [](double residual) { return residual; });
  }
}

// As a device has them: sums of squares, without the number of entries taken out.
TEST(Monitor, EndsAsTheTableSaysBySquares) {
  for (const double entries : {1.0, 256.0}) {
    for (const auto& sequence : testing::residual_sequences()) {
      const auto square = [&](double residual) { return residual * residual * entries; };
      const auto rules = StoppingRules::of_squares(square(sequence.rules.tolerance), counted_steps(sequence.rules.patience),
                                                   counted_steps(sequence.rules.max_iterations));
      expect_end(sequence, rules, square);
    }
  }
}

TEST(Monitor, KeepsTheBestResidual) {
  Monitor monitor;
  const StoppingRules rules = StoppingRules::of({});
  for (const double residual : {Monitor::kInfinity, 3.0, 0.25, 0.5}) EXPECT_FALSE(monitor.observe(residual, rules));
  EXPECT_EQ(monitor.best, 0.25);
  EXPECT_EQ(monitor.first, 3.0);
}

TEST(BackOff, RejectionsCostTwiceAsMuchEachUntilAStepIsAccepted) {
  BackOff back_off;
  for (const int price : {1, 2, 4, 8, 8}) {
    EXPECT_TRUE(back_off.wait(/*rejected=*/true, /*accelerated=*/true));
    int plain = 1;
    while (back_off.wait(false, false)) ++plain;
    EXPECT_EQ(plain, price);
  }
  EXPECT_FALSE(back_off.wait(false, true));  // accepted
  EXPECT_TRUE(back_off.wait(true, true));
  EXPECT_FALSE(back_off.wait(false, false));
}

TEST(IterationRules, StepsBeyondAnyCountAreCut) {
  EXPECT_EQ(counted_steps(7), 7);
  EXPECT_EQ(counted_steps(std::numeric_limits<int64_t>::max()), 1 << 30);
}

}  // namespace
}  // namespace invattn

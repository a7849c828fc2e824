#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "invattn/core/stop_request.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/ops/kernels.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::random;

uint64_t of_run(uint64_t seed) { return seed + 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)); }

/// Asked for by another thread as soon as an inverse has asked `kBefore` times; the inverse waits for that, so that it cannot be through.
constexpr int kBefore = 3;
std::atomic<int> polls, polls_after;
std::atomic<bool> under_way, asked;

bool poll() {
  if (asked) {
    ++polls_after;
    return true;
  }
  if (++polls < kBefore) return false;
  under_way = true;
  while (!asked) std::this_thread::yield();
  return true;
}

struct StopCase {
  std::string name;
  Kernels kernels;
  SolverOptions options;
  bool convolution = false;

  friend void PrintTo(const StopCase& self, std::ostream* out) { *out << self.name; }
};

class StoppedInverse : public ::testing::TestWithParam<StopCase> {
 protected:
  void SetUp() override {
    polls = polls_after = 0;
    under_way = asked = false;
    at::manual_seed(static_cast<int64_t>(of_run(1)));
    model_ = GetParam().convolution
                 ? InvertibleResidual(
                       Convolution(ConvolutionOptions{.channels = 4, .height = 4, .width = 4, .hidden = 8, .constant = 0.9}).ptr())
                       .ptr()
                 : InvertibleAttention(AttentionOptions{.channels = 4, .kind = AttentionKind::kDotProduct}).ptr();
    model_->eval();
    y_ = random({64, 4, 4, 4}, of_run(2), at::kFloat);
  }
  void TearDown() override { set_stop_poll(nullptr); }

  Solution invert() {
    const KernelsScope scope(GetParam().kernels);
    const at::NoGradGuard no_grad;
    return model_->inverse(y_, GetParam().options);
  }

  Bijection model_;
  at::Tensor y_;
};

TEST_P(StoppedInverse, EndsSoonAfterAnotherThreadHasAsked) {
  const auto expected = invert();
  ASSERT_TRUE(expected.report.usable()) << expected.report.full();
  set_stop_poll(poll);
  std::thread other([] {
    while (!under_way) std::this_thread::yield();
    asked = true;
  });
  EXPECT_THROW(invert(), Stopped);
  other.join();
  EXPECT_LE(polls_after, at::get_num_threads());  // each thread once at most

  // Nothing of it is left.
  asked = false;
  polls = -1'000'000'000;
  const auto next = invert();
  EXPECT_TRUE(next.x.equal(expected.x));
  EXPECT_EQ(next.report.statuses, expected.report.statuses);
  set_stop_poll(nullptr);
  EXPECT_TRUE(invert().x.equal(expected.x));
}

/// Where several inverses run, one of them may take the request back before another has finished with it.
TEST_P(StoppedInverse, ARequestThatIsTakenBackAtOnceEndsItAllTheSame) {
  set_stop_poll([] { return ++polls == kBefore; });
  EXPECT_THROW(invert(), Stopped);
  EXPECT_TRUE(invert().report.usable());
}

TEST_P(StoppedInverse, AChainEndsAsAWhole) {
  auto chain = std::make_shared<SequentialImpl>();
  for (int i = 0; i < 3; ++i) chain->push_back(model_);
  model_ = chain;
  set_stop_poll([] { return ++polls >= kBefore; });
  EXPECT_THROW(invert(), Stopped);
}

std::vector<StopCase> cases() {
  return {{"engine_anderson", Kernels::kFast, AndersonOptions{}},      {"engine_fixed_point", Kernels::kFast, FixedPointOptions{}},
          {"driver_anderson", Kernels::kReference, AndersonOptions{}}, {"driver_fixed_point", Kernels::kReference, FixedPointOptions{}},
          {"driver_newton", Kernels::kAuto, NewtonKrylovOptions{}},    {"convolution", Kernels::kAuto, AndersonOptions{}, true}};
}

std::string case_name(const ::testing::TestParamInfo<StopCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(All, StoppedInverse, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace invattn

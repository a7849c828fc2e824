#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "invattn/lipschitz/attention_bound.h"
#include "invattn/lipschitz/local_constant.h"
#include "tests/lipschitz/bound_cases.h"

// An adversary climbs the ratio of the local constant to the strict bound: over the inputs of the domain, and over the weights as well.
namespace invattn {
namespace {

using testing::bound_cases;
using testing::bound_setting;
using testing::BoundCase;
using testing::BoundSetting;
using testing::exact_constants;
using testing::name_of;
using testing::points_of_box;
using testing::random;

constexpr double kRounding = 1 + 1e-9;

struct Climb {
  double highest = 0;  ///< the largest ratio ever seen
  double gained = 0;   ///< the largest factor that a point's ratio has grown by
};

class Adversary {
 public:
  Adversary(const BoundCase& c, const BoundSetting& setting, bool weights_too)
      : setting_(setting), attention_(setting.attention(c)), weights_too_(weights_too) {
    x_ = points_of_box(2, setting.channels, setting.positions, setting.radius, setting.seed);
    vectors_ = unit_samples(random(x_.sizes(), setting.seed + 7));
    for (auto& item : attention_->named_parameters()) {
      if (!(setting.constant_values && item.key() == "value.weight")) weights_.push_back(item.value());
    }
  }

  Climb climb(int steps) {
    const auto start = ratios();
    Climb result{.highest = start.max().item<double>(), .gained = 1};
    for (int step = 0; step < steps; ++step) {
      move(0.3 * (1 - static_cast<double>(step) / steps) + 0.01);
      if (step % 5 != 4) continue;
      const auto now = ratios();
      result.highest = std::max(result.highest, now.max().item<double>());
      result.gained = std::max(result.gained, (now / start).max().item<double>());
    }
    return result;
  }

 private:
  double bound() const {
    at::NoGradGuard no_grad;
    return attention_->bound(setting_.positions).total().item<double>();
  }

  at::Tensor ratios() { return exact_constants(*attention_, x_) / bound(); }  // (B)

  /// One step along the gradient of sum log <u, J v> - log bound, with u and v from two more power iterations.
  void move(double stride) {
    const auto input = x_.detach().requires_grad_(true);
    const auto linearization = attention_->freeze(input).linearize(x_);
    at::Tensor left;
    for (int i = 0; i < 2; ++i) {
      left = unit_samples(linearization->jvp(vectors_));
      vectors_ = unit_samples(linearization->vjp(left));
    }
    const auto pulled_back = torch::autograd::grad({attention_->forward(input)}, {input}, {left}, true, true)[0];
    const auto constants = (pulled_back * vectors_).flatten(1).sum(1);
    auto objective = constants.clamp_min(1e-12).log().sum();
    std::vector<at::Tensor> inputs{input};
    if (weights_too_) {
      objective = objective - static_cast<double>(x_.size(0)) * attention_->bound(setting_.positions).total().log();
      inputs.insert(inputs.end(), weights_.begin(), weights_.end());
    }
    const auto slopes = torch::autograd::grad({objective}, inputs, {}, false, false, /*allow_unused=*/true);
    at::NoGradGuard no_grad;
    const double side = setting_.radius * std::sqrt(static_cast<double>(setting_.channels * setting_.positions));
    x_ = (x_ + stride * side * unit_samples(slopes[0])).clamp(-setting_.radius, setting_.radius);
    for (std::size_t i = 0; i + 1 < slopes.size(); ++i) {
      if (!slopes[i + 1].defined()) continue;
      const double length = slopes[i + 1].norm().item<double>();
      if (length > 0) weights_[i].add_(slopes[i + 1], 0.3 * stride * (weights_[i].norm().item<double>() + 1e-3) / length);
    }
  }

  BoundSetting setting_;
  Attention attention_;
  bool weights_too_;
  at::Tensor x_, vectors_;  // (B, C, 1, N)
  std::vector<at::Tensor> weights_;
};

class BoundWithstands : public ::testing::TestWithParam<BoundCase> {
 protected:
  /// Attacks the settings of these numbers.
  void attack(bool weights_too, const std::vector<uint64_t>& numbers, int steps) {
    double tightest = 0;
    double gained = 0;
    for (const auto number : numbers) {
      const auto setting = bound_setting(GetParam(), number);
      Adversary adversary(GetParam(), setting, weights_too);
      const auto climb = adversary.climb(steps);
      ASSERT_LE(climb.highest, kRounding) << "the adversary passed the bound at " << setting;
      tightest = std::max(tightest, climb.highest);
      gained = std::max(gained, climb.gained);
    }
    RecordProperty("tightest", std::to_string(tightest));
    RecordProperty("gained", std::to_string(gained));
    EXPECT_GT(gained, 1.01) << "an adversary that never gains is none";
  }
};

TEST_P(BoundWithstands, AnAdversaryWhoChoosesTheInput) { attack(false, {17, 31, 46, 62}, 20); }

TEST_P(BoundWithstands, AnAdversaryWhoChoosesInputAndWeights) { attack(true, {18, 34, 49}, 30); }

INSTANTIATE_TEST_SUITE_P(Cases, BoundWithstands, ::testing::ValuesIn(bound_cases()), [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace invattn

#include "invattn/logdet/estimators.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "invattn/core/error.h"
#include "maps.h"

namespace invattn {
namespace {

using namespace logdet_tests;

/// One point many times over, so that a batch of estimates is a sample of the estimator's distribution.
at::Tensor repeated_point(const Branch& branch, int64_t repeats) {
  const auto point = sample_input(branch, 1);
  std::vector<int64_t> repetition(point.dim(), 1);
  repetition[0] = repeats;
  return point.repeat(repetition);
}

double standard_error_of_mean(const at::Tensor& values) {
  return values.std(0, true).item<double>() / std::sqrt(static_cast<double>(values.numel()));
}

/// The mean over a complete orthogonal set of probes: the estimator's expectation without any noise.
double complete_mean(const Branch& branch, int64_t terms) {
  const auto x = repeated_point(branch, kDimension);
  const ProbeDraw draw{.probe = hadamard().view(x.sizes()), .weights = at::ones({terms, 1}, at::kDouble)};
  return probe_estimates(make_problem(branch, x), {draw}, LogDetGradient::kNeumann).mean().item<double>();
}

class Estimator : public ::testing::TestWithParam<Branch> {};
INSTANTIATE_TEST_SUITE_P(Branches, Estimator, ::testing::ValuesIn(all_branches()), branch_name);

TEST_P(Estimator, SeriesExpectationIsTheTruncatedTraceWithinItsRemainder) {
  const auto jacobian = reference_jacobian(GetParam(), sample_input(GetParam(), 1)).detach();
  const double lipschitz = at::linalg_matrix_norm(jacobian, 2).item<double>();
  ASSERT_LT(lipschitz, 0.95);
  ASSERT_GT(lipschitz, 0.3);
  const double exact = reference_log_det(GetParam(), sample_input(GetParam(), 1)).item<double>();
  for (const int64_t terms : {1, 2, 3, 5, 10, 20}) {
    const double expectation = complete_mean(GetParam(), terms);
    EXPECT_NEAR(expectation, reference_series(jacobian, terms).item<double>(), 1e-13) << terms;
    EXPECT_LE(std::abs(expectation - exact), series_remainder(lipschitz, terms, kDimension) + 1e-13) << terms;
  }
  EXPECT_GT(std::abs(complete_mean(GetParam(), 1) - exact), 1e-3);  // the bound has something to bound
}

/// sum_N P(N) (estimate with N for all), over a complete set of probes: the expectation without any noise but the tail's.
TEST_P(Estimator, RouletteWithASharedDrawIsUnbiased) {
  const double exact = reference_log_det(GetParam(), sample_input(GetParam(), 1)).item<double>();
  const RouletteLogDet options{.minimum_terms = 2, .continuation = 0.9};
  const auto x = repeated_point(GetParam(), 400);
  double expectation = 0;
  double probability = 1 - options.continuation;
  for (int64_t terms = 2; terms < 300; ++terms, probability *= options.continuation) {
    auto weights = at::pow(1 / options.continuation, at::arange(1, terms + 1, at::kDouble).sub(2).clamp_min(0)).unsqueeze(1);
    const auto probes = repeated_point(GetParam(), kDimension);
    const ProbeDraw draw{.probe = hadamard().view(probes.sizes()), .weights = weights};
    expectation += probability * probe_estimates(make_problem(GetParam(), probes), {draw}, LogDetGradient::kNeumann).mean().item<double>();
  }
  EXPECT_NEAR(expectation, exact, 1e-9);
  // The option computes with the same weights: terms without a game are a series.
  const auto series = log_det(make_problem(GetParam(), x), SeriesLogDet{.terms = 2, .seed = 5}).value;
  EXPECT_TRUE(at::equal(log_det(make_problem(GetParam(), x), RouletteLogDet{.minimum_terms = 2, .terms = 2, .seed = 5}).value, series));
  const auto longer = log_det(make_problem(GetParam(), x), RouletteLogDet{.minimum_terms = 2, .continuation = 0.5, .terms = 3, .seed = 5});
  const auto third = log_det(make_problem(GetParam(), x), SeriesLogDet{.terms = 3, .seed = 5}).value - series;
  EXPECT_LT((longer.value - series - 2 * third).abs().max().item<double>(), 1e-12);
}

TEST(Roulette, SharedDrawsHaveTheRightDistribution) {
  auto source = at::detail::createCPUGenerator(3);
  const RouletteLogDet options{.minimum_terms = 4, .continuation = 0.75};
  double mean = 0;
  for (int i = 0; i < 4000; ++i) {
    const int64_t terms = draw_terms(options, source);
    EXPECT_GE(terms, 4);
    mean += static_cast<double>(terms) / 4000;
  }
  EXPECT_NEAR(mean, 4 + 0.75 / 0.25, 4 * std::sqrt(0.75) / 0.25 / std::sqrt(4000));
  EXPECT_THROW((RouletteLogDet{.minimum_terms = 4, .terms = 3}.validate()), Error);
}

TEST_P(Estimator, SeriesMeanIsWithinFourStandardErrors) {
  constexpr int64_t kRepeats = 4000;
  const auto expected = reference_series(reference_jacobian(GetParam(), sample_input(GetParam(), 1)), 4).item<double>();
  for (const auto probe : {Probe::kRademacher, Probe::kGaussian}) {
    const auto values =
        log_det(make_problem(GetParam(), repeated_point(GetParam(), kRepeats)), SeriesLogDet{.terms = 4, .probe = probe, .seed = 11}).value;
    const double standard_error = standard_error_of_mean(values);
    EXPECT_LT(std::abs(values.mean().item<double>() - expected), 4 * standard_error) << to_string(probe);
    EXPECT_LT(standard_error, 0.05);
    EXPECT_GT(standard_error, 1e-4);  // the probes differ from sample to sample
  }
}

TEST_P(Estimator, StandardErrorIsCalibrated) {
  constexpr int64_t kRepeats = 2000;
  const auto x = repeated_point(GetParam(), kRepeats);
  const std::vector<LogDetOptions> methods{
      SeriesLogDet{.terms = 5, .probes = 6, .seed = 12},
      SeriesLogDet{.terms = 5, .probes = 6, .probe = Probe::kGaussian, .seed = 13},
      RouletteLogDet{.minimum_terms = 2, .continuation = 0.7, .probes = 6, .seed = 14},
  };
  for (const auto& method : methods) {
    const auto result = log_det(make_problem(GetParam(), x), method);
    const double spread = result.value.std(0, true).item<double>();
    const double reported = result.standard_error.square().mean().sqrt().item<double>();
    EXPECT_NEAR(reported / spread, 1.0, 0.15) << describe(method);
    EXPECT_FALSE(result.standard_error.requires_grad());
  }
}

TEST_P(Estimator, RouletteIsUnbiased) {
  constexpr int64_t kRepeats = 20000;
  const double exact = reference_log_det(GetParam(), sample_input(GetParam(), 1)).item<double>();
  for (const auto probe : {Probe::kRademacher, Probe::kGaussian}) {
    const auto values = log_det(make_problem(GetParam(), repeated_point(GetParam(), kRepeats)),
                                RouletteLogDet{.minimum_terms = 1, .continuation = 0.7, .probe = probe, .seed = 15})
                            .value;
    const double standard_error = standard_error_of_mean(values);
    EXPECT_LT(std::abs(values.mean().item<double>() - exact), 4 * standard_error) << to_string(probe);
    // Without its weights it would stop at a place that this many repeats tell from the exact value.
    EXPECT_GT(std::abs(complete_mean(GetParam(), 1) - exact), 8 * standard_error) << to_string(probe);
  }
}

TEST_P(Estimator, ManyTermsAndACompleteSetGiveTheExactValue) {
  const double exact = reference_log_det(GetParam(), sample_input(GetParam(), 1)).item<double>();
  EXPECT_NEAR(complete_mean(GetParam(), 200), exact, 1e-12);
}

TEST(RouletteWeights, AreInverseProbabilitiesUpToEachSamplesOwnDraw) {
  const RouletteLogDet options{.minimum_terms = 3, .continuation = 0.5};
  const auto weights = roulette_weights(options, 64, generator(16));
  ASSERT_EQ(weights.size(1), 64);
  ASSERT_GT(weights.size(0), 5);
  int64_t longest = 0;
  std::vector<int64_t> lengths;
  for (int64_t sample = 0; sample < 64; ++sample) {
    const auto column = weights.select(1, sample);
    const auto length = column.count_nonzero().item<int64_t>();
    ASSERT_GE(length, 3);
    for (int64_t k = 1; k <= weights.size(0); ++k) {
      const double expected = k > length ? 0.0 : std::pow(2.0, static_cast<double>(std::max<int64_t>(k - 3, 0)));
      EXPECT_DOUBLE_EQ(column[k - 1].item<double>(), expected);
    }
    longest = std::max(longest, length);
    lengths.push_back(length);
  }
  EXPECT_EQ(longest, weights.size(0));  // no product is made that no sample needs
  std::sort(lengths.begin(), lengths.end());
  EXPECT_GE(std::unique(lengths.begin(), lengths.end()) - lengths.begin(), 4);  // drawn per sample
}

TEST(RouletteWeights, OfGroupsHaveMeanOneAndEndWithAGroup) {
  constexpr int64_t kBatch = 40000;
  const RouletteLogDet options{.minimum_terms = 3, .continuation = 0.8, .stride = 4};
  const auto weights = roulette_weights(options, kBatch, generator(21));
  for (int64_t row = 0; row < 11; ++row) {
    const double played = row < 3 ? 0 : row < 7 ? 4 : 8;
    const double weight = std::pow(1 / 0.8, played);
    const auto drawn = weights[row];
    EXPECT_TRUE(drawn.eq(0).logical_or((drawn - weight).abs() < 1e-12).all().item<bool>()) << row;
    EXPECT_NEAR(drawn.mean().item<double>(), 1.0, 4.5 * std::sqrt((weight - 1) / kBatch) + 1e-15) << row;
  }
  EXPECT_TRUE(weights.ne(0).sum(0).sub(3).remainder(4).eq(0).all().item<bool>()) << "a group is computed as a whole";
}

TEST(Roulette, SharedDrawsOfGroupsAreUnbiasedAndCarryTheSameWeights) {
  const RouletteLogDet options{.minimum_terms = 2, .continuation = 0.8, .stride = 3};
  const auto random = generator(22);
  std::map<int64_t, int64_t> counts;
  constexpr int64_t kDraws = 4000;
  for (int64_t i = 0; i < kDraws; ++i) ++counts[draw_terms(options, random)];
  const double goes_on = std::pow(0.8, 3);
  for (const auto& [terms, count] : counts) EXPECT_EQ((terms - 2) % 3, 0) << terms;
  EXPECT_NEAR(static_cast<double>(counts[2]) / kDraws, 1 - goes_on, 4.5 * std::sqrt(goes_on * (1 - goes_on) / kDraws));
  // With J = 0.5 I and Rademacher probes term k is d (-1)^(k+1) 0.5^k / k.
  Branch branch = linear_branch();
  branch.weights[0] = 0.5 * at::eye(kDimension, at::kDouble);
  auto drawn = options;
  drawn.terms = 8;
  double expected = 0;
  for (int k = 1; k <= 8; ++k) {
    const double played = k <= 2 ? 0 : k <= 5 ? 3 : 6;
    expected += (k % 2 == 1 ? 1 : -1) * std::pow(0.5, k) / k * std::pow(1 / 0.8, played) * static_cast<double>(kDimension);
  }
  EXPECT_NEAR(log_det(make_problem(branch, repeated_point(branch, 1)), drawn).value.item<double>(), expected, 1e-12);
  drawn.terms = 4;
  EXPECT_THROW(drawn.validate(), Error) << "within a group";
}

TEST(GuardedTerms, JoinTheSureOnes) {
  const auto series = std::get<SeriesLogDet>(with_guarded_terms(SeriesLogDet{.terms = 3, .guarded_terms = 4}));
  EXPECT_EQ(series.terms, 7);
  EXPECT_EQ(series.guarded_terms, 0);
  const auto own = std::get<RouletteLogDet>(with_guarded_terms(RouletteLogDet{.minimum_terms = 2, .guarded_terms = 4}));
  EXPECT_EQ(own.minimum_terms, 6);
  EXPECT_EQ(own.terms, 0);
  const auto shared = std::get<RouletteLogDet>(with_guarded_terms(RouletteLogDet{.minimum_terms = 2, .guarded_terms = 4, .terms = 5}));
  EXPECT_EQ(shared.terms, 9);
  EXPECT_TRUE(std::holds_alternative<ExactLogDet>(with_guarded_terms(ExactLogDet{})));
}

/// x -> c x for each sample, with its own c.
LogDetProblem scaled_samples(const at::Tensor& x, const at::Tensor& scale, bool bounded) {
  const auto factors = scale.unsqueeze(1);
  return {.x = x,
          .branch_value = x * factors,
          .linearize = [](const at::Tensor&) -> std::unique_ptr<Linearization> { throw std::logic_error("the products have a graph"); },
          .vjp = [factors](const at::Tensor& vector) { return vector * factors; },
          .bounded = bounded};
}

TEST(BoundedProducts, ChangeNothingBelowOneAndKeepASampleAboveItFromOutweighingTheOthers) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const auto gradient : {LogDetGradient::kNeumann, LogDetGradient::kSeries}) {
      // The last sample's series grows as 50^k / k.
      const auto constants = at::cat({at::rand({6}, generator(seed), at::kDouble) * 1.9 - 0.95, at::full({1}, 50.0, at::kDouble)});
      const auto x = random({7, kDimension}, seed + 100);
      const SeriesLogDet options{.terms = 20, .gradient = gradient, .seed = static_cast<int64_t>(seed)};
      const auto run = [&](bool bounded) {
        const auto scale = constants.clone().requires_grad_(true);
        const auto value = log_det(scaled_samples(x.clone().requires_grad_(true), scale, bounded), options).value;
        value.sum().backward();
        return std::pair{value.detach(), scale.grad()};
      };
      const auto [free, free_gradient] = run(false);
      const auto [held, held_gradient] = run(true);
      EXPECT_TRUE(at::equal(held.slice(0, 0, 6), free.slice(0, 0, 6)));
      EXPECT_TRUE(at::equal(held_gradient.slice(0, 0, 6), free_gradient.slice(0, 0, 6)));
      EXPECT_GT(free[6].abs().item<double>(), 1e20);
      EXPECT_GT(free_gradient[6].abs().item<double>(), 1e20);
      // Terms of at most d / k, and a gradient of at most d for each.
      EXPECT_LE(held[6].abs().item<double>(), kDimension * 4.0);
      EXPECT_LE(held_gradient[6].abs().item<double>(), kDimension * 20.0);
    }
  }
}

TEST(RouletteWeights, HaveMeanOne) {
  constexpr int64_t kBatch = 40000;
  const auto weights = roulette_weights({.minimum_terms = 2, .continuation = 0.6}, kBatch, generator(17));
  for (int64_t row = 0; row < 8; ++row) {
    const double variance = row < 2 ? 0 : std::pow(1 / 0.6, static_cast<double>(row - 1)) - 1;
    EXPECT_NEAR(weights[row].mean().item<double>(), 1.0, 4 * std::sqrt(variance / kBatch) + 1e-15) << row;
  }
}

TEST(Roulette, SamplesHaveTheirOwnNumberOfTerms) {
  // J = 0.5 I and Rademacher probes: the value depends on N alone.
  Branch branch = linear_branch();
  branch.weights[0] = 0.5 * at::eye(kDimension, at::kDouble);
  const auto values = log_det(make_problem(branch, repeated_point(branch, 64)), RouletteLogDet{.seed = 18}).value;
  EXPECT_GE(std::get<0>(at::_unique2(values)).numel(), 4);
}

struct Counts {
  int64_t linearizations = 0;
  int64_t products = 0;
  int64_t samples = 0;  // of all products together
};

/// Counts its products.
class CountingLinearization final : public Linearization {
 public:
  CountingLinearization(std::unique_ptr<Linearization> inner, Counts& counts) : inner_(std::move(inner)), counts_(counts) {}
  at::Tensor value() const override { return inner_->value(); }
  at::Tensor jvp(const at::Tensor& tangent) const override { return inner_->jvp(counted(tangent)); }
  at::Tensor vjp(const at::Tensor& cotangent) const override { return inner_->vjp(counted(cotangent)); }

 private:
  const at::Tensor& counted(const at::Tensor& direction) const {
    ++counts_.products;
    counts_.samples += direction.size(0);
    return direction;
  }

  std::unique_ptr<Linearization> inner_;
  Counts& counts_;
};

LogDetProblem counted_problem(const Branch& branch, const at::Tensor& x, Counts& counts) {
  auto problem = make_problem(branch, x);
  problem.linearize = [inner = problem.linearize, &counts](const at::Tensor& some) {
    ++counts.linearizations;
    return std::make_unique<CountingLinearization>(inner(some), counts);
  };
  return problem;
}

TEST(LogDetCost, OneLinearisationAndOneProductPerTermAndProbe) {
  const auto branch = trainable(tanh_branch());
  const auto x = sample_input(branch, 3).requires_grad_(true);
  Counts neumann;
  EXPECT_TRUE(log_det(counted_problem(branch, x, neumann), SeriesLogDet{.terms = 7, .probes = 3}).value.requires_grad());
  EXPECT_EQ(neumann.linearizations, 0) << "the branch value has a graph already";
  Counts without;
  {
    const at::NoGradGuard no_grad;
    log_det(counted_problem(branch, x, without), SeriesLogDet{.terms = 7, .probes = 3});
  }
  EXPECT_EQ(without.linearizations, 1);
  EXPECT_EQ(without.products, 21);

  Counts series;
  const SeriesLogDet through_terms{.terms = 7, .probes = 3, .gradient = LogDetGradient::kSeries};
  EXPECT_TRUE(log_det(counted_problem(branch, x, series), through_terms).value.requires_grad());
  EXPECT_EQ(series.linearizations, 0);  // made only when needed

  const at::NoGradGuard no_graph;
  for (const LogDetOptions& options : {LogDetOptions(SeriesLogDet{.terms = 7, .probes = 3}), LogDetOptions(through_terms)}) {
    Counts counts;
    EXPECT_FALSE(log_det(counted_problem(branch, x, counts), options).value.requires_grad());
    EXPECT_EQ(counts.linearizations, 1);
    EXPECT_EQ(counts.products, 21);
  }
}

TEST(LogDetCost, ValueIsTheSameWithAndWithoutGraph) {
  for (const auto& branch : all_branches()) {
    const auto x = sample_input(branch, 4);
    const auto point = x.clone().requires_grad_(true);
    for (const auto gradient : {LogDetGradient::kNeumann, LogDetGradient::kSeries}) {
      const std::vector<LogDetOptions> methods{SeriesLogDet{.probes = 2, .gradient = gradient, .seed = 19},
                                               RouletteLogDet{.probes = 2, .gradient = gradient, .seed = 19}};
      for (const auto& method : methods) {
        const auto plain = log_det(make_problem(branch, x), method);
        const auto graph = log_det(make_problem(branch, point), method);
        EXPECT_FALSE(plain.value.requires_grad());
        EXPECT_TRUE(graph.value.requires_grad());
        EXPECT_LT(largest_difference(plain.value, graph.value.detach()), 1e-14) << branch.name << " " << describe(method);
        EXPECT_LT(largest_difference(plain.standard_error, graph.standard_error), 1e-14);
      }
    }
  }
}

TEST(LogDetCost, SumsOfPowersThatABranchKnowsGiveTheSameValueAndGradient) {
  for (const auto& some : all_branches()) {
    const auto branch = trainable(some);
    const auto x = sample_input(branch, 4).requires_grad_(true);
    for (const LogDetOptions& method :
         {LogDetOptions(SeriesLogDet{.terms = 4, .seed = 19}), LogDetOptions(RouletteLogDet{.minimum_terms = 2, .terms = 7, .seed = 19}),
          LogDetOptions(RouletteLogDet{.seed = 19}), LogDetOptions(SeriesLogDet{.terms = 1, .probes = 2, .seed = 19})}) {
      auto problem = make_problem(branch, x);
      const auto plain = log_det(problem, method);
      int calls = 0;
      problem.power_sums = [&](const at::Tensor& v, const std::vector<double>& first, const std::vector<double>& second) {
        EXPECT_EQ(first.size(), second.size());
        ++calls;
        const auto there = problem.linearize(x.detach());
        auto power = v;
        std::pair sums{first[0] * v, second[0] * v};
        for (std::size_t k = 1; k < first.size(); ++k) {
          power = there->vjp(power);
          sums.first = sums.first + first[k] * power;
          sums.second = sums.second + second[k] * power;
        }
        return sums;
      };
      const auto known = log_det(problem, method);
      const auto* roulette = std::get_if<RouletteLogDet>(&method);
      const bool own_draws = roulette != nullptr && roulette->terms == 0;  // each sample has weights of its own
      EXPECT_EQ(calls > 0, !own_draws) << describe(method);
      EXPECT_LT(largest_difference(plain.value.detach(), known.value.detach()), 1e-13) << branch.name << " " << describe(method);
      auto inputs = branch.weights;
      inputs.push_back(x);
      const auto of_plain = torch::autograd::grad({plain.value.sum()}, inputs, {}, true, false, true);
      const auto of_known = torch::autograd::grad({known.value.sum()}, inputs, {}, true, false, true);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        ASSERT_EQ(of_plain[i].defined(), of_known[i].defined());
        if (of_plain[i].defined()) EXPECT_LT(largest_difference(of_plain[i], of_known[i]), 1e-12) << branch.name << " " << describe(method);
      }
    }
  }
}

TEST(LogDetCost, TheValueAloneIsTheSameValue) {
  const auto branch = trainable(tanh_branch());
  const auto x = sample_input(branch, 4).requires_grad_(true);
  for (const int64_t probes : {1, 2}) {
    for (const bool graph : {true, false}) {
      const at::AutoGradMode mode(graph);
      const auto whole = log_det(make_problem(branch, x), RouletteLogDet{.probes = probes, .seed = 3});
      const auto alone = log_det(make_problem(branch, x), RouletteLogDet{.probes = probes, .seed = 3, .value_only = true});
      EXPECT_TRUE(at::equal(whole.value, alone.value));
      EXPECT_EQ(alone.value.requires_grad(), graph);
      EXPECT_FALSE(alone.standard_error.defined() || alone.sign.defined());
      const auto series = log_det(make_problem(branch, x), SeriesLogDet{.probes = probes, .seed = 3, .value_only = true});
      EXPECT_FALSE(series.standard_error.defined() || series.sign.defined());
    }
  }
}

TEST(LogDetCost, SamplesWhoseSeriesHaveEndedAreLeftOut) {
  constexpr int64_t kBatch = 200;
  const RouletteLogDet method{.minimum_terms = 3, .continuation = 0.97, .probes = 2, .seed = 23};
  for (const auto& branch : all_branches()) {
    const auto x = sample_input(branch, kBatch);
    Counts counts;
    const auto few = log_det(counted_problem(branch, x, counts), method);
    const auto all = log_det(make_problem(branch, x.clone().requires_grad_(true)), method);  // with a graph they stay
    EXPECT_LT(largest_difference(few.value, all.value.detach()), 1e-13) << branch.name;
    // 35 terms on average and some 200 at most; nobody is there for more than about twice as long as needed.
    const double mean = static_cast<double>(counts.samples) / static_cast<double>(2 * kBatch);
    EXPECT_GT(mean, 25) << branch.name;
    EXPECT_LT(mean, 75) << branch.name;
    EXPECT_GT(counts.products, 2 * 120) << branch.name;
    EXPECT_LT(counts.linearizations, 14) << branch.name;
  }
}

TEST(LogDetCost, NoBranchValueIsNeededWithoutGradients) {
  const auto branch = trainable(tanh_branch());
  auto problem = make_problem(branch, sample_input(branch, 2));
  problem.branch_value = at::Tensor();
  for (const LogDetOptions& method : {LogDetOptions(SeriesLogDet{}), LogDetOptions(RouletteLogDet{}), LogDetOptions(ExactLogDet{})}) {
    const auto result = log_det(problem, method);
    EXPECT_FALSE(result.value.requires_grad());
    EXPECT_TRUE(result.value.isfinite().all().item<bool>());
  }
}

TEST(LogDetSeeds, ReproduceAndDiffer) {
  const auto branch = attention_branch();
  const auto problem = make_problem(branch, sample_input(branch, 6));
  for (const auto probe : {Probe::kRademacher, Probe::kGaussian}) {
    const auto series = [&](int64_t seed) { return log_det(problem, SeriesLogDet{.probe = probe, .seed = seed}).value; };
    const auto roulette = [&](int64_t seed) { return log_det(problem, RouletteLogDet{.probe = probe, .seed = seed}).value; };
    for (const std::function<at::Tensor(int64_t)>& estimate : {std::function<at::Tensor(int64_t)>(series), {roulette}}) {
      EXPECT_TRUE(at::equal(estimate(5), estimate(5)));
      EXPECT_FALSE(at::equal(estimate(5), estimate(6)));
      at::manual_seed(1);
      const auto first = estimate(-1);
      const auto second = estimate(-1);
      at::manual_seed(1);
      estimate(5);  // a private generator leaves the default one alone
      EXPECT_TRUE(at::equal(first, estimate(-1)));
      EXPECT_TRUE(at::equal(second, estimate(-1)));
      EXPECT_FALSE(at::equal(first, second));
    }
  }
}

TEST(LogDetSeeds, RademacherProbesDoNotDependOnTheType) {
  const auto branch = linear_branch();
  auto narrow_branch = branch;
  narrow_branch.weights[0] = branch.weights[0].to(at::kFloat);
  const auto x = sample_input(branch, 6);
  for (const LogDetOptions& method : {LogDetOptions(SeriesLogDet{.seed = 2}), LogDetOptions(RouletteLogDet{.seed = 2})}) {
    const auto wide = log_det(make_problem(branch, x), method).value;
    const auto narrow = log_det(make_problem(narrow_branch, x.to(at::kFloat)), method);
    EXPECT_EQ(narrow.value.scalar_type(), at::kFloat);
    EXPECT_EQ(narrow.standard_error.scalar_type(), at::kFloat);
    EXPECT_LT(largest_difference(wide, narrow.value.to(at::kDouble)), 1e-5);
  }
}

TEST(LogDetShapes, OneProbeHasNoStandardErrorAndEstimatorsNoSign) {
  const auto branch = tanh_branch();
  const auto problem = make_problem(branch, sample_input(branch, 3));
  for (const int64_t probes : {1, 2}) {
    for (const LogDetOptions& method : {LogDetOptions(SeriesLogDet{.probes = probes}), LogDetOptions(RouletteLogDet{.probes = probes})}) {
      const auto result = log_det(problem, method);
      EXPECT_EQ(result.value.sizes(), at::IntArrayRef({3}));
      EXPECT_EQ(result.standard_error.sizes(), at::IntArrayRef({3}));
      EXPECT_EQ(result.standard_error.isnan().all().item<bool>(), probes == 1);
      EXPECT_EQ(result.standard_error.isfinite().all().item<bool>(), probes == 2);
      EXPECT_TRUE(result.sign.isnan().all().item<bool>());
    }
  }
}

TEST(LogDetShapes, EmptyBatchesAndSamples) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{0, 2, 4}, {0}, {3, 0}, {3}}) {
    const TensorMap map = [](const at::Tensor& x) { return 0.5 * at::sin(x); };
    for (const bool with_graph : {false, true}) {
      const auto x = at::ones(sizes, at::kDouble).requires_grad_(with_graph);
      const LogDetProblem problem{
          .x = x, .branch_value = map(x), .linearize = [&](const at::Tensor& some) { return autograd_linearization(map, some); }};
      for (const LogDetOptions& method :
           {LogDetOptions(SeriesLogDet{.terms = 100}), LogDetOptions(RouletteLogDet{}), LogDetOptions(ExactLogDet{})}) {
        const auto result = log_det(problem, method);
        ASSERT_EQ(result.value.sizes(), at::IntArrayRef({sizes[0]})) << describe(method);
        EXPECT_EQ(result.standard_error.sizes(), result.value.sizes());
        EXPECT_EQ(result.sign.sizes(), result.value.sizes());
        EXPECT_EQ(result.value.requires_grad(), with_graph);
        if (sizes.size() == 1 && sizes[0] == 3 && !std::holds_alternative<RouletteLogDet>(method)) {
          EXPECT_LT(largest_difference(result.value.detach(), at::full({3}, std::log1p(0.5 * std::cos(1.0)), at::kDouble)), 1e-14);
        } else if (sizes.size() == 2) {
          EXPECT_TRUE(at::equal(result.value.detach(), at::zeros({3}, at::kDouble)));
        }
        if (with_graph) {
          EXPECT_NO_THROW(torch::autograd::grad({result.value.sum()}, {x}, {}, true));
        }
      }
    }
  }
}

TEST(LogDetShapes, AnyMemoryLayout) {
  const auto branch = attention_branch();
  const auto x = sample_input(branch, 3);
  const auto strided = x.contiguous(at::MemoryFormat::ChannelsLast);
  for (const LogDetOptions& method :
       {LogDetOptions(SeriesLogDet{.seed = 3}), LogDetOptions(RouletteLogDet{.seed = 3}), LogDetOptions(ExactLogDet{})}) {
    for (const bool with_graph : {false, true}) {
      const auto expected = log_det(make_problem(branch, x.clone().requires_grad_(with_graph)), method).value.detach();
      const auto result = log_det(make_problem(branch, strided.detach().requires_grad_(with_graph)), method).value.detach();
      EXPECT_LT(largest_difference(result, expected), 1e-14) << describe(method);
    }
  }
}

TEST(LogDetErrors, SayWhatIsWrong) {
  const auto branch = tanh_branch();
  const auto x = sample_input(branch, 2);
  const auto error = [&](const std::function<void(LogDetProblem&)>& spoil, const LogDetOptions& options = SeriesLogDet{}) {
    auto problem = make_problem(branch, x);
    spoil(problem);
    return usage_error([&] { log_det(problem, options); });
  };
  EXPECT_EQ(error([](auto& problem) { problem.x = at::Tensor(); }),
            "[log_det] expected x of shape (B, ...), got an undefined tensor. Add a batch dimension in front.");
  EXPECT_EQ(error([](auto& problem) { problem.x = at::ones({}, at::kDouble); }),
            "[log_det] expected x of shape (B, ...), got a tensor without dimensions. Add a batch dimension in front.");
  EXPECT_EQ(error([](auto& problem) { problem.x = problem.x.to(at::kHalf); }),
            "[log_det] expected x in float32 or float64, got Half. Convert the input and the weights.");
  EXPECT_EQ(error([](auto& problem) {
              problem.branch_value = at::zeros({2, 7}, at::kDouble);
            }),
            "[log_det] expected a branch value of the shape [2, 8] of x, got [2, 7]. A residual branch must return what it was given.");
  EXPECT_EQ(error([](auto& problem) { problem.linearize = nullptr; }),
            "[log_det] expected a way to linearise the branch, got an empty function. Use autograd_linearization for a plain map.");
  EXPECT_EQ(error([&](auto& problem) { problem = make_problem(trainable(branch), x); }),
            "[log_det] expected an x that requires grad, because the branch value does, got one that does not. "
            "Apply the branch to x.detach().requires_grad_() and pass that tensor.");
  const std::vector<LogDetOptions> methods{SeriesLogDet{}, SeriesLogDet{.gradient = LogDetGradient::kSeries}, RouletteLogDet{},
                                           ExactLogDet{}};
  for (const auto& method : methods) {
    EXPECT_EQ(error(
                  [&](auto& problem) {
                    problem = make_problem(branch, x.clone().requires_grad_(true));
                    problem.x = x.clone().requires_grad_(true);
                  },
                  method),
              "[log_det] expected a branch value computed from x itself, got one whose graph does not reach x. "
              "Pass the tensor that the branch was applied to, not a copy of it.")
        << describe(method);
  }
  // The options are looked at first, by the entry point itself.
  EXPECT_NE(error([](auto&) {}, SeriesLogDet{.terms = 0}).find("expected terms >= 1, got 0"), std::string::npos);
  EXPECT_NE(error([](auto&) {}, RouletteLogDet{.continuation = 1}).find("expected 0 < continuation < 1, got 1"), std::string::npos);
  EXPECT_NE(error([](auto&) {}, ExactLogDet{.max_dimension = -1}).find("expected max_dimension >= 1, got -1"), std::string::npos);
}

}  // namespace
}  // namespace invattn

#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/bijection.h"
#include "invattn/nn/residual.h"
#include "tests/support/numerics.h"

/// What every bijection owes its users, checked in one place and instantiated for each of them in one line.
namespace invattn::testing {

struct BijectionCase {
  std::string name;
  std::function<Bijection()> make;  // with fixed weights, in float32
  std::vector<int64_t> shape;       // of one small input, (B, C, H, W) or (B, N, C)
  double promised_constant = 0;     // of the branch of a residual block; 0: none is promised
  std::function<at::Tensor(const at::Tensor&)> domain = [](const at::Tensor& t) { return t; };  // any numbers -> possible inputs
  bool takes_images = true;                                                                     // only
  bool takes_masks = false;                                                                     // of sequences of as many channels

  friend void PrintTo(const BijectionCase& self, std::ostream* out) { *out << self.name; }
};

/// The same numbers in every run, others with --gtest_random_seed=N.
inline uint64_t of_run(uint64_t seed) { return seed + 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)); }

class BijectionContract : public ::testing::TestWithParam<BijectionCase> {
 protected:
  void SetUp() override {
    at::manual_seed(static_cast<int64_t>(of_run(7)));
    model_ = GetParam().make();
    model_->forward(input(at::kFloat, 99));  // a data-dependent start happens here
    model_->eval();
  }

  Bijection in_double() {
    model_->to(at::kDouble);
    return model_;
  }

  at::Tensor input(at::ScalarType type, uint64_t seed = 1) const {
    return GetParam().domain(random(GetParam().shape, of_run(seed), type) * 0.5);
  }

  /// y of a possible input, a leaf.
  at::Tensor image(at::ScalarType type) const {
    const at::NoGradGuard no_grad;
    return model_->forward(input(type)).detach();
  }

  /// (x * seed).sum() for the x of y.
  at::Tensor pulled(const at::Tensor& y, const at::Tensor& seed, const SolverOptions& options = kTight) {
    const auto x = model_->inverse(y, options).x;
    return (x * seed.to(x.options())).sum();
  }

  /// Sequences with holes and ends, one of them nothing else, one with a single position, and what nobody may look at in between.
  std::pair<at::Tensor, Given> padded(at::ScalarType type) const {
    constexpr int64_t kSamples = 6;
    constexpr int64_t kPositions = 7;
    const auto& shape = GetParam().shape;
    const auto channels = shape.size() == 3 ? shape[2] : shape[1];
    auto mask = random({kSamples, kPositions}, of_run(21)) > 0;
    mask[0].fill_(false);
    mask[1].fill_(false);
    mask[1][3].fill_(true);
    mask[2].fill_(true);
    auto x = random({kSamples, kPositions, channels}, of_run(22), type) * 0.5;
    const auto padding = mask.logical_not().unsqueeze(2);
    x = at::where(padding, x * 1e30, x);
    x[3] = at::where(padding[3], at::full({}, std::numeric_limits<double>::quiet_NaN(), x.options()), x[3]);
    return {x, Given{mask}};
  }

  /// Sample b without its padding, (1, n, C).
  static at::Tensor alone(const at::Tensor& x, const Given& given, int64_t b) {
    return x[b].index_select(0, given.mask[b].nonzero().squeeze(1)).unsqueeze(0);
  }

  /// Both hold the same, NaN as well.
  static bool same(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 0, 0, /*equal_nan=*/true); }

  /// The same numbers, otherwise in memory.
  static at::Tensor other_layout(const at::Tensor& x) {
    return x.dim() == 3 ? x.transpose(1, 2).contiguous().transpose(1, 2) : x.contiguous(at::MemoryFormat::ChannelsLast);
  }

  bool has_solver() { return model_->inverse(image(at::kFloat)).report.statuses[0] != SampleStatus::kExact; }

  static inline const SolverOptions kTight = AndersonOptions{.tolerance = 1e-12};

  Bijection model_;
};

TEST_P(BijectionContract, KeepsBatchAndSizeAndType) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    model_->to(type);
    const auto x = input(type);
    const auto y = model_->forward(x);
    EXPECT_EQ(y.numel(), x.numel());
    EXPECT_EQ(y.size(0), x.size(0));
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_EQ(model_->inverse(y).x.sizes(), x.sizes());
  }
}

TEST_P(BijectionContract, EmptyBatch) {
  auto shape = GetParam().shape;
  shape[0] = 0;
  const auto none = at::zeros(shape, at::kFloat);
  const auto y = model_->forward(none);
  EXPECT_EQ(y.size(0), 0);
  const auto [same, log_det] = model_->forward_log_det(none, ExactLogDet{});
  EXPECT_EQ(log_det.value.sizes(), (at::IntArrayRef{0}));
  const auto leaf = y.detach().requires_grad_(true);
  const auto [x, report] = model_->inverse(leaf, AndersonOptions{});
  EXPECT_EQ(x.sizes(), none.sizes());
  x.sum().backward();
  EXPECT_EQ(leaf.grad().sizes(), leaf.sizes());
}

TEST_P(BijectionContract, SamplesDoNotSeeEachOther) {
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto y = model->forward(x);
  for (int64_t i = 0; i < x.size(0); ++i) EXPECT_LT(max_difference(model->forward(x.slice(0, i, i + 1)), y.slice(0, i, i + 1)), 1e-12);
  auto broken = x.clone();
  broken[0].fill_(std::numeric_limits<double>::quiet_NaN());
  const auto rest = model->forward(broken).slice(0, 1);
  EXPECT_LT(max_difference(rest, y.slice(0, 1)), 1e-12);
}

TEST_P(BijectionContract, LayoutDoesNotMatter) {
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto expected = model->forward(x);
  EXPECT_LT(max_difference(model->forward(other_layout(x)), expected), 1e-12);
  const auto strided = at::stack({x, x}, x.dim()).select(x.dim(), 0);
  EXPECT_LT(max_difference(model->forward(strided), expected), 1e-12);
  const auto back = model->inverse(other_layout(expected), AndersonOptions{.tolerance = 1e-12}).x;
  EXPECT_LT(relative_difference(back, x), 1e-9);
}

TEST_P(BijectionContract, PaddedSequencesAreTheirSamplesOneByOne) {
  if (!GetParam().takes_masks) return;
  for (const auto type : {at::kFloat, at::kDouble}) {
    model_->to(type);
    const double close = type == at::kFloat ? 1e-5 : 1e-12;
    const SolverOptions solver = AndersonOptions{.tolerance = type == at::kFloat ? 1e-6 : 1e-12};
    const auto [x, given] = padded(type);
    const at::NoGradGuard no_grad;
    const auto [y, log_det] = model_->forward_log_det(x, ExactLogDet{}, given);
    const auto [back, report] = model_->inverse(y, solver, given);
    EXPECT_TRUE(same(model_->forward(x, given), y));
    EXPECT_TRUE(GetParam().promised_constant == 0 || report.usable()) << report.full();
    EXPECT_EQ(report.batch(), x.size(0));
    const auto padding = given.mask.logical_not();
    EXPECT_TRUE(same(y.index({padding}), x.index({padding})));
    EXPECT_TRUE(same(back.index({padding}), x.index({padding})));
    EXPECT_EQ(log_det.value[0].item<double>(), 0);
    EXPECT_EQ(log_det.sign[0].item<double>(), 1);
    EXPECT_EQ(report.statuses[0], SampleStatus::kExact);
    for (int64_t b = 1; b < x.size(0); ++b) {
      const auto own = alone(x, given, b);
      if (own.size(1) == 0) continue;
      const auto [image, determinant] = model_->forward_log_det(own, ExactLogDet{});
      EXPECT_LT(relative_difference(alone(y, given, b), image), close) << b;
      EXPECT_LT(relative_difference(log_det.value[b], determinant.value[0]), 10 * close) << b;
      // Not with x itself: without a promise these weights need not be a contraction, and then another x may have the same y, or none is found.
      const auto undone = model_->inverse(image, solver);
      if (!undone.report.usable() || !is_converged(report.statuses[static_cast<std::size_t>(b)])) continue;
      EXPECT_LT(relative_difference(alone(back, given, b), undone.x), 100 * close) << b;
    }
    auto* block = dynamic_cast<InvertibleResidualImpl*>(model_.get());
    if (block == nullptr) continue;
    const auto constants =
        local_constants(*branch_linearization(block->branch(), x, given), x, {.tolerance = 1e-12, .max_iterations = 200}).constants;
    EXPECT_EQ(constants[0].item<double>(), 0);
    for (int64_t b = 1; b < x.size(0); ++b) {
      const auto own = alone(x, given, b);
      if (own.size(1) == 0) continue;
      const auto expected =
          local_constants(*branch_linearization(block->branch(), own), own, {.tolerance = 1e-12, .max_iterations = 200}).constants;
      EXPECT_LT(relative_difference(constants[b], expected[0]), 100 * close) << b;
    }
  }
}

TEST_P(BijectionContract, GradientsOfPaddedSequencesAreThoseOfTheSamplesOneByOne) {
  if (!GetParam().takes_masks) return;
  const auto model = in_double();
  const auto batch = padded(at::kDouble);
  const auto& x = batch.first;
  const auto& given = batch.second;
  const auto seed = random(x.sizes(), of_run(23));
  const auto mask = given.mask;
  const auto parameters = model->parameters();
  /// of what `map` makes of the whole, and of the samples alone
  const auto compare = [&](const std::function<at::Tensor(const at::Tensor&, const Given&)>& map, double close) {
    const auto leaf = x.detach().clone().requires_grad_(true);
    auto sources = parameters;
    sources.push_back(leaf);
    const auto found = gradients((map(leaf, given).index({mask}) * seed.index({mask})).sum(), sources);
    auto expected = gradients(at::zeros({}), sources);
    for (int64_t b = 0; b < x.size(0); ++b) {
      const auto places = mask[b].nonzero().squeeze(1);
      if (places.numel() == 0) continue;
      sources.back() = alone(x, given, b).detach().requires_grad_(true);
      const auto own = gradients((map(sources.back(), {}) * alone(seed, given, b)).sum(), sources);
      for (std::size_t i = 0; i < parameters.size(); ++i) expected[i] = expected[i] + own[i];
      expected.back()[b].index_copy_(0, places, own.back()[0]);
    }
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_LT(relative_difference(found[i], expected[i]), close) << i;
  };
  compare([&](const at::Tensor& t, const Given& g) { return model->forward(t, g); }, 1e-11);
  if (model->inverse(x, kTight, given).report.usable()) {
    compare([&](const at::Tensor& t, const Given& g) { return model->inverse(t, kTight, g).x; }, 1e-8);
  }
  compare(
      [&](const at::Tensor& t, const Given& g) {
        const auto [y, log_det] = model->forward_log_det(t, ExactLogDet{}, g);
        return y + log_det.value.view({-1, 1, 1});
      },
      1e-9);
}

TEST_P(BijectionContract, MasksAreUsedOrRefused) {
  const auto refused = [&](const at::Tensor& x, const Given& given) {
    for (const auto& call : {std::function<void()>([&] { model_->forward(x, given); }),
                             std::function<void()>([&] { model_->inverse(x, AndersonOptions{}, given); }),
                             std::function<void()>([&] { model_->forward_log_det(x, SeriesLogDet{}, given); })}) {
      try {
        call();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUsage);
        EXPECT_NE(std::string(error.what()).find("mask"), std::string::npos) << error.what();
      }
    }
  };
  const auto images = at::zeros({2, GetParam().shape[1], 4, 4});
  refused(images, {at::ones({2, 16}, at::kBool)});
  if (!GetParam().takes_masks) return;
  const auto [x, given] = padded(at::kFloat);
  refused(x, {given.mask.to(at::kFloat)});
  refused(x, {given.mask.slice(0, 1)});
  refused(x, {given.mask.slice(1, 1)});
  refused(x, {given.mask.unsqueeze(2)});
}

TEST_P(BijectionContract, RoundTripsWithEverySolver) {
  const std::vector<SolverOptions> in_float{FixedPointOptions{}, AndersonOptions{}, NewtonKrylovOptions{}};
  const auto x32 = input(at::kFloat);
  for (const auto& options : in_float) {
    const auto [x, report] = model_->inverse(model_->forward(x32), options);
    EXPECT_TRUE(report.usable()) << report.full();
    EXPECT_LT(relative_difference(x, x32), 1e-5 / (1 - GetParam().promised_constant)) << report.brief();  // as the error bound grows
  }
  const auto model = in_double();
  const auto x64 = input(at::kDouble);
  for (const SolverOptions& options :
       {SolverOptions(FixedPointOptions{.tolerance = 1e-12}), SolverOptions(AndersonOptions{.tolerance = 1e-12}),
        SolverOptions(NewtonKrylovOptions{.tolerance = 1e-12})}) {
    const auto [x, report] = model->inverse(model->forward(x64), options);
    EXPECT_TRUE(report.usable()) << report.full();
    EXPECT_LT(relative_difference(x, x64), 1e-10) << report.brief();
  }
}

TEST_P(BijectionContract, GradientInInputEqualsFiniteDifferences) {
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto direction = random(x.sizes(), 3);
  const auto weights = random(model->forward(x).sizes(), 4);
  const auto leaf = x.detach().requires_grad_(true);
  const auto exact = (gradient((model->forward(leaf) * weights).sum(), leaf) * direction).sum();
  const auto numerical =
      (directional_difference([&](const at::Tensor& t) { return model->forward(t); }, x, direction, 1e-4) * weights).sum();
  EXPECT_LT(max_difference(exact, numerical), 1e-7 * std::max(1.0, std::abs(numerical.item<double>())));
}

TEST_P(BijectionContract, GradientInWeightsEqualsFiniteDifferences) {
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto weights = random(model->forward(x).sizes(), 4);
  for (const auto& item : model->named_parameters()) {
    auto parameter = item.value();
    const auto direction = random(parameter.sizes(), 5);
    const auto exact = (gradient((model->forward(x) * weights).sum(), parameter) * direction).sum().item<double>();
    const auto start = parameter.detach().clone();
    const auto value = [&](const at::Tensor& t) {
      at::NoGradGuard no_grad;
      parameter.copy_(t);
      return (model->forward(x) * weights).sum();
    };
    const double numerical = directional_difference(value, start, direction, 1e-4).item<double>();
    value(start);
    EXPECT_NEAR(exact, numerical, 2e-5 * std::max(1.0, std::abs(numerical))) << item.key();
  }
}

TEST_P(BijectionContract, SecondGradientsEqualFiniteDifferences) {
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto weights = random(model->forward(x).sizes(), 4);
  const auto direction = random(x.sizes(), 6);
  const auto first = [&](const at::Tensor& t) { return gradient((model->forward(t) * weights).sum(), t, true); };
  const auto leaf = x.detach().requires_grad_(true);
  const auto along = (first(leaf) * direction).sum();
  if (!along.requires_grad()) return;  // a linear map: nothing to differentiate
  const auto in_input = gradient(along, leaf);
  EXPECT_LT(relative_difference(in_input, directional_difference_of_gradient(first, x, direction, 1e-4)), 2e-5);

  // The mixed derivative, that of training through a vector-Jacobian product (log-determinants, the guard).
  for (const auto& item : model->named_parameters()) {
    auto parameter = item.value();
    const auto change = random(parameter.sizes(), 8);
    const auto exact = (gradient((first(leaf) * direction).sum(), parameter) * change).sum().item<double>();
    const auto start = parameter.detach().clone();
    const auto value = [&](const at::Tensor& t) {
      {
        at::NoGradGuard no_grad;
        parameter.copy_(t);
      }
      at::AutoGradMode enable(true);
      return (first(x.detach().requires_grad_(true)) * direction).sum().detach();
    };
    const double numerical = directional_difference(value, start, change, 1e-4).item<double>();
    value(start);
    EXPECT_NEAR(exact, numerical, 1e-4 * std::max(1.0, std::abs(numerical))) << item.key();
  }
}

TEST_P(BijectionContract, WithoutGradientsAnInverseRecordsNothing) {
  const auto y = image(at::kFloat).requires_grad_(true);
  EXPECT_TRUE(model_->inverse(y).x.requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(model_->inverse(y).x.requires_grad());
}

TEST_P(BijectionContract, GradientOfTheInverseEqualsFiniteDifferences) {
  in_double();
  const auto y = image(at::kDouble);
  const auto seed = random(GetParam().shape, of_run(4));
  const auto direction = random(y.sizes(), of_run(3));
  const auto leaf = y.clone().requires_grad_(true);
  const auto exact = (gradient(pulled(leaf, seed), leaf) * direction).sum().item<double>();
  const double numerical = directional_difference([&](const at::Tensor& t) { return pulled(t, seed); }, y, direction, 1e-4).item<double>();
  EXPECT_NEAR(exact, numerical, 1e-6 * std::max(1.0, std::abs(numerical)));

  for (const auto& item : model_->named_parameters()) {
    auto parameter = item.value();
    const auto change = random(parameter.sizes(), of_run(5));
    const auto in_weight = (gradient(pulled(y, seed), parameter) * change).sum().item<double>();
    const auto start = parameter.detach().clone();
    const auto value = [&](const at::Tensor& t) {
      at::NoGradGuard no_grad;
      parameter.copy_(t);
      return pulled(y, seed);
    };
    const double slope = directional_difference(value, start, change, 1e-4).item<double>();
    value(start);
    EXPECT_NEAR(in_weight, slope, 2e-5 * std::max(1.0, std::abs(slope))) << item.key();
  }
}

TEST_P(BijectionContract, GradientOfTheInverseIsTheInverseOfTheJacobian) {
  const auto seed = random(GetParam().shape, of_run(4));
  const auto gradient_by = [&](const SolverOptions& options, at::ScalarType type) {
    model_->to(type);
    const auto leaf = image(type).requires_grad_(true);
    return gradient(pulled(leaf, seed, options), leaf).flatten(1).to(at::kDouble);
  };
  in_double();
  const auto leaf = image(at::kDouble);
  const auto x = model_->inverse(leaf, kTight).x.detach();
  const auto linearization = autograd_linearization([&](const at::Tensor& t) { return model_->forward(t).reshape(t.sizes()); }, x);
  const auto jacobian = dense_jacobian(*linearization, x);  // of the forward map
  const auto expected = at::linalg_solve(jacobian.transpose(1, 2), seed.flatten(1).unsqueeze(2)).squeeze(2);
  for (const SolverOptions& options :
       {SolverOptions(FixedPointOptions{.tolerance = 1e-12}), kTight, SolverOptions(NewtonKrylovOptions{.tolerance = 1e-12})}) {
    EXPECT_LT(relative_difference(gradient_by(options, at::kDouble), expected), 1e-9) << method_name(options);
  }
  EXPECT_LT(relative_difference(gradient_by(AndersonOptions{}, at::kFloat), expected), 1e-3);
}

TEST_P(BijectionContract, SecondDerivativesOfTheInverseAreRefused) {
  if (!has_solver()) return;
  in_double();
  const auto leaf = image(at::kDouble).requires_grad_(true);
  std::vector<at::Tensor> sources = model_->parameters();
  sources.push_back(leaf);
  const auto refused = [&](const at::Tensor& first) {
    ASSERT_TRUE(first.requires_grad());  // else nobody would ask
    try {
      gradients(first.sum(), sources);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find("at most one derivative"), std::string::npos) << error.what();
    }
  };
  refused(gradient(model_->inverse(leaf).x.sum(), leaf, /*create_graph=*/true));
  refused(gradient(model_->inverse(leaf).x.square().sum(), leaf, /*create_graph=*/true));
}

TEST_P(BijectionContract, ASampleOfNaNHasAGradientOfNaNForItselfAlone) {
  const bool solved = has_solver();
  const bool is_block = dynamic_cast<InvertibleResidualImpl*>(model_.get()) != nullptr;
  for (const auto type : {at::kFloat, at::kDouble}) {
    model_->to(type);
    const auto seed = random(GetParam().shape, of_run(4), type);
    const double tolerance = type == at::kFloat ? 1e-3 : 1e-9;
    for (const bool fast : {false, true}) {  // an engine, where there is one
      const SolverOptions options = fast ? SolverOptions(AndersonOptions{.tolerance = type == at::kFloat ? 1e-6 : 1e-12})
                                         : SolverOptions(NewtonKrylovOptions{.tolerance = type == at::kFloat ? 1e-6 : 1e-12});
      const auto whole = image(type).requires_grad_(true);
      const auto expected = gradient(pulled(whole, seed, options), whole);
      auto broken = whole.detach().clone();
      broken[0].flatten()[0].fill_(std::numeric_limits<double>::quiet_NaN());
      broken.requires_grad_(true);
      const auto actual = gradient(pulled(broken, seed, options), broken);
      EXPECT_LT(relative_difference(actual.slice(0, 1), expected.slice(0, 1)), tolerance);
      if (solved) EXPECT_TRUE(actual[0].isnan().all().item<bool>());
      if (!is_block) continue;
      // Left out of the loss it is left out of the gradients.
      const auto x = model_->inverse(broken, options).x;
      const auto of_rest = gradients((x * seed).slice(0, 1).sum(), model_->parameters());
      const auto of_others =
          gradients((model_->inverse(whole.detach().slice(0, 1), options).x * seed.slice(0, 1)).sum(), model_->parameters());
      for (std::size_t i = 0; i < of_rest.size(); ++i) EXPECT_LT(relative_difference(of_rest[i], of_others[i]), tolerance);
    }
  }
}

TEST_P(BijectionContract, LogDetEqualsTheExactJacobian) {
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto dimension = x.numel() / x.size(0);
  const auto [y, log_det] = model->forward_log_det(x, ExactLogDet{});
  EXPECT_LT(max_difference(y, model->forward(x)), 1e-14);
  const auto linearization = autograd_linearization([&](const at::Tensor& t) { return model->forward(t).reshape(t.sizes()); }, x);
  const auto jacobian = dense_jacobian(*linearization, x);
  const auto expected = std::get<1>(at::linalg_slogdet(jacobian));
  EXPECT_EQ(jacobian.size(1), dimension);
  EXPECT_LT(max_difference(log_det.value, expected), 1e-9);
  EXPECT_EQ(log_det.standard_error.max().item<double>(), 0);

  // The estimators, within four standard errors and the bound on what a series leaves out.
  at::NoGradGuard no_grad;
  const auto series = model->forward_log_det(x, SeriesLogDet{.terms = 30, .probes = 60, .seed = 3}).second;
  EXPECT_TRUE(((series.value - expected).abs() <= 4.5 * series.standard_error + 1e-3 * dimension).all().item<bool>())
      << series.value << expected << series.standard_error;
  const auto roulette = model->forward_log_det(x, RouletteLogDet{.minimum_terms = 8, .probes = 60, .seed = 3}).second;
  EXPECT_TRUE(((roulette.value - expected).abs() <= 4.5 * roulette.standard_error + 1e-9).all().item<bool>())
      << roulette.value << expected << roulette.standard_error;
}

TEST_P(BijectionContract, LogDetHasGradientsInInputAndWeights) {
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto value = [&](const at::Tensor& t) { return model->forward_log_det(t, ExactLogDet{}).second.value.sum(); };
  const auto direction = random(x.sizes(), 3);
  const auto leaf = x.detach().requires_grad_(true);
  const auto exact = (gradient(value(leaf), leaf) * direction).sum().item<double>();
  // A short step: the slope of ELU has a kink.
  const double numerical = directional_difference(value, x, direction, 1e-6).item<double>();
  EXPECT_NEAR(exact, numerical, 1e-5 * std::max(1.0, std::abs(numerical)));
  // Weights alone, from an x without gradients.
  const auto parameters = model->parameters();
  if (parameters.empty()) return;
  const auto parts = gradients(model->forward_log_det(x, SeriesLogDet{.terms = 5}).second.value.sum(), parameters);
  for (const auto& part : parts) EXPECT_TRUE(part.isfinite().all().item<bool>());
}

TEST_P(BijectionContract, KeepsItsPromisedConstant) {
  auto* block = dynamic_cast<InvertibleResidualImpl*>(model_.get());
  if (block == nullptr || GetParam().promised_constant == 0) return;
  const auto model = in_double();
  const auto x = input(at::kDouble).clamp(-1, 1);
  at::NoGradGuard no_grad;
  const auto linearization = block->branch().freeze(x).linearize(x);
  const auto norms = at::linalg_matrix_norm(dense_jacobian(*linearization, x), 2);
  EXPECT_LE(norms.max().item<double>(), GetParam().promised_constant * (1 + 1e-3));
  EXPECT_NEAR(local_constants(*linearization, x, {.tolerance = 1e-9, .max_iterations = 2000}).largest(), norms.max().item<double>(), 1e-4);
}

TEST_P(BijectionContract, LinearizationEqualsAutograd) {
  auto* block = dynamic_cast<InvertibleResidualImpl*>(model_.get());
  if (block == nullptr) return;
  const auto model = in_double();
  const auto x = input(at::kDouble);
  const auto frozen = block->branch().freeze(x);
  const auto own = frozen.linearize(x);
  const auto automatic = autograd_linearization([&](const at::Tensor& t) { return block->branch().forward(t); }, x);
  const auto v = random(x.sizes(), 12);
  EXPECT_LT(relative_difference(own->value(), automatic->value()), 1e-12);
  EXPECT_LT(relative_difference(frozen.value(x), automatic->value()), 1e-12);
  EXPECT_LT(relative_difference(own->jvp(v), automatic->jvp(v)), 1e-10);
  EXPECT_LT(relative_difference(own->vjp(v), automatic->vjp(v)), 1e-10);
  EXPECT_FALSE(own->jvp(v).requires_grad());
  EXPECT_FALSE(own->vjp(v).requires_grad());
}

TEST_P(BijectionContract, SavedAndLoadedItIsTheSame) {
  const auto path = std::filesystem::temp_directory_path() / ("invattn_contract_" + GetParam().name + ".safetensors");
  for (const auto type : {at::kFloat, at::kDouble}) {
    model_->to(type);
    save(path, *model_);
    const auto loaded = load(path);
    EXPECT_EQ(loaded->describe(), model_->describe());
    EXPECT_FALSE(loaded->is_training());
    const auto x = input(type);
    EXPECT_EQ(max_difference(loaded->forward(x), model_->forward(x)), 0);
  }
  std::filesystem::remove(path);
}

TEST_P(BijectionContract, PrintsTheOptionsThatMadeIt) {
  EXPECT_EQ(make_bijection(model_->describe())->describe(), model_->describe());
  std::ostringstream text;
  text << *model_;
  EXPECT_FALSE(text.str().empty());
}

TEST_P(BijectionContract, ProjectingTwiceIsProjectingOnce) {
  model_->project();
  const auto x = input(at::kFloat);
  const auto once = model_->forward(x);
  model_->project();
  EXPECT_EQ(max_difference(model_->forward(x), once), 0);
}

TEST_P(BijectionContract, BadInputIsNamed) {
  const auto usage_error = [&](const at::Tensor& x) {
    for (const auto& call : {std::function<void()>([&] { model_->forward(x); }), std::function<void()>([&] { model_->inverse(x); }),
                             std::function<void()>([&] { model_->forward_log_det(x); })}) {
      try {
        call();
        ADD_FAILURE() << "no error for " << (x.defined() ? x.toString() : "undefined");
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUsage);
        EXPECT_NE(std::string(error.what()).find("expected"), std::string::npos);
      }
    }
  };
  usage_error({});
  usage_error(at::zeros({3}));
  if (GetParam().takes_images) usage_error(at::zeros({3, 4}));
  usage_error(at::zeros(GetParam().shape, at::kInt));
  usage_error(at::zeros(GetParam().shape, at::kHalf));
}

}  // namespace invattn::testing

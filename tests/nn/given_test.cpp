#include "invattn/nn/given.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/real_positions.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "tests/support/numerics.h"

// What a mask does to any bijection is in the contract test; here is what belongs to one class alone.
namespace invattn {
namespace {

using testing::gradients;
using testing::max_difference;
using testing::random;
using testing::relative_difference;

/// The same numbers in every run, others with --gtest_random_seed=N.
uint64_t of_run(uint64_t seed) { return seed + 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)); }

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

InvertibleAttention small_block(const AttentionOptions& options) {
  at::manual_seed(static_cast<int64_t>(of_run(5)));
  InvertibleAttention block(options);
  const at::NoGradGuard no_grad;
  for (auto& parameter : block->parameters()) parameter.mul_(0.6);
  return block;
}

at::Tensor alone(const at::Tensor& x, int64_t b, int64_t length) { return x.slice(0, b, b + 1).slice(1, 0, length); }

TEST(Given, LengthsAreMasks) {
  const auto given = Given::of_lengths(at::tensor({2, 0, 3}, at::kLong), 3);
  const auto expected = at::tensor({1, 1, 0, 0, 0, 0, 1, 1, 1}, at::kInt).view({3, 3}).to(at::kBool);
  EXPECT_TRUE(given.mask.equal(expected));
  EXPECT_EQ(Given::of_lengths(at::zeros({0}, at::kLong), 4).mask.sizes(), (at::IntArrayRef{0, 4}));
  EXPECT_EQ(Given::of_lengths(at::zeros({2}, at::kLong), 0).mask.sizes(), (at::IntArrayRef{2, 0}));
  EXPECT_TRUE(contains(error_of([] { Given::of_lengths(at::tensor({2, 4}, at::kLong), 3); }), "lengths from 0 to the 3 positions"));
  EXPECT_TRUE(contains(error_of([] { Given::of_lengths(at::tensor({-1, 2}, at::kLong), 3); }), "got -1 to 2"));
  EXPECT_TRUE(contains(error_of([] { Given::of_lengths(at::tensor({1.0, 2.0}), 3); }), "(int64)"));
  EXPECT_TRUE(contains(error_of([] { Given::of_lengths(at::zeros({1, 2}, at::kLong), 3); }), "one length"));
  EXPECT_TRUE(contains(error_of([] { Given::of_lengths({}, 3); }), "undefined"));
}

TEST(Given, RealPositionsGoOutAndComeBack) {
  const auto mask = random({9, 6}, of_run(1)) > 0.3;
  mask[2].fill_(false);
  mask[4].fill_(true);
  const auto x = random({9, 6, 2}, of_run(2));
  const RealPositions real(mask, x.device());
  auto batches = real.batches(x);
  ASSERT_EQ(batches.size(), real.lengths().size());
  EXPECT_TRUE(std::is_sorted(real.lengths().begin(), real.lengths().end()));
  std::vector<at::Tensor> numbers;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto& samples = real.samples()[i];
    ASSERT_EQ(batches[i].sizes(), (at::IntArrayRef{samples.size(0), real.lengths()[i], 2}));
    for (int64_t row = 0; row < samples.size(0); ++row) {
      const auto b = samples[row].item<int64_t>();
      EXPECT_TRUE(batches[i][row].equal(x[b].index({mask[b]})));
    }
    numbers.push_back(batches[i].flatten(1).sum(1));
    batches[i] = batches[i] * 2;
  }
  const auto real_part = mask.unsqueeze(2).to(at::kDouble);
  EXPECT_EQ(max_difference(real.joined(batches, x), x * (1 + real_part)), 0);
  const auto sums = real.per_sample(numbers, at::full({9}, 7.0, at::kDouble));
  EXPECT_LT(max_difference(sums, (x * real_part).flatten(1).sum(1) + 7 * mask.any(1).logical_not()), 1e-12);
}

TEST(Given, ASequenceIsAnImageWithOneRow) {
  for (const auto& [kind, name] : EnumNames<AttentionKind>::kNames) {
    auto block = small_block({.channels = 4, .kind = kind, .bottleneck = 2});
    const auto x = random({3, 5, 4}, of_run(1), at::kFloat) * 0.5;
    const auto image = x.transpose(1, 2).unsqueeze(2);
    const auto back = [](const at::Tensor& of_image) { return of_image.squeeze(2).transpose(1, 2); };
    EXPECT_LT(max_difference(block->forward(x), back(block->forward(image))), 1e-6) << name;
    const auto y = block->forward(x).detach();
    EXPECT_LT(max_difference(block->inverse(y).x, back(block->inverse(y.transpose(1, 2).unsqueeze(2)).x)), 1e-6) << name;
    EXPECT_LT(max_difference(block->attention().response(x), block->attention().response(image)), 1e-6) << name;
    EXPECT_LT(max_difference(block->attention().response(x, 2), block->attention().response(image, 2)), 1e-6) << name;
  }
}

TEST(Given, WithoutARealPositionABlockIsTheIdentity) {
  auto block = small_block({.channels = 4});
  for (const auto& sizes : {std::vector<int64_t>{2, 3, 4}, std::vector<int64_t>{2, 0, 4}, std::vector<int64_t>{0, 3, 4}}) {
    const auto x = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), at::kFloat).requires_grad_(true);
    const Given none = Given::of_lengths(at::zeros({sizes[0]}, at::kLong), sizes[1]);
    const auto unchanged = [&](const at::Tensor& y) { return at::allclose(y, x, 0, 0, /*equal_nan=*/true); };
    for (const LogDetOptions& options : {LogDetOptions(SeriesLogDet{}), LogDetOptions(ExactLogDet{}), LogDetOptions(RouletteLogDet{})}) {
      const auto [y, log_det] = block->forward_log_det(x, options, none);
      EXPECT_TRUE(unchanged(y));
      EXPECT_EQ(max_difference(log_det.value, at::zeros({sizes[0]})), 0);
      EXPECT_EQ(log_det.sign.sizes(), (at::IntArrayRef{sizes[0]}));
      EXPECT_EQ(max_difference(gradients(log_det.value.sum(), {x})[0], at::zeros(sizes)), 0);
    }
    const auto [back, report] = block->inverse(x.detach(), NewtonKrylovOptions{.on_failure = OnFailure::kThrow}, none);
    EXPECT_TRUE(unchanged(back));
    EXPECT_TRUE(report.usable());
    EXPECT_EQ(report.count(SampleStatus::kExact), sizes[0]);
    EXPECT_EQ(report.method, "newton-krylov");
  }
  // Without a mask nothing says that it may be empty.
  EXPECT_TRUE(contains(error_of([&] { block->forward(at::zeros({2, 0, 4})); }), "at least one position"));
}

TEST(Given, WhatHasNoUseForAMaskRefusesIt) {
  const Given given{at::ones({2, 4}, at::kBool)};
  const auto refused = [&](BijectionImpl& bijection, const at::Tensor& x) {
    EXPECT_TRUE(contains(error_of([&] { bijection.forward(x, given); }), "expected no mask"));
    EXPECT_TRUE(contains(error_of([&] { bijection.forward_log_det(x, SeriesLogDet{}, given); }), "expected no mask"));
    EXPECT_TRUE(contains(error_of([&] { bijection.inverse(x, AndersonOptions{}, given); }), "expected no mask"));
  };
  const auto images = at::zeros({2, 4, 2, 2});
  const auto sequences = at::zeros({2, 4, 4});
  const auto branch = std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = 4, .height = 2, .width = 2, .hidden = 3});
  InvertibleResidual convolution(branch);
  for (const auto& x : {images, sequences}) {
    refused(*Squeeze(), x);
    refused(*convolution, x);
    refused(*Flow(FlowOptions{.channels = 4, .height = 2, .width = 2, .blocks = {1}, .hidden = 3}), x);
  }
  refused(*Sequential{ActNorm(ActNormOptions{.channels = 4}), Squeeze()}, sequences);
  EXPECT_TRUE(contains(error_of([&] { branch_value(*branch, images, given); }), "expected no mask"));
  EXPECT_TRUE(contains(error_of([&] { branch_linearization(*branch, images, given); }), "expected no mask"));
}

TEST(Given, TorchsSequentialCallsWithXAlone) {
  auto block = small_block({.channels = 4});
  const auto x = random({2, 4, 2, 2}, of_run(1), at::kFloat);
  torch::nn::Sequential network(block, ActNorm(ActNormOptions{.channels = 4}));
  network->eval();
  EXPECT_EQ(max_difference(network->forward(x), block->forward(x)), 0);
}

TEST(Given, LengthsHaveProbesOfTheirOwn) {
  auto block = small_block({.channels = 4, .kind = AttentionKind::kDotProduct});
  block->to(at::kDouble);
  const auto x = random({1, 6, 4}, of_run(1)).repeat({40, 1, 1}) * 0.5;
  const auto given = Given::of_lengths(at::arange(40) % 6 + 1, 6);
  const at::NoGradGuard no_grad;
  const SeriesLogDet series{.terms = 30, .probes = 200, .seed = static_cast<int64_t>(of_run(3))};
  const auto first = block->forward_log_det(x, series, given).second;
  EXPECT_EQ(max_difference(first.value, block->forward_log_det(x, series, given).second.value), 0) << "a seed is a seed";
  const auto exact = block->forward_log_det(x, ExactLogDet{}, given).second.value;
  EXPECT_TRUE(((first.value - exact).abs() <= 5.5 * first.standard_error + 1e-3).all().item<bool>()) << first.value - exact;
  const RouletteLogDet roulette{.minimum_terms = 8, .probes = 100, .seed = 3};
  const auto drawn = block->forward_log_det(x, roulette, given).second;
  EXPECT_TRUE(((drawn.value - exact).abs() <= 6 * drawn.standard_error + 1e-6).all().item<bool>()) << drawn.value - exact;
  const auto bare = block->forward_log_det(x, SeriesLogDet{.value_only = true}, given).second;
  EXPECT_TRUE(bare.value.defined());
  EXPECT_FALSE(bare.sign.defined());
  EXPECT_FALSE(bare.standard_error.defined());
}

TEST(Given, RecomputedLogDeterminantsHaveTheSameGradients) {
  const auto x = random({5, 6, 4}, of_run(1), at::kFloat) * 0.5;
  const auto given = Given::of_lengths(at::tensor({6, 2, 0, 2, 5}, at::kLong), 6);
  std::vector<std::vector<at::Tensor>> found;
  for (const bool recompute : {false, true}) {
    Sequential chain{small_block({.channels = 4}), small_block({.channels = 4, .kind = AttentionKind::kDotProduct})};
    chain->recompute(recompute);
    const auto [y, log_det] = chain->forward_log_det(x, SeriesLogDet{.terms = 4, .seed = 2}, given);
    found.push_back(gradients(y.square().sum() + log_det.value.sum(), chain->parameters()));
    found.back().push_back(log_det.value);
  }
  for (std::size_t i = 0; i < found[0].size(); ++i) EXPECT_LT(relative_difference(found[1][i], found[0][i]), 1e-5) << i;
}

TEST(Given, ActNormStartsFromRealPositions) {
  const auto given = Given::of_lengths(at::tensor({4, 1, 0, 3}, at::kLong), 4);
  auto x = random({4, 4, 3}, of_run(1), at::kFloat) * 3 + 1;
  x.index_put_({given.mask.logical_not()}, 1e6);
  for (const double follow : {0.0, 0.5}) {
    ActNorm norm(ActNormOptions{.channels = 3, .follow = follow});
    norm->forward(x, Given::of_lengths(at::zeros({4}, at::kLong), 4));  // of which nothing can be learned
    for (int step = 0; step < 3; ++step) {
      const auto real = norm->forward(x, given).index({given.mask});
      EXPECT_LT(max_difference(real.mean(0), at::zeros({3})), 1e-5);
      EXPECT_LT(max_difference(real.square().mean(0), at::ones({3})), 1e-4);
    }
  }
}

TEST(Given, InverseReportsAreOfTheWholeBatch) {
  auto block = small_block({.channels = 4, .kind = AttentionKind::kDotProduct});
  const auto given = Given::of_lengths(at::tensor({5, 2, 0, 2, 3}, at::kLong), 5);
  auto y = random({5, 5, 4}, of_run(1), at::kFloat) * 0.3;
  y[3][0][0] = std::numeric_limits<double>::quiet_NaN();
  const at::NoGradGuard no_grad;
  for (const SolverOptions& options : {SolverOptions(AndersonOptions{.trace = true}), SolverOptions(FixedPointOptions{.trace = true}),
                                       SolverOptions(NewtonKrylovOptions{.trace = true}), SolverOptions(AndersonOptions{})}) {
    const auto [x, report] = block->inverse(y, options, given);
    ASSERT_EQ(report.batch(), 5);
    EXPECT_EQ(report.method, method_name(options));
    EXPECT_EQ(report.statuses[2], SampleStatus::kExact);
    EXPECT_EQ(report.statuses[3], SampleStatus::kNotFinite);
    EXPECT_EQ(report.converged_count(), 4);
    EXPECT_GT(report.tolerance, 0);
    EXPECT_GT(report.evaluations, 0);
    for (const int64_t b : {0, 1, 4}) {
      const auto of_one = block->inverse(alone(y, b, given.mask[b].sum().item<int64_t>()), options).report;
      EXPECT_EQ(report.iterations[b].item<int64_t>(), of_one.iterations[0].item<int64_t>()) << b;
      EXPECT_LE(report.residual[b].item<double>(), report.tolerance) << b;
    }
    for (const auto& step : report.trace) EXPECT_EQ(step.sizes(), (at::IntArrayRef{5}));
    if (!report.trace.empty()) EXPECT_LE(report.trace.back()[0].item<double>(), report.tolerance);
  }
  // A failure is of the sample that it is in the whole batch.
  try {
    block->inverse(y, AndersonOptions{.on_failure = OnFailure::kThrow}, given);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotConverged);
    EXPECT_TRUE(contains(error.what(), "4/5 converged")) << error.what();
    EXPECT_TRUE(contains(error.what(), "(sample 3)")) << error.what();
  }
}

TEST(Given, StrictBoundsAreOfThePositionsAtHand) {
  AttentionOptions options = attention_preset(AttentionPreset::kStrict, AttentionKind::kDotProduct, 4);
  options.start = Start::kUniform;
  options.outside = OutsideDomain::kReport;
  auto block = small_block(options);
  const auto given = Given::of_lengths(at::tensor({6, 2, 2, 1}, at::kLong), 6);
  auto y = random({4, 6, 4}, of_run(1), at::kFloat) * 0.1;
  y[2] += 5;
  const at::NoGradGuard no_grad;
  const auto report = block->inverse(y, AndersonOptions{}, given).report;
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_TRUE(contains(report.notes[0], "sequences of length 2: 1 of 2 samples lie outside")) << report.notes[0];
}

TEST(Given, TheGuardSeesRealPositionsAlone) {
  for (const auto& [kind, name] : EnumNames<AttentionKind>::kNames) {
    const std::vector<int64_t> lengths{5, 2, 0, 2, 3};
    const auto given = Given::of_lengths(at::tensor(lengths, at::kLong), 5);
    const auto x = random({5, 5, 4}, of_run(1), at::kFloat) + 1e3 * given.mask.logical_not().unsqueeze(2);
    at::manual_seed(static_cast<int64_t>(of_run(7)));
    InvertibleAttention block(AttentionOptions{.channels = 4, .kind = kind, .bottleneck = 1, .value_constant = 0, .output_constant = 0});
    block->branch().scale_by(at::scalar_tensor(40.0));
    Guard guard(*block, {.weight = 1, .fraction = 1, .iterations = 200});
    block->forward(x, given);
    const auto penalty = guard.penalty();
    const auto found = gradients(penalty, block->parameters());

    const auto constant_of = [&](int64_t b) {
      const auto own = alone(x, b, lengths[static_cast<std::size_t>(b)]);
      return local_constants(*branch_linearization(block->branch(), own), own, {.tolerance = 1e-12, .max_iterations = 40}).largest();
    };
    double expected = 0;
    double largest = 0;
    for (int64_t b = 0; b < 5; ++b) {
      if (lengths[static_cast<std::size_t>(b)] == 0) continue;
      const double constant = constant_of(b);
      largest = std::max(largest, constant);
      expected += std::pow(std::max(0.0, constant - 0.85), 2) / 5;
    }
    ASSERT_GT(expected, 0) << name;
    EXPECT_NEAR(penalty.item<double>(), expected, 2e-2 * std::max(1.0, expected)) << name;
    EXPECT_NEAR(guard.last_largest(), largest, 1e-2 * largest) << name;
    EXPECT_GT(found.back().abs().sum().item<double>() + found.front().abs().sum().item<double>(), 0) << name;

    // Only padding: nothing to hold, and no error.
    block->forward(x, Given::of_lengths(at::zeros({5}, at::kLong), 5));
    EXPECT_EQ(guard.penalty().item<double>(), 0);

    const auto certificates =
        guard.finish([&](const at::Tensor& batch) { block->forward(batch, given); }, {x}, "five sequences, one of them empty");
    ASSERT_EQ(certificates.size(), 1U);
    EXPECT_LE(certificates[0].constant, 0.9);
    EXPECT_GT(certificates[0].scale, 0);
    EXPECT_LT(certificates[0].scale, 1);
    for (int64_t b = 0; b < 5; ++b) {
      if (lengths[static_cast<std::size_t>(b)] > 0) EXPECT_LE(constant_of(b), 0.9) << name;
    }
    const at::NoGradGuard no_grad;
    const auto report = block->inverse(block->forward(x, given), AndersonOptions{.tolerance = 1e-6}, given).report;
    EXPECT_TRUE(report.usable()) << report.full();
  }
}

TEST(Given, TheGuardsVectorsFollowBatchesOfOtherLengths) {
  at::manual_seed(static_cast<int64_t>(of_run(7)));
  InvertibleAttention block(AttentionOptions{.channels = 4, .kind = AttentionKind::kDotProduct, .value_constant = 0, .output_constant = 0});
  block->branch().scale_by(at::scalar_tensor(40.0));
  const auto x = random({4, 8, 4}, of_run(1), at::kFloat);
  const auto lengths = at::tensor({5, 2, 3, 4}, at::kLong);
  Guard guard(*block, {.fraction = 1, .iterations = 1});
  const auto places = at::arange(4);
  for (int step = 0; step < 60; ++step) {  // each padded to something else: one iteration a step is enough only if vectors are kept
    const int64_t positions = 5 + step % 4;
    block->forward(x.slice(1, 0, positions), Given::of_lengths(lengths, positions));
    guard.penalty(places);
  }
  const auto measured = local_constants(*branch_linearization(block->branch(), x, Given::of_lengths(lengths, 8)), x,
                                        {.tolerance = 1e-9, .max_iterations = 60});
  EXPECT_NEAR(guard.last_largest(), measured.largest(), 0.02 * measured.largest());
}

TEST(Given, TheValueOfABranchIsZeroAtPadding) {
  Attention plain(attention_preset(AttentionPreset::kPlain, AttentionKind::kEmbeddedGaussian, 4));
  const auto given = Given::of_lengths(at::tensor({3, 0, 5}, at::kLong), 5);
  const auto x = random({3, 5, 4}, of_run(1), at::kFloat);
  const auto g = branch_value(*plain, x, given);
  EXPECT_EQ(g.index({given.mask.logical_not()}).abs().max().item<double>(), 0);
  EXPECT_LT(max_difference(g.slice(0, 0, 1).slice(1, 0, 3), plain->forward(alone(x, 0, 3))), 1e-6);
  EXPECT_LT(max_difference(g[2], plain->forward(x.slice(0, 2, 3))[0]), 1e-6);
  const auto at_x = branch_linearization(*plain, x, given);
  EXPECT_LT(max_difference(at_x->value(), g), 1e-6);
  const auto v = random(x.sizes(), of_run(2), at::kFloat), u = random(x.sizes(), of_run(3), at::kFloat);
  EXPECT_NEAR((at_x->jvp(v) * u).sum().item<double>(), (at_x->vjp(u) * v).sum().item<double>(), 1e-3);
  EXPECT_EQ(at_x->vjp(u).index({given.mask.logical_not()}).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace invattn

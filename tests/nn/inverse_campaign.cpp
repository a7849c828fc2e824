// nn_inverse_campaign: is any inverse wrong without saying so? Blocks and small flows of every kind are made at random, inverted, and held
// against their reports and certificates (docs/results/robustness.md). `make inverses` runs it; `make test` runs a short one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>
#include <CLI/CLI.hpp>

#include "invattn/core/error.h"
#include "invattn/data/dead_leaves.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/ops/kernels.h"
#include "tests/nn/rounded_branch.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

constexpr int64_t kBatch = 4;

constexpr std::array kInputs{"images", "large", "constant", "near ties", "ascent on the local constant", "images through a flow"};

/// An error more than this many times what is left of the equation: no g of constant 0.99 or less explains it.
constexpr double kWrong = 100;

/// What was seen of one row of the table.
struct Tally {
  int64_t inversions = 0;
  int64_t converged = 0;
  int64_t covered = 0;           // converged, by a certificate that speaks of this input
  int64_t unbounded = 0;         // of these: rounding of g that first-order terms do not describe
  double largest_stated = 0;     // error / bound from the reported residual
  double largest_certified = 0;  // error / bound from what float64 says is left of the equation: 1 where the constant is attained
  int64_t violations = 0;
  int64_t elsewhere = 0;  // covered by a measurement that is right at x, with an error above the bound: g has a larger constant nearby
  int64_t wrong = 0;      // converged, not covered, and another x
};

/// Faults that the campaign has to find, planted where it reads what is promised.
enum class Plant {
  kNothing,
  kResidual,     // reports name half of their residuals
  kCertificate,  // certificates name half of their constants
};

class Campaign {
 public:
  Campaign(uint64_t seed, Plant plant) : seed_(seed), plant_(plant) {}

  void run(int64_t number);
  int64_t inversions() const { return inversions_; }
  int64_t violations() const { return violations_; }
  void print() const;

 private:
  using Row = std::array<std::string, 3>;  // what, policy, type

  int64_t draw(int64_t count) { return std::uniform_int_distribution<int64_t>(0, count - 1)(random_); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[draw(static_cast<int64_t>(values.size()))];
  }

  AttentionOptions draw_attention(AttentionKind kind, Policy policy);
  SolverOptions draw_solver(int64_t method, at::ScalarType type);
  at::Tensor images(int64_t channels, int64_t height, int64_t width);
  std::vector<at::Tensor> inputs(InvertibleResidualImpl& block, int64_t channels, int64_t height, int64_t width, at::ScalarType type);
  void change_weights(BijectionImpl& model, const at::Tensor& x);
  void attention_case(AttentionKind kind, Policy policy, at::ScalarType type);
  void convolution_case(at::ScalarType type);
  void flow_case(at::ScalarType type);
  void block_case(const Row& row, InvertibleResidualImpl& block, const std::vector<at::Tensor>& batches, const std::vector<bool>& measured,
                  at::ScalarType type);
  Solution undo(BijectionImpl& part, const at::Tensor& y, const SolverOptions& options, at::Tensor& error, at::Tensor& covered);
  at::Tensor check(const Row& row, InvertibleResidualImpl& block, const at::Tensor& x, const at::Tensor& y, const Solution& solution,
                   const at::Tensor& covered, const at::Tensor& error_of_y);
  void violation(const Row& row, const std::string& what);

  uint64_t seed_;
  Plant plant_;
  int64_t number_ = 0;
  std::mt19937_64 random_;
  std::map<Row, Tally> tallies_;
  Row flow_row_;
  std::size_t input_ = 0;               // of kInputs
  std::array<int64_t, 6> elsewhere_{};  // Tally::elsewhere by input
  int64_t seen_at_found_ = 0;           // of these: the local constant of what was found is above the certificate's
  int64_t inversions_ = 0;
  int64_t violations_ = 0;
};

at::Tensor norms(const at::Tensor& samples) { return at::linalg_vector_norm(samples.to(at::kDouble).flatten(1), 2, at::IntArrayRef{1}); }

std::string short_name(at::ScalarType type) { return type == at::kFloat ? "float32" : "float64"; }

/// (B) of bool: samples that the certificate of the block speaks of. `measured`: they are what a measurement was made on.
at::Tensor covered_by(const InvertibleResidualImpl& block, const at::Tensor& x, const at::Tensor& found, bool measured) {
  const auto certificate = block.certificate();
  bool all = certificate.contraction();
  if (certificate.basis == Basis::kMeasured && certificate.samples > 0) all = all && measured;
  const double radius = certificate.domain_radius > 0 ? certificate.domain_radius : std::numeric_limits<double>::infinity();
  const auto inside = [radius](const at::Tensor& some) { return some.abs().flatten(1).amax(1) <= radius; };
  return inside(x).logical_and(inside(found)).logical_and(at::full({x.size(0)}, all, at::kBool));
}

/// The weights of the residual branches. Those of the scales between them are no matter of an inverse's iteration.
std::vector<at::Tensor> branch_weights(const torch::nn::Module& model) {
  std::vector<at::Tensor> result;
  for (const auto& item : model.named_parameters()) {
    if (item.key().find("branch.") != std::string::npos) result.push_back(item.value());
  }
  return result;
}

/// The local constant at x, one sample (C, H, W).
double constant_at(BranchImpl& branch, const at::Tensor& x) {
  const auto point = x.unsqueeze(0);
  return local_constants(*branch.freeze(point).linearize(point), point, {.tolerance = 1e-6, .max_iterations = 60}).largest();
}

/// Inputs at which the local constant is as large as a few steps of gradient ascent make it.
at::Tensor worst_inputs(BranchImpl& branch, at::Tensor x, double radius) {
  for (int step = 0; step < 8; ++step) {
    const auto linearization = branch.freeze(x).linearize(x);
    const auto v = local_constants(*linearization, x, {.max_iterations = 6}).vectors.to(x.scalar_type());
    const auto u = unit_samples(linearization->jvp(v));
    const auto point = x.detach().requires_grad_(true);
    const auto pulled = testing::gradient((branch.forward(point) * u).sum(), point, /*create_graph=*/true);
    const auto slope = testing::gradient((pulled * v).sum(), point);
    const auto reach = 0.1 * sample_norms(x).clamp_min(0.1);
    const auto next = (x + reach * unit_samples(slope)).clamp(-radius, radius);
    x = at::where(next.isfinite(), next, x).detach();
  }
  return x;
}

AttentionOptions Campaign::draw_attention(AttentionKind kind, Policy policy) {
  const auto channels = pick<int64_t>({1, 2, 3, 8, 12});
  auto preset = policy == Policy::kGuarded ? AttentionPreset::kGuarded : AttentionPreset::kStrict;
  if (policy == Policy::kPaper) preset = pick({AttentionPreset::kPaper, AttentionPreset::kPublishedCode});
  auto options = attention_preset(preset, kind, channels);
  const auto balanced = Normalization::kBalanced;
  options.constant = pick({0.5, 0.9, 0.98});
  options.radius = pick({0.5, 1.0, 3.0});
  options.outside = pick({OutsideDomain::kReport, OutsideDomain::kClip});
  if (preset == AttentionPreset::kPublishedCode || draw(2) == 0) return options;
  options.normalization = pick({Normalization::kColumns, Normalization::kRows, Normalization::kAll, balanced});
  options.phi = pick({Response::kEluPlusOne, Response::kSoftplus, Response::kRelu});
  if (policy == Policy::kStrict && options.phi == Response::kRelu) options.phi = Response::kEluPlusOne;
  options.start = pick({Start::kUniform, Start::kIdentity});
  options.mass = pick({1.0, 0.5, 2.0});
  options.value_constant = options.output_constant = pick({0.9, 3.0});
  return options;
}

SolverOptions Campaign::draw_solver(int64_t method, at::ScalarType type) {
  const double tolerance = type == at::kFloat ? pick({1e-4, 1e-6}) : pick({1e-6, 1e-12});
  if (method == 0) return FixedPointOptions{.tolerance = tolerance};
  if (method == 1) return AndersonOptions{.tolerance = tolerance};
  return NewtonKrylovOptions{.tolerance = tolerance};
}

at::Tensor Campaign::images(int64_t channels, int64_t height, int64_t width) {
  const auto count = kBatch * ((channels + 2) / 3);
  const auto made = dead_leaves({.count = count, .height = height, .width = width, .seed = draw(1 << 30)});
  const auto scaled = made.to(at::kDouble) / 256 - 0.5;
  return scaled.view({kBatch, -1, height, width}).narrow(1, 0, channels).contiguous();
}

/// Batches of one kind each: images; the same larger; constant ones; near ties; and where the local constant is large.
std::vector<at::Tensor> Campaign::inputs(InvertibleResidualImpl& block, int64_t channels, int64_t height, int64_t width,
                                         at::ScalarType type) {
  const auto radius = block.certificate().domain_radius;
  const auto data = images(channels, height, width) * (radius > 0 ? 2 * radius : pick({1.0, 6.0}));
  const auto large = data * std::pow(10.0, std::uniform_real_distribution<>(0.3, 3.0)(random_));
  const auto constant = (2 * at::rand({kBatch, channels, 1, 1}, at::kDouble) - 1).expand_as(data).contiguous();
  // Two values that the positions share, and next to nothing besides.
  const auto groups = at::randint(2, {kBatch, 1, height, width}, at::kDouble) * at::randn({1, channels, 1, 1}, at::kDouble);
  const auto ties = constant / 2 + groups / 4 + pick({0.0, 1e-7, 1e-4}) * at::randn_like(data);
  const double reach = radius > 0 ? radius : 1e6;
  const auto worst = worst_inputs(block.branch(), data.to(type), reach);
  return {data.to(type), large.to(type), constant.to(type), ties.to(type), worst};
}

/// Leaves weights as they are, makes them larger, or trains them a few steps towards y = -x, which no contraction reaches.
void Campaign::change_weights(BijectionImpl& model, const at::Tensor& x) {
  const auto how = draw(4);
  const double factor = pick({3.0, 10.0, 100.0});
  for (int step = 0; how >= 2 && step < 6; ++step) {
    const auto parameters = branch_weights(model);
    const auto y = model.forward(x);
    const auto slopes = testing::gradients((y + x.view_as(y)).square().mean(), parameters);
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].sub_(slopes[i].nan_to_num(0, 0, 0).sign(), how == 2 ? 0.02 : 0.2);
  }
  const at::NoGradGuard no_grad;
  for (auto& weight : branch_weights(model)) weight.mul_(how == 1 ? factor : 1.0);
  model.project();
}

void Campaign::violation(const Row& row, const std::string& what) {
  ++violations_;
  ++tallies_[row].violations;
  std::printf("violation: %s %s %s: %s\n  again: build/tests/nn_inverse_campaign --seed %llu --case %lld\n", row[0].c_str(), row[1].c_str(),
              row[2].c_str(), what.c_str(), static_cast<unsigned long long>(seed_), static_cast<long long>(number_));
  std::fflush(stdout);
}

/// Counts a block's inverse, and returns the bound on |found - x| that holds where it is covered, (B). `error_of_y`: how far y may be from
/// x + g(x) besides rounding. Samples whose bound a measurement did not keep are struck from `covered`.
at::Tensor Campaign::check(const Row& row, InvertibleResidualImpl& block, const at::Tensor& x, const at::Tensor& y,
                           const Solution& solution, const at::Tensor& covered, const at::Tensor& error_of_y) {
  const at::NoGradGuard no_grad;
  const double unit = testing::roundoff(x.scalar_type());
  const auto entries = x[0].numel();
  const at::Tensor& found = solution.x;
  const InverseReport& report = solution.report;
  struct Side {
    at::Tensor left;      // what is left of the equation in float64
    at::Tensor rounding;  // of evaluating that in the type of x
  };
  const auto wide = [](const at::Tensor& some) { return some.to(at::kDouble); };
  const auto side = [&](const at::Tensor& point) -> Side {
    const auto [g, rounding] = testing::rounded(block.branch(), point, unit);
    return {norms(wide(point) + g - wide(y)), norms(rounding) + 2 * unit * norms(wide(point).abs() + g.abs() + wide(y).abs())};
  };
  const auto at_found = side(found);
  const auto at_true = side(x);
  const auto scale = std::sqrt(static_cast<double>(entries)) + norms(y);  // (1 + rms(y)) times the root of the number of entries
  const auto reported = report.residual * scale * (plant_ == Plant::kResidual ? 0.5 : 1.0);
  const auto disagreement = (reported - at_found.left).abs();
  const auto rounding = at_found.rounding + testing::gamma(entries + 8, unit) * reported;
  const auto error = norms(wide(found) - wide(x));
  const double room = 1 - block.certificate().constant * (plant_ == Plant::kCertificate ? 0.5 : 1.0);
  auto stated = (reported + rounding + at_true.rounding + error_of_y) / room;
  const double finer = 0x1p-53 / unit;
  const auto certified = (at_found.left + at_true.left + finer * (rounding + at_true.rounding)) / room;

  auto& tally = tallies_[row];
  for (int64_t i = 0; i < x.size(0); ++i) {
    const auto number = [i](const at::Tensor& some) { return some[i].item<double>(); };
    const auto say = [&](const char* what, const at::Tensor& got, const at::Tensor& allowed) {
      std::array<char, 512> text{};
      std::snprintf(text.data(), text.size(), "%s: got %.6e, allowed %.6e (%s, reported residual %.3e; %s; %s)", what, number(got),
                    number(allowed), report.method.c_str(), report.residual[i].item<double>(), block.certificate().text().c_str(),
                    block.branch().describe().c_str());
      violation(row, text.data());
    };
    ++inversions_;
    ++tally.inversions;
    if (!is_converged(report.statuses[i])) continue;
    ++tally.converged;
    const bool bounded = std::isfinite(number(stated) + number(certified));
    if (bounded && !(number(disagreement) <= number(rounding))) say("residual in float64 against the reported one", disagreement, rounding);
    if (!covered[i].item<bool>()) {
      tally.wrong += number(error) > kWrong * (number(at_found.left) + number(at_true.left) + unit * number(norms(x))) ? 1 : 0;
      continue;
    }
    ++tally.covered;
    if (!bounded) {
      ++tally.unbounded;
      continue;
    }
    const bool holds = number(error) <= number(stated) && number(error) <= number(certified);
    if (const auto certificate = block.certificate(); !holds && certificate.basis == Basis::kMeasured && certificate.samples > 0) {
      // What is left of the equation does not explain the error: by the mean value theorem g has a larger constant somewhere between x and
      // what was found. That breaks a measurement only where it is so at x itself, which was measured up to a tolerance.
      if (constant_at(block.branch(), x[i]) <= certificate.constant * (1 + LocalConstantOptions{}.tolerance)) {
        ++tally.elsewhere;
        ++elsewhere_[static_cast<std::size_t>(input_)];
        seen_at_found_ += constant_at(block.branch(), found[i]) > certificate.constant ? 1 : 0;
        covered[i].fill_(false);
        continue;
      }
    }
    tally.largest_stated = std::max(tally.largest_stated, number(error) / number(stated));
    tally.largest_certified = std::max(tally.largest_certified, number(error) / number(certified));
    if (!(number(error) <= number(stated))) say("error against the stated bound", error, stated);
    if (!(number(error) <= number(certified))) say("error against the certified constant", error, certified);
  }
  return stated;
}

void Campaign::block_case(const Row& row, InvertibleResidualImpl& block, const std::vector<at::Tensor>& batches,
                          const std::vector<bool>& measured, at::ScalarType type) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto& x = batches[i];
    input_ = i;
    for (int64_t method = 0; method < 3; ++method) {
      const KernelsScope kernels(pick({Kernels::kAuto, Kernels::kReference}));
      const at::NoGradGuard no_grad;
      const auto y = block.forward(x);
      const auto solution = block.inverse(y, draw_solver(method, type));
      check(row, block, x, y, solution, covered_by(block, x, solution.x, measured[i]), at::zeros({x.size(0)}, at::kDouble));
    }
  }
}

void Campaign::attention_case(AttentionKind kind, Policy policy, at::ScalarType type) {
  const auto options = draw_attention(kind, policy);
  const auto height = pick<int64_t>({1, 2, 5, 8});
  const auto width = pick<int64_t>({1, 3, 8});
  InvertibleAttention block(options);
  block->to(type);
  change_weights(*block, images(options.channels, height, width).to(type));
  block->eval();
  const auto batches = inputs(*block, options.channels, height, width, type);
  std::vector<bool> measured(batches.size(), false);
  if (policy == Policy::kGuarded) {
    std::vector<at::Tensor> data;
    const auto subset = 1 + draw((1 << batches.size()) - 1);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      measured[i] = ((subset >> i) & 1) != 0;
      if (measured[i]) data.push_back(batches[i]);
    }
    Guard guard(*block);
    guard.finish([&](const at::Tensor& x) { block->forward(x); }, data, "these inputs");
  }
  block_case({std::string(to_string(kind)), std::string(to_string(policy)), short_name(type)}, *block, batches, measured, type);
}

void Campaign::convolution_case(at::ScalarType type) {
  const auto channels = pick<int64_t>({2, 3, 6});
  const auto side = pick<int64_t>({1, 4, 7});
  const auto activation = pick({Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish});
  InvertibleResidual block(std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = channels,
                                                                                .height = side,
                                                                                .width = side,
                                                                                .hidden = pick<int64_t>({3, 16}),
                                                                                .kernel = side > 1 ? 3 : 1,
                                                                                .layers = pick<int64_t>({2, 3}),
                                                                                .activation = activation,
                                                                                .constant = pick({0.5, 0.9, 0.98})}));
  block->to(type);
  block->eval();
  change_weights(*block, images(channels, side, side).to(type));
  const auto batches = inputs(*block, channels, side, side, type);
  block_case({"convolution", "product", short_name(type)}, *block, batches, std::vector<bool>(batches.size(), true), type);
}

/// The inverse of a part of a flow, the last of its parts first, each held against the x it was given on the way forth. `error` is the bound on
/// the distance of y from there, and becomes that of x.
Solution Campaign::undo(BijectionImpl& part, const at::Tensor& y, const SolverOptions& options, at::Tensor& error, at::Tensor& covered) {
  if (auto* chain = dynamic_cast<SequentialImpl*>(&part)) {
    std::vector<InverseReport> reports;
    auto x = y;
    for (auto one = chain->parts().rbegin(); one != chain->parts().rend(); ++one) {
      auto solution = undo(**one, x, options, error, covered);
      x = solution.x;
      reports.push_back(std::move(solution.report));
    }
    return {x, InverseReport::combine(std::move(reports))};
  }
  auto solution = part.inverse(y, options);
  if (auto* block = dynamic_cast<InvertibleResidualImpl*>(&part)) {
    const auto& x = block->recorded();
    const auto here = covered_by(*block, x, solution.x, /*measured=*/true).logical_and(covered);
    auto row = flow_row_;
    row[0] = "blocks of a flow";
    error = check(row, *block, x, y, solution, here, error);
    covered = here;
    return solution;
  }
  // y = (x + shift) exp(log_scale): a few operations each way.
  const auto state = part.named_parameters();
  const auto scale = state["log_scale"].detach().to(at::kDouble).view({1, -1, 1, 1});
  const auto shift = state["shift"].detach().to(at::kDouble).view({1, -1, 1, 1});
  const double unit = testing::roundoff(y.scalar_type());
  const auto magnitude = (y.to(at::kDouble).abs() * (-scale).exp() + shift.abs()) * (1 + scale.abs());
  error = error * (-scale).exp().max().item<double>() + 2 * testing::gamma(8, unit) * norms(magnitude);
  return solution;
}

void Campaign::flow_case(at::ScalarType type) {
  const auto preset = pick({AttentionPreset::kGuarded, AttentionPreset::kStrict});
  Flow flow(FlowOptions{.channels = pick<int64_t>({1, 3}),
                        .height = 8,
                        .width = 8,
                        .pixels = PixelTransform::kNone,
                        .blocks = {1, 1},
                        .hidden = 8,
                        .activation = pick({Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish}),
                        .constant = pick({0.5, 0.9}),
                        .attention = pick({FlowAttention::kGaussian, FlowAttention::kEmbeddedGaussian, FlowAttention::kDotProduct,
                                           FlowAttention::kConcatenation}),
                        .attention_preset = preset,
                        .attention_blocks = {1, 1}});
  flow->to(type);
  const auto x = (images(flow->options().channels, 8, 8) * pick({1.0, 5.0})).to(type);
  flow->forward(x);  // in training mode, which starts the scales
  flow->eval();
  change_weights(*flow, x);
  if (preset == AttentionPreset::kGuarded) {
    Guard guard(*flow);
    guard.finish([&](const at::Tensor& some) { flow->forward(some); }, {x}, "these images");
  }
  for (const auto& module : flow->modules()) {
    if (auto* block = dynamic_cast<InvertibleResidualImpl*>(module.get())) block->record(true);
  }
  input_ = kInputs.size() - 1;
  flow_row_ = {"flow", std::string(to_string(preset)) + " + product", short_name(type)};
  for (int64_t method = 0; method < 3; ++method) {
    const KernelsScope kernels(pick({Kernels::kAuto, Kernels::kReference}));
    const at::NoGradGuard no_grad;
    const auto options = draw_solver(method, type);
    const auto z = flow->forward(x);
    at::Tensor bound = at::zeros({kBatch}, at::kDouble);
    at::Tensor covered = at::ones({kBatch}, at::kBool);
    const auto solution =
        flow->inverse(z, [&](SequentialImpl& blocks, const at::Tensor& y) { return undo(blocks, y, options, bound, covered); });
    const auto error = norms(solution.x.to(at::kDouble) - x.to(at::kDouble));
    auto& tally = tallies_[flow_row_];
    for (int64_t i = 0; i < kBatch; ++i) {
      ++inversions_;
      ++tally.inversions;
      if (!is_converged(solution.report.statuses[i])) continue;
      ++tally.converged;
      if (!covered[i].item<bool>()) continue;
      ++tally.covered;
      const auto [got, allowed] = std::pair(error[i].item<double>(), bound[i].item<double>());
      if (!std::isfinite(allowed)) {
        ++tally.unbounded;
        continue;
      }
      tally.largest_stated = std::max(tally.largest_stated, got / allowed);
      if (!(got <= allowed))
        violation(flow_row_, "error of the whole flow: " + std::to_string(got) + ", allowed " + std::to_string(allowed));
    }
  }
}

/// Case `number` of this seed, whatever ran before.
void Campaign::run(int64_t number) {
  number_ = number;
  std::seed_seq sequence{seed_, static_cast<uint64_t>(number)};
  random_.seed(sequence);
  at::manual_seed(random_());
  constexpr std::array kKinds{AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct,
                              AttentionKind::kConcatenation};
  constexpr std::array kPolicies{Policy::kGuarded, Policy::kStrict, Policy::kPaper};
  const auto type = number % 2 == 0 ? at::kFloat : at::kDouble;
  const auto what = static_cast<std::size_t>(number / 2 % 14);
  if (what == 12) return convolution_case(type);
  if (what == 13) return flow_case(type);
  attention_case(kKinds[what % 4], kPolicies[what / 4], type);
}

void Campaign::print() const {
  std::printf(
      "\n| what | policy | type | inversions | converged | covered by a certificate | rounding unbounded | largest error / stated bound | "
      "largest error / certified bound | violations | measured, bound broken | not covered, another x "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  const auto line = [](const Row& row, const Tally& tally) {
    const auto whole = [](int64_t value) { return static_cast<long long>(value); };
    std::printf("| %s | %s | %s | %lld | %lld | %lld | %lld | %.3f | %.3f | %lld | %lld | %lld |\n", row[0].c_str(), row[1].c_str(),
                row[2].c_str(), whole(tally.inversions), whole(tally.converged), whole(tally.covered), whole(tally.unbounded),
                tally.largest_stated, tally.largest_certified, whole(tally.violations), whole(tally.elsewhere), whole(tally.wrong));
  };
  Tally all;
  for (const auto& [row, tally] : tallies_) {
    line(row, tally);
    all.inversions += tally.inversions;
    all.converged += tally.converged;
    all.covered += tally.covered;
    all.unbounded += tally.unbounded;
    all.largest_stated = std::max(all.largest_stated, tally.largest_stated);
    all.largest_certified = std::max(all.largest_certified, tally.largest_certified);
    all.violations += tally.violations;
    all.elsewhere += tally.elsewhere;
    all.wrong += tally.wrong;
  }
  line({"all", "", ""}, all);
  std::printf("\nmeasured, bound broken, by input:");
  for (std::size_t i = 0; i < kInputs.size(); ++i) std::printf(" %s %lld;", kInputs[i], static_cast<long long>(elsewhere_[i]));
  std::printf(" local constant above the certificate's at what was found: %lld\n", static_cast<long long>(seen_at_found_));
}

}  // namespace
}  // namespace invattn

int main(int argc, char** argv) {
  CLI::App app(
      "Inverts blocks and flows made at random, and holds every result against its report and certificate. Exit code 3: one did not hold.");
  uint64_t seed = 0;
  int64_t inversions = 100000;
  std::optional<int64_t> only;
  app.add_option("--seed", seed, "of all cases")->capture_default_str();
  app.add_option("--inversions", inversions, "stop after the case with which there are so many")->capture_default_str();
  app.add_option("--case", only, "this case alone");
  const std::map<std::string, invattn::Plant> plants{{"residual", invattn::Plant::kResidual},
                                                     {"certificate", invattn::Plant::kCertificate}};
  invattn::Plant plant = invattn::Plant::kNothing;
  app.add_option("--plant", plant, "a fault that has to be found: reports name half of their residuals, or certificates of their constants")
      ->transform(CLI::CheckedTransformer(plants));
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);  // sums in the same order on every machine
  invattn::Campaign campaign(seed, plant);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  int64_t number = only.value_or(0);
  try {
    if (only) campaign.run(*only);
    for (; !only && campaign.inversions() < inversions; ++number) campaign.run(number);
  } catch (const invattn::Error& error) {
    std::cerr << "case " << number << ": " << error.what() << "\n";
    return static_cast<int>(error.kind());
  }
  campaign.print();
  return campaign.violations() > 0 ? 3 : 0;
}

#include "invattn/logdet/estimators.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/logdet/branch_products.h"

namespace invattn {
namespace {

/// A value computed elsewhere, with the gradient of `surrogate`.
/// The Neumann vector inside the surrogate is a constant to autograd, so that a second derivative would be silently wrong: it is refused.
class WithGradientOf : public torch::autograd::Function<WithGradientOf> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& value, const at::Tensor& /*surrogate*/) {
    return value.view_as(value);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list outer) {
    require(!at::GradMode::is_enabled(), "log_det",
            "expected first derivatives only, got a backward pass with create_graph: the Neumann gradient cannot be differentiated again. ",
            "Use gradient=series or ExactLogDet.");
    return {at::Tensor(), outer[0]};
  }
};

/// <a, b> of each sample: (B)
at::Tensor inner_products(const at::Tensor& a, const at::Tensor& b) {
  auto product = a * b;
  if (product.dim() == 1) return product;
  std::vector<int64_t> inside(static_cast<std::size_t>(product.dim() - 1));
  std::iota(inside.begin(), inside.end(), 1);
  return product.sum(inside);
}

/// (B) or (1) -> (B, 1, ..., 1), to multiply samples by.
at::Tensor as_sample_factor(const at::Tensor& factor, const at::Tensor& x) {
  std::vector<int64_t> sizes(x.dim(), 1);
  sizes[0] = factor.size(0);
  return factor.view(sizes);
}

/// `power`, no longer than the probe of its sample.
at::Tensor shortened(const at::Tensor& power, const at::Tensor& probe) {
  at::Tensor share;
  {
    const at::NoGradGuard no_graph;
    // A product of length 0 gives infinity or, beside an empty probe, no number: 1 both times.
    share = (inner_products(probe, probe) / inner_products(power, power)).nan_to_num_(1).clamp_max_(1).sqrt_();
  }
  return power * as_sample_factor(share, power);
}

double alternating_sign(int64_t k) { return k % 2 == 1 ? 1.0 : -1.0; }

/// The weights of a draw's terms: numbers of the host where all samples have the same, so that no device has to be told.
class Weights {
 public:
  explicit Weights(const ProbeDraw& draw) {
    if (draw.weights.size(1) == 1) {
      const auto there = draw.weights.to(at::kCPU, at::kDouble).contiguous();
      common_.assign(there.const_data_ptr<double>(), there.const_data_ptr<double>() + there.numel());
    } else {
      each_ = draw.weights.to(draw.probe.options());
    }
  }

  bool are_common() const { return !common_.empty(); }
  double common(int64_t k) const { return common_[static_cast<std::size_t>(k - 1)]; }

  /// factor x the weight of term k x numbers of each sample, (B).
  at::Tensor times(int64_t k, double factor, const at::Tensor& numbers) const {
    return are_common() ? numbers * (factor * common(k)) : each_[k - 1] * factor * numbers;
  }
  /// Adds factor x the weight of term k x vectors to `sum`.
  void add(at::Tensor& sum, int64_t k, double factor, const at::Tensor& vectors) const {
    if (are_common()) {
      sum.add_(vectors, factor * common(k));
    } else {
      sum.addcmul_(vectors, as_sample_factor(each_[k - 1], vectors), factor);
    }
  }

 private:
  std::vector<double> common_;
  at::Tensor each_;  // (terms, B)
};

at::Tensor estimate_through_graph(BranchProducts& products, const ProbeDraw& draw, bool bounded) {
  const Weights weights(draw);
  auto value = at::zeros({draw.probe.size(0)}, draw.probe.options());
  auto power = draw.probe;  // (J')^k v
  for (int64_t k = 1; k <= draw.weights.size(0); ++k) {
    power = products.vjp_with_graph(power);
    if (bounded) power = shortened(power, draw.probe);
    value = value + weights.times(k, alternating_sign(k) / static_cast<double>(k), inner_products(power, draw.probe));
  }
  return value;
}

/// Terms first + 1 to last of the series, without a graph. `power`, (J')^first v, becomes (J')^last v; where `neumann` is given, terms first
/// to last - 1 of w = sum_{k=0..} (-1)^k weights[k] (J')^k v are added to it, from the same products.
at::Tensor estimate_terms(BranchProducts& products, const ProbeDraw& draw, bool bounded, int64_t first, int64_t last, at::Tensor& power,
                          at::Tensor* neumann) {
  const Weights weights(draw);
  auto series = at::zeros_like(draw.probe);  // sum_k (-1)^(k+1)/k weights[k] (J')^k v: added up before the one inner product
  for (int64_t k = first + 1; k <= last; ++k) {
    if (neumann != nullptr) weights.add(*neumann, k, alternating_sign(k), power);
    power = products.vjp(power);
    if (bounded) power = shortened(power, draw.probe);
    weights.add(series, k, alternating_sign(k) / static_cast<double>(k), power);
  }
  return inner_products(series, draw.probe);
}

/// Series and Neumann vector of all terms, by what the problem knows of such sums.
std::pair<at::Tensor, at::Tensor> known_sums(const PowerSums& sums, const ProbeDraw& draw, const Weights& weights) {
  const int64_t terms = draw.weights.size(0);
  std::vector<double> series{0};
  std::vector<double> neumann;
  for (int64_t k = 1; k <= terms; ++k) {
    series.push_back(alternating_sign(k) / static_cast<double>(k) * weights.common(k));
    neumann.push_back(alternating_sign(k) * weights.common(k));
  }
  neumann.push_back(0);
  return sums(draw.probe, series, neumann);
}

/// The value alone. Once half of the samples at work have come to the end of their series they are left out, so that a batch costs about
/// twice its mean number of terms and not its largest. `products` are those of all samples.
at::Tensor estimate_value(const LogDetProblem& problem, BranchProducts& products, const ProbeDraw& draw) {
  constexpr int64_t kFew = 8;  // samples that are not worth another linearisation
  auto power = draw.probe;
  if (draw.weights.size(1) <= kFew) return estimate_terms(products, draw, problem.bounded, 0, draw.weights.size(0), power, nullptr);
  auto lengths = draw.weights.ne(0).sum(0).cpu();  // (samples at work)
  auto samples = at::arange(lengths.size(0), draw.probe.options().dtype(at::kLong));
  auto value = at::zeros({lengths.size(0)}, draw.probe.options());
  LogDetProblem part{.x = problem.x.detach(), .branch_value = {}, .linearize = problem.linearize};
  ProbeDraw left = draw;
  for (int64_t first = 0;;) {
    const auto last = (lengths.size(0) > kFew ? lengths.median() : lengths.max()).item<int64_t>();
    BranchProducts some(part);
    value.index_add_(0, samples, estimate_terms(first == 0 ? products : some, left, problem.bounded, first, last, power, nullptr));
    const auto staying = lengths.gt(last).nonzero().squeeze(1);
    if (staying.numel() == 0) return value;
    const auto there = staying.to(power.device());
    lengths = lengths.index_select(0, staying);
    samples = samples.index_select(0, there);
    part.x = part.x.index_select(0, there);
    left = {.probe = left.probe.index_select(0, there), .weights = left.weights.index_select(1, staying)};
    power = power.index_select(0, there);
    first = last;
  }
}

/// d log det(I + J) = tr((I + J)^-1 dJ) = E[w' dJ v] with w = (I + J')^-1 v, so that <J'w, v> with w held constant has the gradient.
at::Tensor estimate_with_neumann_gradient(const LogDetProblem& problem, BranchProducts& products, const ProbeDraw& draw) {
  at::Tensor value;
  at::Tensor neumann;
  if (const Weights weights(draw); problem.power_sums && weights.are_common()) {
    const at::NoGradGuard no_graph;
    auto [series, vector] = known_sums(problem.power_sums, draw, weights);
    value = inner_products(series, draw.probe);
    neumann = vector;
  } else {
    neumann = at::zeros_like(draw.probe);
    auto power = draw.probe;
    value = estimate_terms(products, draw, problem.bounded, 0, draw.weights.size(0), power, &neumann);
  }
  const auto surrogate = inner_products(products.vjp_with_graph(neumann), draw.probe);
  return surrogate.requires_grad() ? WithGradientOf::apply(value, surrogate) : value;
}

/// Of one draw, (B).
at::Tensor estimate(const LogDetProblem& problem, BranchProducts& products, const ProbeDraw& draw, LogDetGradient gradient) {
  if (!wants_gradient(problem)) return estimate_value(problem, products, draw);
  return gradient == LogDetGradient::kNeumann ? estimate_with_neumann_gradient(problem, products, draw)
                                              : estimate_through_graph(products, draw, problem.bounded);
}

/// Draws of how many terms come after the minimum: the stride times how often the game went on.
at::Tensor extra_terms(const RouletteLogDet& options, at::IntArrayRef shape, const std::optional<at::Generator>& generator) {
  const double stops = 1 - std::pow(options.continuation, static_cast<double>(options.stride));
  // geometric_ counts trials up to the first success, itself included: one more than the times that the game went on.
  return options.stride * (at::empty(shape, at::kLong).geometric_(stops, generator) - 1);
}

/// For each term up to `last`, the end of its group behind the minimum: how many terms the game must have gone on for. (last)
at::Tensor played_terms(const RouletteLogDet& options, int64_t last, const at::TensorOptions& type) {
  const auto beyond = at::arange(1, last + 1, type).sub_(options.minimum_terms).clamp_min_(0);
  return options.stride == 1 ? beyond : beyond.add_(options.stride - 1).floor_divide_(options.stride).mul_(options.stride);
}

template <class Options>
std::optional<at::Generator> make_generator(const Options& options) {
  if (options.seed == -1) return std::nullopt;
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(options.seed));
}

/// With a seed drawn on the CPU whatever the device, so that it means the same everywhere; without one where x is, so that a training step
/// does not wait for the host.
at::Tensor draw_probe(Probe probe, const at::Tensor& x, const std::optional<at::Generator>& generator) {
  const bool there = !generator && !x.is_cpu();  // in the format of x at once
  const auto format = there ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
  auto drawn = at::empty(x.sizes(), x.options().device(generator ? at::kCPU : x.device()).memory_format(format));
  drawn = probe == Probe::kGaussian ? drawn.normal_(0, 1, generator) : drawn.random_(2, generator);
  drawn = drawn.to(x.device()).contiguous(x.suggest_memory_format());
  return probe == Probe::kGaussian ? drawn : at::rsub(drawn, -1, -2);  // 2 drawn - 1
}

/// `draw_weights(generator)` gives the weights of one probe's series.
template <class Options, class DrawWeights>
LogDet average_probes(const LogDetProblem& problem, const Options& options, const DrawWeights& draw_weights) {
  const auto& x = problem.x;
  const auto generator = make_generator(options);
  std::vector<ProbeDraw> draws;
  draws.reserve(options.probes);
  for (int64_t i = 0; i < options.probes; ++i) {
    if (options.draws && options.draws->next < options.draws->kept.size()) {
      draws.push_back(options.draws->kept[options.draws->next++]);
      continue;
    }
    auto probe = draw_probe(options.probe, x, generator);
    draws.push_back({.probe = std::move(probe), .weights = draw_weights(generator)});
    if (!options.draws) continue;
    options.draws->kept.push_back(draws.back());
    options.draws->next = options.draws->kept.size();
  }
  const auto estimates = probe_estimates(problem, draws, options.gradient);  // (probes, B)
  const auto value = options.probes == 1 ? estimates.squeeze(0) : estimates.mean(0);
  if (options.value_only) return {.value = value, .standard_error = {}, .sign = {}};
  const auto unknown = at::full({x.size(0)}, std::numeric_limits<double>::quiet_NaN(), x.options());
  return {.value = value,
          .standard_error =
              options.probes == 1 ? unknown : estimates.detach().std(0, /*unbiased=*/true) / std::sqrt(static_cast<double>(options.probes)),
          .sign = unknown.clone()};
}

}  // namespace

at::Tensor probe_estimates(const LogDetProblem& problem, const std::vector<ProbeDraw>& draws, LogDetGradient gradient) {
  BranchProducts products(problem);
  std::vector<at::Tensor> estimates;
  estimates.reserve(draws.size());
  for (const auto& draw : draws) estimates.push_back(estimate(problem, products, draw, gradient));
  return estimates.size() == 1 ? estimates[0].unsqueeze(0) : at::stack(estimates, 0);
}

at::Tensor roulette_weights(const RouletteLogDet& options, int64_t batch, const std::optional<at::Generator>& generator) {
  const auto extra = extra_terms(options, {batch}, generator);
  const auto largest = options.minimum_terms + (batch == 0 ? 0 : extra.max().item<int64_t>());
  const auto played = played_terms(options, largest, at::kLong).unsqueeze(1);  // (terms, 1)
  return at::where(played <= extra, at::pow(1 / options.continuation, played.to(at::kDouble)), 0.0);
}

int64_t draw_terms(const RouletteLogDet& options, at::Generator generator) {
  return options.minimum_terms + extra_terms(options, {}, std::move(generator)).item<int64_t>();
}

LogDet estimated_log_det(const LogDetProblem& problem, const SeriesLogDet& options) {
  return average_probes(problem, options, [&](const auto&) { return at::ones({options.terms, 1}, at::kDouble); });
}

LogDet estimated_log_det(const LogDetProblem& problem, const RouletteLogDet& options) {
  const auto batch = problem.x.size(0);
  if (options.terms > 0) {
    return average_probes(problem, options, [&](const auto&) {
      return at::pow(1 / options.continuation, played_terms(options, options.terms, at::kDouble)).unsqueeze(1);
    });
  }
  return average_probes(problem, options, [&](const auto& generator) { return roulette_weights(options, batch, generator); });
}

}  // namespace invattn

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

/// 0 in the forward pass, the identity in the backward pass: lends its argument's gradient to a value computed elsewhere.
/// The Neumann vector inside that argument is a constant to autograd, so that a second derivative would be silently wrong: it is refused.
class GradientOnly : public torch::autograd::Function<GradientOnly> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& surrogate) { return at::zeros_like(surrogate); }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list outer) {
    require(!at::GradMode::is_enabled(), "log_det",
            "expected first derivatives only, got a backward pass with create_graph: the Neumann gradient cannot be differentiated again. ",
            "Use gradient=series or ExactLogDet.");
    return {outer[0]};
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

double alternating_sign(int64_t k) { return k % 2 == 1 ? 1.0 : -1.0; }

at::Tensor estimate_through_graph(BranchProducts& products, const ProbeDraw& draw) {
  auto value = at::zeros({draw.probe.size(0)}, draw.probe.options());
  auto power = draw.probe;  // (J')^k v
  for (int64_t k = 1; k <= draw.weights.size(0); ++k) {
    power = products.vjp_with_graph(power);
    value = value + draw.weights[k - 1] * (alternating_sign(k) / static_cast<double>(k)) * inner_products(power, draw.probe);
  }
  return value;
}

/// Terms first + 1 to last of the series, without a graph. `power`, (J')^first v, becomes (J')^last v; where `neumann` is given, terms first
/// to last - 1 of w = sum_{k=0..} (-1)^k weights[k] (J')^k v are added to it, from the same products.
at::Tensor estimate_terms(BranchProducts& products, const ProbeDraw& draw, int64_t first, int64_t last, at::Tensor& power,
                          at::Tensor* neumann) {
  auto series = at::zeros_like(draw.probe);  // sum_k (-1)^(k+1)/k weights[k] (J')^k v: added up before the one inner product
  for (int64_t k = first + 1; k <= last; ++k) {
    const auto weight = as_sample_factor(draw.weights[k - 1], power);
    if (neumann != nullptr) neumann->addcmul_(power, weight, alternating_sign(k));
    power = products.vjp(power);
    series.addcmul_(power, weight, alternating_sign(k) / static_cast<double>(k));
  }
  return inner_products(series, draw.probe);
}

/// The value alone. Once half of the samples at work have come to the end of their series they are left out, so that a batch costs about
/// twice its mean number of terms and not its largest. `products` are those of all samples.
at::Tensor estimate_value(const LogDetProblem& problem, BranchProducts& products, const ProbeDraw& draw) {
  constexpr int64_t kFew = 8;  // samples that are not worth another linearisation
  auto power = draw.probe;
  if (draw.weights.size(1) <= kFew) return estimate_terms(products, draw, 0, draw.weights.size(0), power, nullptr);
  auto lengths = draw.weights.ne(0).sum(0).cpu();  // (samples at work)
  auto samples = at::arange(lengths.size(0), draw.probe.options().dtype(at::kLong));
  auto value = at::zeros({lengths.size(0)}, draw.probe.options());
  LogDetProblem part{.x = problem.x.detach(), .branch_value = {}, .linearize = problem.linearize};
  ProbeDraw left = draw;
  for (int64_t first = 0;;) {
    const auto last = (lengths.size(0) > kFew ? lengths.median() : lengths.max()).item<int64_t>();
    BranchProducts some(part);
    value.index_add_(0, samples, estimate_terms(first == 0 ? products : some, left, first, last, power, nullptr));
    const auto staying = lengths.gt(last).nonzero().squeeze(1);
    if (staying.numel() == 0) return value;
    const auto there = staying.to(power.device());
    lengths = lengths.index_select(0, staying);
    samples = samples.index_select(0, there);
    part.x = part.x.index_select(0, there);
    left = {.probe = left.probe.index_select(0, there), .weights = left.weights.index_select(1, there)};
    power = power.index_select(0, there);
    first = last;
  }
}

/// d log det(I + J) = tr((I + J)^-1 dJ) = E[w' dJ v] with w = (I + J')^-1 v, so that <J'w, v> with w held constant has the gradient.
at::Tensor estimate_with_neumann_gradient(BranchProducts& products, const ProbeDraw& draw) {
  auto neumann = at::zeros_like(draw.probe);
  auto power = draw.probe;
  const auto value = estimate_terms(products, draw, 0, draw.weights.size(0), power, &neumann);
  const auto surrogate = inner_products(products.vjp_with_graph(neumann), draw.probe);
  return surrogate.requires_grad() ? value + GradientOnly::apply(surrogate) : value;
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
  const auto where = x.options().device(generator ? at::kCPU : x.device()).memory_format(std::nullopt);
  auto drawn = probe == Probe::kGaussian ? at::randn(x.sizes(), generator, where) : at::randint(2, x.sizes(), generator, where);
  drawn = drawn.to(x.device()).contiguous(x.suggest_memory_format());
  return probe == Probe::kGaussian ? drawn : drawn.mul_(2).sub_(1);
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
    draws.push_back({.probe = std::move(probe), .weights = draw_weights(generator).to(x.options())});
    if (!options.draws) continue;
    options.draws->kept.push_back(draws.back());
    options.draws->next = options.draws->kept.size();
  }
  const auto estimates = probe_estimates(problem, draws, options.gradient);  // (probes, B)
  const auto unknown = at::full({x.size(0)}, std::numeric_limits<double>::quiet_NaN(), x.options());
  return {.value = estimates.mean(0),
          .standard_error =
              options.probes == 1 ? unknown : estimates.detach().std(0, /*unbiased=*/true) / std::sqrt(static_cast<double>(options.probes)),
          .sign = unknown.clone()};
}

}  // namespace

at::Tensor probe_estimates(const LogDetProblem& problem, const std::vector<ProbeDraw>& draws, LogDetGradient gradient) {
  BranchProducts products(problem);
  const bool with_graph = wants_gradient(problem);
  std::vector<at::Tensor> estimates;
  estimates.reserve(draws.size());
  for (const auto& draw : draws) {
    if (!with_graph) {
      estimates.push_back(estimate_value(problem, products, draw));
    } else if (gradient == LogDetGradient::kNeumann) {
      estimates.push_back(estimate_with_neumann_gradient(products, draw));
    } else {
      estimates.push_back(estimate_through_graph(products, draw));
    }
  }
  return at::stack(estimates, 0);
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
  return average_probes(problem, options, [&](const auto&) { return at::ones({options.terms, 1}, problem.x.options()); });
}

LogDet estimated_log_det(const LogDetProblem& problem, const RouletteLogDet& options) {
  const auto batch = problem.x.size(0);
  if (options.terms > 0) {
    return average_probes(problem, options, [&](const auto&) {
      return at::pow(1 / options.continuation, played_terms(options, options.terms, problem.x.options())).unsqueeze(1);
    });
  }
  return average_probes(problem, options, [&](const auto& generator) { return roulette_weights(options, batch, generator); });
}

}  // namespace invattn

#include "invattn/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/core/range.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "OptimizerOptions";

/// The gradients divided by a number, 0 where they are not finite. As one piece: a launch for each of some hundred would take longer.
std::vector<at::Tensor> divided(const std::vector<at::Tensor>& gradients, const at::Tensor& excess) {
  std::vector<at::Tensor> flat;
  std::vector<int64_t> counts;
  flat.reserve(gradients.size());
  counts.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    flat.push_back(gradient.reshape({-1}));
    counts.push_back(gradient.numel());
  }
  auto pieces = at::cat(flat).div_(excess).nan_to_num_(0, 0, 0).split_with_sizes(counts);
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = pieces[i].view(gradients[i].sizes());
  return pieces;
}

/// More than one row and more than one column, the first dimension against all others.
bool is_matrix(const at::Tensor& weight) { return weight.dim() > 1 && weight.size(0) > 1 && weight.numel() > weight.size(0); }

}  // namespace

at::Tensor nearly_orthogonal(const at::Tensor& matrices) {
  const bool tall = matrices.size(1) > matrices.size(2);
  auto x = matrices / (at::linalg_vector_norm(matrices, 2, {1, 2}, /*keepdim=*/true) + 1e-30);
  if (x.is_cuda()) x = x.to(at::kBFloat16);
  if (tall) x = x.mT();
  // Of Keller Jordan's Muon: s -> a s + b s^3 + c s^5 as steep at 0 as it can be while everything up to 1 ends between 0.68 and 1.14.
  constexpr double kA = 3.4445;
  constexpr double kB = -4.7750;
  constexpr double kC = 2.0315;
  constexpr int kIterations = 5;
  for (int i = 0; i < kIterations; ++i) {
    const auto square = at::matmul(x, x.mT());
    x = at::baddbmm(x, at::baddbmm(square, square, square, kB, kC), x, kA, 1);
  }
  if (tall) x = x.mT();
  return x.to(matrices.scalar_type());
}

at::Tensor averaging_share(const at::Tensor& steps, double decay) {
  constexpr double kWindow = 10;  // while it grows, about a tenth of the steps so far count
  return (kWindow / (steps + (kWindow - 1))).clamp_min(1 - decay);
}

void OptimizerOptions::validate() const {
  require_field(learning_rate > 0 && learning_rate <= kLargestRate, kOrigin, "learning_rate",
                "expected a positive learning_rate of at most ", kLargestRate, ", got ", learning_rate, ".");
  for (const auto& [name, value] : {std::pair{"beta1", beta1}, std::pair{"beta2", beta2}, std::pair{"average", average}}) {
    require_field(value >= 0 && value < 1, kOrigin, name, "expected ", name, " in [0, 1), got ", value, ".");
  }
  require_field(epsilon > 0 && epsilon <= 1, kOrigin, "epsilon", "expected a positive epsilon of at most 1, got ", epsilon, ".");
  require_field(clip_norm >= 0 && clip_norm <= kLargestReal, kOrigin, "clip_norm", "expected clip_norm to be positive and at most ",
                kLargestReal, ", or 0 for none, got ", clip_norm, ".");
}

Optimizer::Optimizer(const torch::nn::Module& network, const OptimizerOptions& options, AdamArithmetic arithmetic)
    : options_(options), arithmetic_(arithmetic) {
  options_.validate();
  require(arithmetic == AdamArithmetic::kFused || (options_.method == OptimizerMethod::kAdam && options_.clip_norm == 0), "Optimizer",
          "expected Adam without clipping for the arithmetic of torch::optim::Adam, got other options. Use the fused one.");
  const at::NoGradGuard no_grad;
  for (const auto& parameter : network.named_parameters()) {
    const at::Tensor& weight = parameter.value();
    const bool orthogonal = options_.method == OptimizerMethod::kMuon && is_matrix(weight);
    entries_.push_back({parameter.key(), weight, at::zeros_like(weight), orthogonal ? at::Tensor() : at::zeros_like(weight),
                        options_.average > 0 ? weight.detach().clone() : at::Tensor()});
  }
  require(!entries_.empty(), "Optimizer", "expected a network with weights, got one without.");
  const auto scalar = at::TensorOptions().dtype(at::kFloat).device(entries_.front().weight.device());
  steps_ = at::zeros({}, scalar);
  learning_rate_ = at::full({}, options_.learning_rate, scalar);
}

void Optimizer::zero_grad() {
  for (auto& entry : entries_) entry.weight.mutable_grad().reset();
}

void Optimizer::set_learning_rate(double value) {
  require(value > 0 && std::isfinite(value), "Optimizer", "expected a positive learning rate, got ", value, ".");
  options_.learning_rate = value;
  learning_rate_.fill_(value);
}

void Optimizer::step() {
  RECORD_USER_SCOPE("optimiser");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> sizes;
  std::vector<at::Tensor> all_gradients;
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> matrix_gradients;
  std::vector<at::Tensor> matrix_means;
  std::vector<at::Tensor> averaged;
  std::vector<at::Tensor> averages;
  for (const auto& entry : entries_) {
    if (entry.average.defined()) {
      averaged.push_back(entry.weight);
      averages.push_back(entry.average);
    }
    if (!entry.weight.grad().defined()) continue;
    all_gradients.push_back(entry.weight.grad());
    const bool orthogonal = !entry.size.defined();
    (orthogonal ? matrices : weights).push_back(entry.weight);
    (orthogonal ? matrix_gradients : gradients).push_back(entry.weight.grad());
    (orthogonal ? matrix_means : means).push_back(entry.mean);
    if (!orthogonal) sizes.push_back(entry.size);
  }
  if (all_gradients.empty()) return;

  at::Tensor skipped;  // 1 where the gradient is not finite
  at::Tensor excess;   // what the gradient is to be divided by
  if (options_.clip_norm > 0) {
    gradient_norm_ = at::stack(at::_foreach_norm(all_gradients)).norm();
    skipped = gradient_norm_.isfinite().logical_not().to(at::kFloat);
    excess = (gradient_norm_ / options_.clip_norm).clamp_min(1);
    steps_.add_(1 - skipped);
  } else {
    steps_.add_(1);
  }

  if (!matrices.empty()) move_matrices(matrices, matrix_gradients, matrix_means, excess, skipped);
  if (arithmetic_ == AdamArithmetic::kByWeight) {
    move_by_weight(weights, gradients, means, sizes);
  } else if (!weights.empty() && options_.method != OptimizerMethod::kAdamax) {
    at::_fused_adam_(weights, gradients, means, sizes, {}, std::vector<at::Tensor>(weights.size(), steps_), learning_rate_, options_.beta1,
                     options_.beta2, /*weight_decay=*/0, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false,
                     excess.defined() ? std::optional<at::Tensor>(excess) : std::nullopt,
                     skipped.defined() ? std::optional<at::Tensor>(skipped) : std::nullopt);
    // The fused operation does not say that it changed them, and spectral norms look whether the weights are those they know.
    for (const auto& weight : weights) weight.unsafeGetTensorImpl()->bump_version();
  } else if (!weights.empty()) {
    auto rate = learning_rate_ / (1 - at::pow(options_.beta1, steps_));
    auto keep1 = at::full_like(rate, options_.beta1);
    auto keep2 = at::full_like(rate, options_.beta2);
    if (skipped.defined()) {  // nothing moves: all of the old is kept, nothing of the new is taken
      gradients = divided(gradients, excess);
      rate = at::where(skipped > 0, 0, rate);
      keep1 = at::where(skipped > 0, 1, keep1);
      keep2 = at::where(skipped > 0, 1, keep2);
    }
    at::_foreach_mul_(means, keep1);
    at::_foreach_add_(means, at::_foreach_mul(gradients, 1 - keep1));
    at::_foreach_mul_(sizes, keep2);
    at::_foreach_maximum_(sizes, at::_foreach_add(at::_foreach_abs(gradients), options_.epsilon));
    auto changes = at::_foreach_div(means, sizes);
    at::_foreach_mul_(changes, rate);
    at::_foreach_sub_(weights, changes);
  }
  if (averages.empty()) return;
  auto share = averaging_share(steps_, options_.average);
  if (skipped.defined()) share = at::where(skipped > 0, 0, share);
  auto differences = at::_foreach_sub(averaged, averages);
  at::_foreach_mul_(differences, share.to(averages.front().scalar_type()));
  at::_foreach_add_(averages, differences);
}

void Optimizer::move_by_weight(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients,
                               const std::vector<at::Tensor>& means, const std::vector<at::Tensor>& sizes) const {
  const auto steps = steps_.item<double>();
  const double rate = options_.learning_rate / (1 - std::pow(options_.beta1, steps));
  const double correction = std::sqrt(1 - std::pow(options_.beta2, steps));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    means[i].mul_(options_.beta1).add_(gradients[i], 1 - options_.beta1);
    sizes[i].mul_(options_.beta2).addcmul_(gradients[i], gradients[i], 1 - options_.beta2);
    weights[i].addcdiv_(means[i], (sizes[i].sqrt() / correction).add_(options_.epsilon), -rate);
  }
}

void Optimizer::move_matrices(const std::vector<at::Tensor>& weights, std::vector<at::Tensor> gradients,
                              const std::vector<at::Tensor>& means, const at::Tensor& excess, const at::Tensor& skipped) const {
  auto rate = -learning_rate_;
  auto keep = at::full_like(rate, options_.beta1);
  if (skipped.defined()) {
    gradients = divided(gradients, excess);
    rate = at::where(skipped > 0, 0, rate);
    keep = at::where(skipped > 0, 1, keep);
  }
  at::_foreach_mul_(means, keep);
  at::_foreach_add_(means, at::_foreach_mul(gradients, 1 - keep));
  // One step ahead, as Nesterov's method is.
  auto ahead = at::_foreach_mul(means, keep);
  at::_foreach_add_(ahead, at::_foreach_mul(gradients, 1 - keep));
  // Equal blocks have equal shapes: one product serves all of them.
  std::map<std::pair<int64_t, int64_t>, std::vector<std::size_t>> alike;
  for (std::size_t i = 0; i < weights.size(); ++i) alike[{weights[i].size(0), weights[i].numel() / weights[i].size(0)}].push_back(i);
  constexpr double kEntry = 0.2;  // the root mean square of Adam's change of an entry, in learning rates
  for (const auto& [shape, members] : alike) {
    const auto [rows, columns] = shape;
    std::vector<at::Tensor> group;
    for (const auto i : members) group.push_back(ahead[i].reshape({rows, columns}));
    const double length = kEntry * std::sqrt(static_cast<double>(std::max(rows, columns)));
    const auto changes = nearly_orthogonal(at::stack(group)).mul_(rate.to(weights.front().scalar_type()) * length).unbind(0);
    std::vector<at::Tensor> moved;
    std::vector<at::Tensor> by;
    for (std::size_t k = 0; k < members.size(); ++k) {
      moved.push_back(weights[members[k]]);
      by.push_back(changes[k].view(weights[members[k]].sizes()));
    }
    at::_foreach_add_(moved, by);
  }
}

void Optimizer::swap_average() {
  const at::NoGradGuard no_grad;
  for (auto& entry : entries_) {
    if (!entry.average.defined()) continue;
    const auto kept = entry.weight.detach().clone();
    entry.weight.copy_(entry.average);
    entry.average.copy_(kept);
  }
}

std::map<std::string, at::Tensor> Optimizer::state() const {
  std::map<std::string, at::Tensor> state{{"steps", steps_}};
  for (const auto& entry : entries_) {
    state.emplace("mean." + entry.name, entry.mean);
    if (entry.size.defined()) state.emplace("size." + entry.name, entry.size);
    if (entry.average.defined()) state.emplace("average." + entry.name, entry.average);
  }
  return state;
}

void Optimizer::restore(const std::map<std::string, at::Tensor>& state, const std::string& origin) {
  const at::NoGradGuard no_grad;
  auto mine = this->state();  // the same memory
  for (auto& [name, tensor] : mine) {
    const auto found = state.find(name);
    if (found == state.end() || found->second.sizes() != tensor.sizes() || found->second.scalar_type() != tensor.scalar_type()) {
      fail(ErrorKind::kData, origin, "expected the optimiser's tensor '", name, "' ", tensor.toString(), " ", tensor.sizes(), ", got ",
           found == state.end() ? "none" : "another shape or type", ". It belongs to another network or another optimiser: start afresh.");
    }
  }
  for (const auto& [name, tensor] : state) {  // an average that is no longer wanted has no place
    if (!mine.contains(name) && !name.starts_with("average.")) {
      fail(ErrorKind::kData, origin, "expected no optimiser's tensor '", name, "', of a weight that the network in use does not train, ",
           "got one. It belongs to another network or another optimiser: use that one, or start afresh.");
    }
  }
  const auto steps = state.at("steps").item<double>();  // what is not finite is the checkpoint's to judge: a training may have diverged
  if (std::isfinite(steps) && (steps < 0 || steps > static_cast<double>(kMostSteps) || std::floor(steps) != steps)) {
    fail(ErrorKind::kData, origin, "expected the optimiser's 'steps' to be a whole number from 0 to ", kMostSteps, ", got ", steps,
         ". The file is damaged: take another copy, or start afresh.");
  }
  for (auto& [name, tensor] : mine) tensor.copy_(state.at(name));
}

}  // namespace invattn

#include "invattn/nn/guard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/nn/evaluating.h"
#include "invattn/ops/full_precision.h"

namespace invattn {

void GuardOptions::validate() const {
  require_field(target > 0 && target < 1, "GuardOptions", "target", "expected a target between 0 and 1, got ", target, ".");
  require_range("GuardOptions", "weight", weight, 0.0, kLargestReal);
  require_field(fraction > 0 && fraction <= 1, "GuardOptions", "fraction", "expected a fraction in (0, 1], got ", fraction, ".");
  require_range("GuardOptions", "every", every, int64_t{1}, kMostSteps);
  require_range("GuardOptions", "iterations", iterations, int64_t{1}, kMostIterations);
  require_range("GuardOptions", "margin", margin, 1.0, kLargestReal);
  validate_field("measure", measure);
}

Guard::Guard(torch::nn::Module& network, const GuardOptions& options) : options_(options), network_(&network) {
  options_.validate();
  for (const auto& module : network.modules(/*include_self=*/true)) {
    auto* block = dynamic_cast<InvertibleResidualImpl*>(module.get());
    if (block == nullptr) continue;
    blocks_.push_back(block);
    if (block->branch().policy() != Policy::kGuarded) continue;
    const double constant = block->branch().constant();
    if (!(constant > 0 && constant < 1)) {
      fail(ErrorKind::kUsage, "Guard", "expected a guarded branch with a constant between 0 and 1, got ", constant,
           " of: ", block->branch().describe(), ". Its constant() says what the branch is held under.");
    }
    guarded_.push_back({block, constant, LocalConstantPenalty(std::min(options_.target, constant), options_.iterations)});
    block->record(true);
  }
}

Guard::~Guard() {
  for (const auto& entry : guarded_) entry.block->record(false);
}

double Guard::last_largest() const { return last_largest_.defined() ? last_largest_.item<double>() : 0.0; }

int64_t Guard::interval(int64_t batch) const {
  return std::max<int64_t>(options_.every, std::llround(1 / (options_.fraction * static_cast<double>(std::max<int64_t>(batch, 1)))));
}

bool Guard::due(int64_t step, int64_t batch) const { return !guarded_.empty() && step % interval(batch) == 0; }

at::Tensor Guard::penalty(const at::Tensor& images, int64_t count) {
  RECORD_USER_SCOPE("guard");
  if (images.defined()) {
    const bool looked_at = count == 0 && images.numel() > 0;
    require(images.dim() == 1 && images.scalar_type() == at::kLong && (!looked_at || images.min().item<int64_t>() >= 0), "Guard",
            "expected the numbers of the batch's images, int64 and 0 or more, got ", images.toString(), " ", images.sizes(), ".");
    if (looked_at) count = images.max().item<int64_t>() + 1;
  }
  at::Tensor total;
  last_largest_ = at::Tensor();
  for (auto& entry : guarded_) {
    entry.largest = at::Tensor();
    const auto& batch = entry.block->recorded();
    require(batch.defined() && at::GradMode::is_enabled(), "Guard",
            "expected a forward pass before penalty(), and gradients on, got none. Call forward on the network first, in each step.");
    require(!images.defined() || images.size(0) == batch.size(0), "Guard", "expected one image number for each of the ", batch.size(0),
            " samples, got ", images.defined() ? images.size(0) : 0, ".");
    if (batch.size(0) == 0) continue;
    // The next part of the batch, around the end.
    const double share = options_.fraction * static_cast<double>(options_.every);
    const auto part_size = std::clamp<int64_t>(std::llround(std::ceil(share * static_cast<double>(batch.size(0)))), 1, batch.size(0));
    if (!turn_.defined() || turn_.device() != batch.device()) {
      turn_ = turn_.defined() ? turn_.to(batch.device()) : at::zeros({}, batch.options().dtype(at::kLong));
    }
    const auto rows = (at::arange(part_size, turn_.options()) + turn_ * part_size).remainder(batch.size(0));
    const auto x = batch.index_select(0, rows).requires_grad_(true);
    const auto given = entry.block->recorded_given().select(rows);
    const auto value = branch_value(entry.block->branch(), x, given);
    const auto linearization = branch_linearization(entry.block->branch(), x.detach(), given);
    const auto part = images.defined() ? entry.penalty(x, value, *linearization, images.to(rows.device()).index_select(0, rows), count)
                                       : entry.penalty(x, value, *linearization, rows, batch.size(0));
    const auto weighted = part * (options_.weight * static_cast<double>(interval(batch.size(0))));
    total = total.defined() ? total + weighted : weighted;
    entry.largest = entry.penalty.constants().max();
    last_largest_ = last_largest_.defined() ? at::maximum(last_largest_, entry.largest) : entry.largest;
  }
  if (turn_.defined()) turn_.add_(1);
  return total.defined() ? total : at::zeros({});
}

void Guard::agree(const std::function<void(const at::Tensor&)>& maximum) {
  std::vector<at::Tensor> seen;
  for (const auto& entry : guarded_) {
    if (entry.largest.defined()) seen.push_back(entry.largest);
  }
  if (seen.empty()) return;
  const at::Tensor all = at::stack(seen);
  maximum(all);
  int64_t place = 0;
  for (auto& entry : guarded_) {
    if (entry.largest.defined()) entry.largest = all[place++];
  }
  last_largest_ = all.max();
}

void Guard::after_step() {
  for (auto* block : blocks_) block->project();
}

void Guard::hold() {
  const at::NoGradGuard no_grad;
  for (auto& entry : guarded_) {
    if (!entry.largest.defined()) continue;
    const at::Tensor& largest = entry.largest;
    const auto above = (largest > entry.constant).logical_and(largest.isfinite());
    entry.block->branch().scale_by(at::where(above, entry.constant / largest, at::ones_like(largest)));
  }
}

std::vector<Certificate> Guard::finish(const std::function<void(const at::Tensor&)>& forward, const std::vector<at::Tensor>& batches,
                                       const std::string& data) {
  require(!batches.empty(), "Guard", "expected batches to measure on, got none. Give finish() training images.");
  const Evaluating evaluating(*network_);
  const FullPrecision precise;
  at::NoGradGuard no_grad;
  after_step();

  constants_.resize(guarded_.size());
  const auto measure_from = [&](std::size_t first) {
    std::vector<std::vector<at::Tensor>> measured(guarded_.size());
    for (const auto& batch : batches) {
      forward(batch);
      for (std::size_t i = first; i < guarded_.size(); ++i) {
        const auto& x = guarded_[i].block->recorded();
        require(x.defined(), "Guard", "expected `forward` to run every guarded block, got one it did not reach.");
        const auto linearization = branch_linearization(guarded_[i].block->branch(), x, guarded_[i].block->recorded_given());
        measured[i].push_back(local_constants(*linearization, x, options_.measure).constants);
      }
    }
    for (std::size_t i = first; i < guarded_.size(); ++i) constants_[i] = at::cat(measured[i]);
  };
  measure_from(0);
  // Scaling a block changes what the blocks behind it are given: those are measured again.
  std::vector<Certificate> certificates;
  for (std::size_t i = 0; i < guarded_.size(); ++i) {
    auto& [block, constant, penalty, seen] = guarded_[i];
    Certificate certificate{.policy = Policy::kGuarded, .basis = Basis::kMeasured, .data = data, .samples = constants_[i].numel()};
    const double largest = certificate.samples > 0 ? constants_[i].max().item<double>() : 0.0;
    const double room = constant / options_.margin;
    if (largest > room) {
      certificate.scale = room / largest;
      block->branch().scale(certificate.scale);
      constants_[i] *= certificate.scale;
      if (i + 1 < guarded_.size()) measure_from(i + 1);
    }
    certificate.constant = largest * certificate.scale;
    block->certify(certificate);
    certificates.push_back(block->measured());
  }
  return certificates;
}

std::map<std::string, at::Tensor> Guard::state() const {
  std::map<std::string, at::Tensor> state{{"step", turn_.defined() ? turn_.cpu().clone() : at::zeros({}, at::kLong)}};
  for (std::size_t i = 0; i < guarded_.size(); ++i) {
    if (guarded_[i].penalty.vectors().defined()) state.emplace("vectors." + std::to_string(i), guarded_[i].penalty.vectors());
  }
  return state;
}

void Guard::restore(const std::map<std::string, at::Tensor>& state) {
  const auto step = state.find("step");
  require(step != state.end() && step->second.numel() == 1 && step->second.scalar_type() == at::kLong &&
              step->second.item<int64_t>() >= 0 && step->second.item<int64_t>() <= (int64_t{1} << 53U),
          "Guard", "expected the state of a guard with its 'step', 0 or more, got none.");
  turn_ = step->second.reshape({}).clone();
  for (std::size_t i = 0; i < guarded_.size(); ++i) {
    const auto vectors = state.find("vectors." + std::to_string(i));
    if (vectors != state.end()) guarded_[i].penalty.restore(vectors->second.to(guarded_[i].block->parameters().front().device()));
  }
}

}  // namespace invattn

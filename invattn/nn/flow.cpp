#include "invattn/nn/flow.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/weight_budget.h"
#include "invattn/ops/full_precision.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "FlowOptions";
constexpr double kLevels = 256;
constexpr const char* kNoMask = "a flow is of images of one size";

AttentionKind kind_of(FlowAttention attention) {
  switch (attention) {
    case FlowAttention::kGaussian:
      return AttentionKind::kGaussian;
    case FlowAttention::kEmbeddedGaussian:
      return AttentionKind::kEmbeddedGaussian;
    case FlowAttention::kDotProduct:
      return AttentionKind::kDotProduct;
    case FlowAttention::kConcatenation:
      return AttentionKind::kConcatenation;
    case FlowAttention::kDistance:
      return AttentionKind::kDistance;
    case FlowAttention::kNone:
      break;
  }
  fail(ErrorKind::kUsage, kOrigin, "expected a kind of attention, got ", attention, ".");
}

AttentionOptions attention_options(const FlowOptions& options, int64_t channels) {
  auto result = attention_preset(options.attention_preset, kind_of(options.attention), channels);
  result.constant = options.constant;
  result.heads = options.attention_heads;
  if (result.policy == Policy::kStrict && result.kind != AttentionKind::kDistance) {  // a flow has to be invertible everywhere
    result.radius = options.attention_radius;
    result.outside = OutsideDomain::kClip;
    result.start = Start::kUniform;  // blocks that all begin as contractions would leave little of x
  }
  return result;
}

int64_t attention_count(const FlowOptions& options, std::size_t scale) {
  return options.attention != FlowAttention::kNone && scale < options.attention_blocks.size() ? options.attention_blocks[scale] : 0;
}

at::Tensor flattened(const at::Tensor& y) { return y.reshape({y.size(0), y.size(1) * y.size(2) * y.size(3), 1, 1}); }

}  // namespace

void FlowOptions::validate() const {
  // Whether a scale has convolutions or not: each of their options is checked where it is read.
  ConvolutionOptions{.channels = channels,
                     .height = height,
                     .width = width,
                     .hidden = hidden,
                     .kernel = kernel,
                     .layers = layers,
                     .activation = activation,
                     .constant = constant,
                     .tolerance = tolerance,
                     .iterations = iterations}
      .validate();
  require_field(alpha > 0 && alpha < 0.5, kOrigin, "alpha", "expected alpha between 0 and 0.5, got ", alpha, ".");
  require_field(!blocks.empty(), kOrigin, "blocks", "expected the number of blocks of at least one scale, got none.");
  for (const auto& [name, counts] : {std::pair{"blocks", &blocks}, std::pair{"attention_blocks", &attention_blocks}}) {
    for (const auto count : *counts) {
      require_field(count >= 0 && count <= kMostLayers, kOrigin, name, "expected numbers of blocks from 0 to ", kMostLayers, ", got ",
                    count, ".");
    }
  }
  require_fields(attention_blocks.size() <= blocks.size(), kOrigin, {"attention_blocks", "blocks"},
                 "expected attention_blocks for at most ", blocks.size(), " scales, got ", attention_blocks.size(), ".");
  require_field(attention_preset != AttentionPreset::kPlain, kOrigin, "attention_preset",
                "expected the attention_preset guarded, strict, paper or published-code, got plain, which has no inverse.");
  require_range(kOrigin, "attention_heads", attention_heads, int64_t{1}, kMostChannels);
  require_field(attention_radius > 0 && attention_radius <= kLargestReal, kOrigin, "attention_radius",
                "expected a positive attention_radius, got ", attention_radius, ".");
  require_field(attention_follow >= 0 && attention_follow < 1, kOrigin, "attention_follow",
                "expected attention_follow from 0 to below 1, got ", attention_follow, ".");
  require_fields(attention_follow == 0 || actnorm, kOrigin, {"attention_follow", "actnorm"},
                 "expected actnorm where attention_follow is above 0, got attention_follow ", attention_follow,
                 " and no scale that could follow. Turn actnorm on or set attention_follow to 0.");
  require_range(kOrigin, "dense_blocks", dense_blocks, int64_t{0}, kMostLayers);
  require_range(kOrigin, "dense_hidden", dense_hidden, int64_t{1}, kMostChannels);
  const auto squeezes = static_cast<int64_t>(blocks.size()) - (squeeze ? 0 : 1);
  const auto halves = [squeezes](int64_t side) { return squeezes < 31 && side % (int64_t{1} << squeezes) == 0; };
  require_fields(halves(height) && halves(width), kOrigin, {halves(height) ? "width" : "height", "blocks", "squeeze"},
                 "expected height and width divisible by 2 for each of the ", squeezes, " squeezes, got ", height, " x ", width,
                 ". Crop or pad the images, or use fewer scales.");
  require_fields(!split || blocks.size() == 1 || squeeze || channels % 2 == 0, kOrigin, {"channels", "split", "squeeze"},
                 "expected an even number of channels to split, got ", channels, ". Turn squeeze on or split off.");
}

FlowOptions::Size FlowOptions::size() const {
  Size size;
  const auto add = [&](int64_t count, double inputs, double positions, double inside, int64_t side) {
    if (count == 0) return;
    const double ends = 2 * inputs * inside * static_cast<double>(side * side);
    const double blocks = static_cast<double>(count);
    const double between = static_cast<double>(std::max<int64_t>(layers - 2, 0));
    size.weights += blocks * (layers == 1 ? inputs * inputs * static_cast<double>(side * side) : ends + between * inside * inside);
    size.widest = std::max(size.widest, positions * (layers == 1 ? inputs : std::max(inputs, inside)));
    size.kept += blocks * positions * (inputs + static_cast<double>(layers - 1) * inside);
  };
  double in = static_cast<double>(channels);
  double positions = static_cast<double>(height) * static_cast<double>(width);
  double latents = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0 || squeeze) {
      in *= 4;
      positions /= 4;
    }
    add(blocks[i], in, positions, static_cast<double>(hidden), kernel);
    if (split && i + 1 < blocks.size()) {
      in /= 2;
      latents += in * positions;
    }
  }
  latents += in * positions;
  add(dense_blocks, latents, 1, static_cast<double>(dense_hidden), 1);
  return size;
}

FlowOptions flow_preset(FlowPreset preset) {
  switch (preset) {
    case FlowPreset::kImproved:
      return {.pixels = PixelTransform::kLogit, .activation = Activation::kLipSwish, .constant = 0.98, .attention_blocks = {1, 1, 1}};
    case FlowPreset::kPlane:
      return {.channels = 2,
              .height = 1,
              .width = 1,
              .pixels = PixelTransform::kNone,
              .squeeze = false,
              .blocks = {16},
              .split = false,
              .hidden = 64,
              .kernel = 1,
              .activation = Activation::kLipSwish,
              .constant = 0.98,
              .attention = FlowAttention::kNone,
              .attention_blocks = {}};
    case FlowPreset::kResidualFlow:
      return {.pixels = PixelTransform::kLogit,
              .squeeze = false,
              .split = false,
              .activation = Activation::kLipSwish,
              .constant = 0.941,  // 0.98 for each of three convolutions
              .attention = FlowAttention::kGaussian,
              .attention_blocks = {0, 1, 1},
              .attention_follow = 0.99};
    case FlowPreset::kPaper:
      break;
  }
  return {};
}

FlowImpl::FlowImpl(const FlowOptions& options) : options_(options) {
  options_.validate();
  auto [channels, height, width] = std::array{options_.channels, options_.height, options_.width};
  for (std::size_t i = 0; i < options_.blocks.size(); ++i) {
    const bool squeezes = i > 0 || options_.squeeze;
    if (squeezes) {
      channels *= 4;
      height /= 2;
      width /= 2;
    }
    auto blocks = std::make_shared<SequentialImpl>();
    blocks->recompute(options_.recompute);
    std::vector<ConvolutionImpl*> convolutions;
    for (int64_t block = 0; block < options_.blocks[i]; ++block) {
      convolutions.push_back(add_convolution(*blocks, {channels, height, width}, options_.hidden, options_.kernel));
    }
    for (int64_t block = 0; block < attention_count(options_, i); ++block) {
      add_block(*blocks, channels, std::make_shared<AttentionImpl>(attention_options(options_, channels)), options_.attention_follow);
    }
    register_module("scale" + std::to_string(i), blocks);
    const bool splits = options_.split && i + 1 < options_.blocks.size();
    scales_.push_back({squeezes, std::move(blocks), {channels, height, width}, splits ? channels / 2 : channels, std::move(convolutions)});
    channels = scales_.back().kept;
  }
  if (options_.dense_blocks > 0) {
    dense_ = register_module("dense", std::make_shared<SequentialImpl>());
    dense_->recompute(options_.recompute);
    for (int64_t block = 0; block < options_.dense_blocks; ++block) {
      dense_convolutions_.push_back(add_convolution(*dense_, {dimensions(), 1, 1}, options_.dense_hidden, /*kernel=*/1));
    }
  }
  mean_ = new_weights({dimensions()}).zero_();
  log_deviation_ = new_weights({dimensions()}).zero_();
  if (options_.prior == FlowPrior::kLearned) {
    register_parameter("prior_mean", mean_);
    register_parameter("prior_log_deviation", log_deviation_);
  } else {
    register_buffer("prior_mean", mean_);
    register_buffer("prior_log_deviation", log_deviation_);
  }
}

ConvolutionImpl* FlowImpl::add_convolution(SequentialImpl& blocks, const std::vector<int64_t>& shape, int64_t hidden,
                                           int64_t kernel) const {
  const auto branch = std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = shape[0],
                                                                           .height = shape[1],
                                                                           .width = shape[2],
                                                                           .hidden = hidden,
                                                                           .kernel = kernel,
                                                                           .layers = options_.layers,
                                                                           .activation = options_.activation,
                                                                           .constant = options_.constant,
                                                                           .tolerance = options_.tolerance,
                                                                           .iterations = options_.iterations});
  add_block(blocks, shape[0], branch);
  return branch.get();
}

void FlowImpl::add_block(SequentialImpl& blocks, int64_t channels, std::shared_ptr<BranchImpl> branch, double follow) const {
  auto block = std::make_shared<SequentialImpl>();
  if (options_.actnorm) block->push_back(std::make_shared<ActNormImpl>(ActNormOptions{.channels = channels, .follow = follow}));
  block->push_back(std::make_shared<InvertibleResidualImpl>(std::move(branch)));
  blocks.push_back(block);
}

void FlowImpl::check(const at::Tensor& x) const {
  require_images(x, "Flow");
  require(x.size(1) == options_.channels && x.size(2) == options_.height && x.size(3) == options_.width, "Flow", "expected images (B, ",
          options_.channels, ", ", options_.height, ", ", options_.width, "), got ", x.sizes(),
          ". A flow is made for one size: crop or resize the images, or make another flow.");
  require(x.scalar_type() == mean_.scalar_type() && x.device() == mean_.device(), "Flow", "expected the type and device of the weights, ",
          mean_.scalar_type(), " on ", mean_.device(), ", got ", x.scalar_type(), " on ", x.device(), ". Convert one of them with .to(…).");
}

at::Tensor FlowImpl::transform(const at::Tensor& x) const {
  if (options_.pixels == PixelTransform::kNone) return x;
  if (options_.pixels == PixelTransform::kCentre) return x / kLevels - 0.5;
  return at::logit(options_.alpha + (1 - 2 * options_.alpha) / kLevels * x);
}

at::Tensor FlowImpl::transform_log_det(const at::Tensor& x) const {
  const auto dimension = static_cast<double>(dimensions());
  if (options_.pixels == PixelTransform::kNone) return at::zeros({x.size(0)}, x.options());
  if (options_.pixels == PixelTransform::kCentre) return at::full({x.size(0)}, -dimension * std::log(kLevels), x.options());
  const auto slope = (1 - 2 * options_.alpha) / kLevels;
  const auto s = options_.alpha + slope * x;
  return dimension * std::log(slope) - (s * (1 - s)).log().flatten(1).sum(1);
}

at::Tensor FlowImpl::invert_transform(const at::Tensor& y) const {
  if (options_.pixels == PixelTransform::kNone) return y;
  if (options_.pixels == PixelTransform::kCentre) return (y + 0.5) * kLevels;
  return (at::sigmoid(y) - options_.alpha) * (kLevels / (1 - 2 * options_.alpha));
}

template <class Visit>
at::Tensor FlowImpl::run(const at::Tensor& x, Visit&& visit) {
  check(x);
  auto y = transform(x);
  std::vector<at::Tensor> latents;
  for (std::size_t i = 0; i < scales_.size(); ++i) {
    if (scales_[i].squeezes) y = squeeze_.forward(y);
    y = visit(i, y);
    const auto done = y.size(1) - scales_[i].kept;
    if (done > 0) latents.push_back(flattened(y.narrow(1, scales_[i].kept, done)));
    y = y.narrow(1, 0, scales_[i].kept);
  }
  latents.push_back(flattened(y));
  return at::cat(latents, 1);
}

at::Tensor FlowImpl::forward(const at::Tensor& x, const Given& given) {
  given.refuse("Flow", kNoMask);
  const auto z = run(x, [this](std::size_t i, const at::Tensor& y) { return scales_[i].blocks->forward(y); });
  return dense_ ? dense_->forward(z) : z;
}

std::pair<at::Tensor, LogDet> FlowImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given) {
  given.refuse("Flow", kNoMask);
  check(x);
  std::vector<LogDet> determinants{exact_log_det(transform_log_det(x), options)};
  const auto through = [&](SequentialImpl& blocks, const std::vector<ConvolutionImpl*>& convolutions, std::size_t i, const at::Tensor& y) {
    // A block that will be computed a second time needs weights of its own for that.
    if (!options_.recompute) ConvolutionImpl::prepare(convolutions, y.suggest_memory_format());
    auto [next, part] = blocks.forward_log_det(y, options_for_part(options, i));
    determinants.push_back(std::move(part));
    return next;
  };
  auto z = run(x, [&](std::size_t i, const at::Tensor& y) { return through(*scales_[i].blocks, scales_[i].convolutions, i, y); });
  if (dense_) z = through(*dense_, dense_convolutions_, scales_.size(), z);
  return {z, chained(determinants)};
}

Solution FlowImpl::inverse(const at::Tensor& z, const SolverOptions& options, const Given& given) {
  given.refuse("Flow", kNoMask);
  return inverse(z, [&options](SequentialImpl& blocks, const at::Tensor& y) { return blocks.inverse(y, options); });
}

Solution FlowImpl::inverse(const at::Tensor& z, const std::function<Solution(SequentialImpl&, const at::Tensor&)>& undo) {
  require_images(z, "Flow");
  require(z.size(1) == dimensions() && z.size(2) == 1 && z.size(3) == 1, "Flow", "expected latents (B, ", dimensions(), ", 1, 1), got ",
          z.sizes(), ". Pass what forward() returned.");
  std::vector<InverseReport> reports;
  auto rest = z;
  if (dense_) {
    auto solution = undo(*dense_, rest);
    rest = solution.x;
    reports.push_back(std::move(solution.report));
  }
  at::Tensor y;
  for (auto scale = scales_.rbegin(); scale != scales_.rend(); ++scale) {
    // The scale's own latents are the last ones that are left.
    const auto [channels, height, width] = std::array{scale->shape[0], scale->shape[1], scale->shape[2]};
    const auto own = (scale == scales_.rbegin() ? channels : channels - scale->kept) * height * width;
    const auto latents = rest.narrow(1, rest.size(1) - own, own).reshape({z.size(0), own / (height * width), height, width});
    rest = rest.narrow(1, 0, rest.size(1) - own);
    y = y.defined() ? at::cat({y, latents}, 1) : latents;
    auto solution = undo(*scale->blocks, y);
    y = scale->squeezes ? squeeze_.inverse(solution.x).x : solution.x;
    reports.push_back(std::move(solution.report));
  }
  return {invert_transform(y), InverseReport::combine(std::move(reports))};
}

LogProb FlowImpl::log_prob(const at::Tensor& x, const LogDetOptions& options) {
  check(x);
  if (x.numel() > 0 && (!is_training() || x.is_cpu())) {
    const auto [smallest, largest] = at::aminmax(x.detach());
    const auto [low, high] = std::pair{smallest.item<double>(), largest.item<double>()};
    require(std::isfinite(low) && std::isfinite(high), "Flow", "expected finite images, got NaN or infinity.");
    require(options_.pixels == PixelTransform::kNone || (low >= 0 && high <= kLevels), "Flow", "expected grey levels from 0 to 256, got ",
            low, " to ", high, ". Pass pixels as they are, with noise, not scaled.");
  }
  auto [z, log_det] = forward_log_det(x, options);
  const auto standardised = (z.flatten(1) - mean_) * (-log_deviation_).exp();
  const auto of_latents =
      -0.5 * standardised.square().sum(1) - log_deviation_.sum() - 0.5 * static_cast<double>(dimensions()) * std::log(2 * std::numbers::pi);
  return {.value = of_latents + log_det.value, .standard_error = log_det.standard_error, .exact = log_det.exact};
}

at::Tensor FlowImpl::draw_latents(int64_t count, double temperature, int64_t seed) const {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return draw_latents(count, temperature, generator);
}

at::Tensor FlowImpl::draw_latents(int64_t count, double temperature, at::Generator& generator) const {
  require(count >= 0, "Flow", "expected a number of samples, got ", count, ".");
  require(temperature >= 0 && std::isfinite(temperature), "Flow", "expected a temperature of 0 or more, got ", temperature, ".");
  const auto noise = at::empty({count, dimensions()}, mean_.options().device(at::kCPU).requires_grad(false));
  for (int64_t i = 0; i < count; ++i) noise[i].normal_(0, 1, generator);  // one by one: the end of a draw takes numbers of its own
  return (mean_ + temperature * log_deviation_.exp() * noise.to(mean_.device())).view({count, dimensions(), 1, 1});
}

Solution FlowImpl::sample(int64_t count, double temperature, int64_t seed, const SolverOptions& options) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return sample(count, temperature, generator, options);
}

Solution FlowImpl::sample(int64_t count, double temperature, at::Generator& generator, const SolverOptions& options) {
  auto solution = inverse(draw_latents(count, temperature, generator), options);
  if (solution.report.usable() || count == 0) return solution;
  const auto lost = at::zeros({count, 1, 1, 1}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    if (!is_converged(solution.report.statuses[static_cast<std::size_t>(i)])) lost[i].fill_(std::numeric_limits<float>::quiet_NaN());
  }
  solution.x = solution.x + lost.to(solution.x.options());  // added: gradients find out, too
  return solution;
}

void FlowImpl::measure_statistics(const at::Tensor& x, int64_t batch) {
  if (options_.attention == FlowAttention::kNone || options_.attention_follow == 0) return;
  require(!is_training(), "Flow", "expected evaluation mode to measure statistics in, got training. Call eval() first.");
  require(batch > 0, "Flow", "expected a batch of 1 or more, got ", batch, ".");
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  run(x, [&](std::size_t i, const at::Tensor& y) {
    // Part by part for all batches: what lies between parts is small, what lies inside them is not.
    auto batches = y.split(batch);
    for (const auto& block : scales_[i].blocks->parts()) {
      for (const auto& part : dynamic_cast<SequentialImpl&>(*block).parts()) {
        if (auto* norm = dynamic_cast<ActNormImpl*>(part.get()); norm != nullptr && norm->follows()) norm->settle(batches);
        for (auto& some : batches) some = part->forward(some);
      }
    }
    return at::cat(batches);
  });
}

void FlowImpl::train_in(std::optional<at::ScalarType> type) {
  for (const auto& scale : scales_) {
    for (auto* convolution : scale.convolutions) convolution->train_in(type);
  }
  for (auto* convolution : dense_convolutions_) convolution->train_in(type);
}

void FlowImpl::project() {
  for (const auto& scale : scales_) scale.blocks->project();
  if (dense_) dense_->project();
}

std::string FlowImpl::describe() const { return nlohmann::json{{"type", "flow"}, {"options", fields_to_json(options_)}}.dump(); }

void FlowImpl::pretty_print(std::ostream& stream) const { stream << "Flow(" << print_fields(options_) << ")"; }

}  // namespace invattn

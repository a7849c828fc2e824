#include "invattn/nn/detector.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/rebindable.h"
#include "invattn/nn/weight_budget.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "DetectorOptions";
constexpr int64_t kCoarsest = 32;  // pixels along a side of one position of the coarsest level

at::Tensor enlarged(const at::Tensor& x, int64_t factor) {
  return at::upsample_bilinear2d(x, {x.size(2) * factor, x.size(3) * factor}, /*align_corners=*/true);
}

/// A convolution with bias, begun as torch's.
class WithBias : public RebindableModule {
 public:
  WithBias(int64_t inputs, int64_t outputs, int64_t size) : padding_(size / 2) {
    const double width = 1 / std::sqrt(static_cast<double>(inputs * size * size));
    weight_ = register_parameter("weight", new_weights({outputs, inputs, size, size}).uniform_(-width, width));
    bias_ = register_parameter("bias", new_weights({outputs}).uniform_(-width, width));
  }

  at::Tensor operator()(const at::Tensor& x) const { return at::conv2d(x, weight_, bias_, 1, padding_); }

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { (name == "weight" ? weight_ : bias_) = tensor; }

 private:
  int64_t padding_;
  at::Tensor weight_, bias_;
};

}  // namespace

/// The sum of 3x3 convolutions with several dilations.
class DetectorImpl::Dilated : public RebindableModule {
 public:
  Dilated(int64_t inputs, int64_t outputs, std::vector<int64_t> dilations) : dilations_(std::move(dilations)) {
    for (std::size_t i = 0; i < dilations_.size(); ++i) {
      weights_.push_back(register_parameter("weight" + std::to_string(i), new_weights({outputs, inputs, 3, 3}).normal_(0, 0.01)));
    }
    const double width = 1 / std::sqrt(static_cast<double>(9 * inputs));
    bias_ = register_parameter("bias", new_weights({outputs}).uniform_(-width, width));  // one stands for the sum of several
  }

  at::Tensor operator()(const at::Tensor& x) const {
    at::Tensor sum;
    for (std::size_t i = 0; i < dilations_.size(); ++i) {
      const auto part = at::conv2d(x, weights_[i], i == 0 ? bias_ : at::Tensor(), 1, dilations_[i], dilations_[i]);
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  }

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override {
    if (name == "bias") bias_ = tensor;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (name == "weight" + std::to_string(i)) weights_[i] = tensor;
    }
  }

 private:
  std::vector<int64_t> dilations_;
  std::vector<at::Tensor> weights_;
  at::Tensor bias_;
};

/// A residual block whose branch weighs its channels by what they hold on average (Zhang et al. 2018, RCAB).
class DetectorImpl::ChannelAttention : public torch::nn::Module {
 public:
  ChannelAttention(int64_t channels, int64_t reduction) {
    const int64_t narrow = std::max<int64_t>(1, channels / reduction);
    first_ = register_module("first", std::make_shared<WithBias>(channels, channels, 3));
    second_ = register_module("second", std::make_shared<WithBias>(channels, channels, 3));
    down_ = register_module("down", std::make_shared<WithBias>(channels, narrow, 1));
    up_ = register_module("up", std::make_shared<WithBias>(narrow, channels, 1));
  }

  at::Tensor operator()(const at::Tensor& x) const {
    const auto branch = (*second_)(at::relu((*first_)(x)));
    const auto weight = at::sigmoid((*up_)(at::relu((*down_)(branch.mean({2, 3}, /*keepdim=*/true)))));
    return x + branch * weight;
  }

 private:
  std::shared_ptr<WithBias> first_, second_, down_, up_;
};

std::optional<AttentionKind> kind_of(DetectorVariant variant) {
  switch (variant) {
    case DetectorVariant::kGaussian:
    case DetectorVariant::kInvertibleGaussian:
      return AttentionKind::kGaussian;
    case DetectorVariant::kEmbeddedGaussian:
    case DetectorVariant::kInvertibleEmbeddedGaussian:
      return AttentionKind::kEmbeddedGaussian;
    case DetectorVariant::kDotProduct:
    case DetectorVariant::kInvertibleDotProduct:
      return AttentionKind::kDotProduct;
    case DetectorVariant::kConcatenation:
    case DetectorVariant::kInvertibleConcatenation:
      return AttentionKind::kConcatenation;
    case DetectorVariant::kDistance:
    case DetectorVariant::kInvertibleDistance:
      return AttentionKind::kDistance;
    case DetectorVariant::kBase:
      break;
  }
  return std::nullopt;
}

bool is_invertible(DetectorVariant variant) { return to_string(variant).starts_with("invertible-"); }

void DetectorOptions::validate() const {
  validate_field("backbone", backbone);
  require_field(preset != AttentionPreset::kPlain, kOrigin, "preset",
                "expected the preset guarded, strict, paper or published-code of invertible attention, ",
                "got plain. For plain attention name the variant without `invertible-`.");
  require_field(size > 0 && size % kCoarsest == 0, kOrigin, "size", "expected a size that is a positive multiple of ", kCoarsest, ", got ",
                size, ".");
  require_range(kOrigin, "size", size, kCoarsest, kLargestSide);
  require_field(channels > 0, kOrigin, "channels", "expected positive channels, got ", channels, ".");
  require_range(kOrigin, "channels", channels, int64_t{1}, kMostChannels);
  require_fields(heads > 0 && channels % heads == 0, kOrigin, {"heads", "channels"}, "expected heads to divide the ", channels,
                 " channels, got ", heads, " heads.");
  require_field(reduction > 0, kOrigin, "reduction", "expected a positive reduction, got ", reduction, ".");
  require_range(kOrigin, "reduction", reduction, int64_t{1}, kMostChannels);
  for (const auto& [name, list] : {std::pair{"dilations", &dilations}, std::pair{"last_dilations", &last_dilations}}) {
    require_field(!list->empty() && list->size() <= 100 &&
                      std::all_of(list->begin(), list->end(), [](int64_t value) { return value > 0 && value <= kLargestSide; }),
                  kOrigin, name, "expected one or more positive dilations, at most 100, got ", print_field(*list), ".");
  }
}

std::shared_ptr<DetectorImpl::Dilated> DetectorImpl::add_dilated(const std::string& name, int64_t inputs, int64_t outputs,
                                                                 const std::vector<int64_t>& dilations) {
  return register_module(name, std::make_shared<Dilated>(inputs, outputs, dilations));
}

DetectorImpl::DetectorImpl(const DetectorOptions& options) : options_(options) {
  options_.validate();
  const int64_t channels = options_.channels;
  backbone_ = register_module("backbone", ResNet(options_.backbone));
  for (std::size_t level = 0; level < reduce_.size(); ++level) {
    const std::string number = std::to_string(level + 1);
    reduce_[level] = add_dilated("reduce" + number, backbone_->channels(static_cast<int64_t>(level)), channels, options_.dilations);
    const auto kind = kind_of(options_.variant);
    if (!kind) continue;
    const bool invertible = is_invertible(options_.variant);
    auto attention = attention_preset(invertible ? options_.preset : AttentionPreset::kPlain, *kind, channels);
    attention.heads = options_.heads;
    if (attention.start == Start::kContraction) attention.start = Start::kUniform;  // the layers behind are to see what is there
    if (invertible) {
      const auto block = std::make_shared<InvertibleAttentionImpl>(attention);
      invertible_.push_back(register_module("attention" + number, block));
      attention_.push_back(std::dynamic_pointer_cast<AttentionImpl>(block->attention().shared_from_this()));
    } else {
      attention_.push_back(register_module("attention" + number, std::make_shared<AttentionImpl>(attention)));
    }
  }
  for (std::size_t i = 0; i < fuse_.size(); ++i) {
    const auto joined = static_cast<int64_t>(i + 2) * channels;
    const std::string number = std::to_string(3 - i);  // the level that joins
    const bool last = i + 1 == fuse_.size();
    weigh_[i] = register_module("weigh" + number, std::make_shared<ChannelAttention>(joined, options_.reduction));
    fuse_[i] = add_dilated("fuse" + number, joined, last ? 1 : channels, last ? options_.last_dilations : options_.dilations);
  }
}

std::array<at::Tensor, 4> DetectorImpl::features(const at::Tensor& pixels) {
  require(pixels.defined() && pixels.dim() == 4 && pixels.size(2) > 0 && pixels.size(3) > 0 && pixels.size(2) % kCoarsest == 0 &&
              pixels.size(3) % kCoarsest == 0,
          "Detector", "expected images (B, 3, H, W) with H and W multiples of ", kCoarsest, ", got ",
          pixels.defined() ? pixels.sizes() : at::IntArrayRef{}, ". Resize them first.");
  auto levels = backbone_->forward(pixels);
  for (std::size_t i = 0; i < levels.size(); ++i) levels[i] = (*reduce_[i])(levels[i]);
  return levels;
}

at::Tensor DetectorImpl::attended(std::size_t level, const at::Tensor& x) {
  if (!invertible_.empty()) return invertible_[level]->forward(x);
  return attention_.empty() ? x : x + attention_[level]->forward(x);
}

at::Tensor DetectorImpl::forward(const at::Tensor& pixels) {
  auto levels = features(pixels);
  for (std::size_t i = 0; i < levels.size(); ++i) levels[i] = attended(i, levels[i]);
  const auto four = enlarged(levels[3], 2);
  const auto join = [this](std::size_t i, const std::vector<at::Tensor>& parts) { return (*fuse_[i])((*weigh_[i])(at::cat(parts, 1))); };
  const auto three = enlarged(join(0, {four, levels[2]}), 2);
  const auto two = enlarged(join(1, {enlarged(four, 2), three, levels[1]}), 2);
  return enlarged(join(2, {enlarged(four, 4), enlarged(three, 2), two, levels[0]}), 4);
}

std::string DetectorImpl::describe() const { return nlohmann::json{{"type", "detector"}, {"options", fields_to_json(options_)}}.dump(); }

void DetectorImpl::pretty_print(std::ostream& stream) const { stream << "Detector(" << print_fields(options_) << ")"; }

void copy_backbone(const ResNetImpl& from, DetectorImpl& to) {
  const at::NoGradGuard no_grad;
  const auto copy = [](const auto& sources, const auto& targets) {
    for (const auto& item : targets) {
      const auto* source = sources.find(item.key());
      require(source != nullptr && source->sizes() == item.value().sizes(), "copy_backbone",
              "expected a backbone of the detector's shape, ", "got one whose '", item.key(), "' is missing or of another shape.");
      item.value().copy_(*source);
    }
  };
  copy(from.named_parameters(), to.backbone()->named_parameters());
  copy(from.named_buffers(), to.backbone()->named_buffers());
}

void save_detector(const std::filesystem::path& path, DetectorImpl& detector) { save_model(path, detector, detector.describe()); }

Detector make_detector(const std::string& description) {
  const auto json = parse_json(description, "make_detector");
  if (!json.is_object() || !json.contains("type") || json["type"] != "detector" || !json.contains("options")) {
    fail(ErrorKind::kData, "make_detector", "expected a detector, got a model of another type. `invattn info` says what it is.");
  }
  DetectorOptions options;
  fields_from_json(options, json["options"], "make_detector");
  return Detector(options);
}

Detector load_detector(const std::filesystem::path& path) {
  Detector detector{nullptr};
  load_model(path, [&](const std::string& description) -> std::shared_ptr<torch::nn::Module> {
    detector = make_detector(description);
    return detector.ptr();
  });
  return detector;
}

}  // namespace invattn

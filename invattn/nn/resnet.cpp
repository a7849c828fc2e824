#include "invattn/nn/resnet.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <system_error>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/io/printable.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/batch_mean.h"
#include "invattn/nn/rebindable.h"
#include "invattn/nn/weight_budget.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "ResNetOptions";
constexpr int64_t kExpansion = 4;
constexpr double kMomentum = 0.1;

/// As He et al. begin: the variance of a signal that goes backwards through a rectifier stays as it is.
at::Tensor new_kernel(int64_t inputs, int64_t outputs, int64_t size) {
  const double deviation = std::sqrt(2 / static_cast<double>(outputs * size * size));
  return new_weights({outputs, inputs, size, size}).normal_(0, deviation);
}

}  // namespace

/// torch's own counts batches, too, which is a launch per layer for a number that nobody reads.
class ResNetImpl::BatchNorm : public RebindableModule {
 public:
  BatchNorm(int64_t channels, double eps) : eps_(eps) {
    weight_ = register_parameter("weight", new_weights({channels}).fill_(1));
    bias_ = register_parameter("bias", new_weights({channels}).zero_());
    mean_ = register_buffer("running_mean", new_weights({channels}).zero_());
    variance_ = register_buffer("running_var", new_weights({channels}).fill_(1));
  }

  at::Tensor operator()(const at::Tensor& x) {
    if (is_training() && batches_together() > 1) return over_all(x);
    return at::batch_norm(x, weight_, bias_, mean_, variance_, is_training(), kMomentum, eps_, /*cudnn_enabled=*/true);
  }

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { (name == "weight" ? weight_ : bias_) = tensor; }

 private:
  /// With mean and variance of the batches of all processes.
  at::Tensor over_all(const at::Tensor& x) {
    const auto per_channel = [](const at::Tensor& values) { return values.view({1, -1, 1, 1}); };
    const auto mean = differentiable_batch_mean(x.mean({0, 2, 3}));
    const auto centred = x - per_channel(mean);
    const auto variance = differentiable_batch_mean(centred.square().mean({0, 2, 3}));
    {
      const at::NoGradGuard no_grad;
      const int64_t of_channel = x.numel() / x.size(1);
      const double count = static_cast<double>(batches_together()) * static_cast<double>(of_channel);
      mean_.lerp_(mean, kMomentum);
      variance_.lerp_(variance * (count / (count - 1)), kMomentum);
    }
    return centred * per_channel(weight_ * (variance + eps_).rsqrt()) + per_channel(bias_);
  }

  double eps_;
  at::Tensor weight_, bias_, mean_, variance_;
};

/// A convolution without bias, under a name that its weight shares with torchvision's.
class ResNetImpl::Kernel : public RebindableModule {
 public:
  Kernel(int64_t inputs, int64_t outputs, int64_t size, int64_t stride) : stride_(stride), padding_(size / 2) {
    weight_ = register_parameter("weight", new_kernel(inputs, outputs, size));
  }

  at::Tensor operator()(const at::Tensor& x) const { return at::conv2d(x, weight_, {}, stride_, padding_); }

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { weight_ = tensor; }

 private:
  int64_t stride_, padding_;
  at::Tensor weight_;
};

/// A place for `fc`.
class ResNetImpl::Linear : public RebindableModule {
 public:
  Linear(int64_t inputs, int64_t outputs) {
    const double width = 1 / std::sqrt(static_cast<double>(inputs));
    weight = register_parameter("weight", new_weights({outputs, inputs}).uniform_(-width, width));
    bias = register_parameter("bias", new_weights({outputs}).uniform_(-width, width));
  }

  at::Tensor weight, bias;

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { (name == "weight" ? weight : bias) = tensor; }
};

class ResNetImpl::Bottleneck : public torch::nn::Module {
 public:
  Bottleneck(int64_t inputs, int64_t width, int64_t stride, const ResNetOptions& options) {
    const bool first = options.stride_in == StrideIn::kFirst;
    conv1_ = register_module("conv1", std::make_shared<Kernel>(inputs, width, 1, first ? stride : 1));
    bn1_ = register_module("bn1", std::make_shared<BatchNorm>(width, options.batch_norm_eps));
    conv2_ = register_module("conv2", std::make_shared<Kernel>(width, width, 3, first ? 1 : stride));
    bn2_ = register_module("bn2", std::make_shared<BatchNorm>(width, options.batch_norm_eps));
    conv3_ = register_module("conv3", std::make_shared<Kernel>(width, kExpansion * width, 1, 1));
    bn3_ = register_module("bn3", std::make_shared<BatchNorm>(kExpansion * width, options.batch_norm_eps));
    if (stride == 1 && inputs == kExpansion * width) return;
    const auto downsample = register_module("downsample", std::make_shared<torch::nn::Module>());
    shortcut_ = downsample->register_module("0", std::make_shared<Kernel>(inputs, kExpansion * width, 1, stride));
    shortcut_norm_ = downsample->register_module("1", std::make_shared<BatchNorm>(kExpansion * width, options.batch_norm_eps));
  }

  at::Tensor operator()(const at::Tensor& x) {
    auto y = at::relu((*bn1_)((*conv1_)(x)));
    y = at::relu((*bn2_)((*conv2_)(y)));
    y = (*bn3_)((*conv3_)(y));
    return at::relu(y + (shortcut_ ? (*shortcut_norm_)((*shortcut_)(x)) : x));
  }

 private:
  std::shared_ptr<Kernel> conv1_, conv2_, conv3_, shortcut_;  // the last may be none
  std::shared_ptr<BatchNorm> bn1_, bn2_, bn3_, shortcut_norm_;
};

void ResNetOptions::validate() const {
  require_field(width > 0, kOrigin, "width", "expected a positive width, got ", width, ".");
  require_range(kOrigin, "width", width, int64_t{1}, kMostChannels / 32);
  require_field(
      blocks.size() == 4 && std::all_of(blocks.begin(), blocks.end(), [](int64_t count) { return count > 0 && count <= kMostLayers; }),
      kOrigin, "blocks", "expected four positive numbers of blocks, each at most ", kMostLayers, ", got ", print_field(blocks), ".");
  require_field(batch_norm_eps > 0 && batch_norm_eps <= 1, kOrigin, "batch_norm_eps",
                "expected a positive batch_norm_eps of at most 1, got ", batch_norm_eps, ".");
  require_field(mean.size() == 3 && std::all_of(mean.begin(), mean.end(), [](double value) { return std::abs(value) <= kLargestReal; }),
                kOrigin, "mean", "expected the means of three colours, got ", print_field(mean), ".");
  require_field(deviation.size() == 3 &&
                    std::all_of(deviation.begin(), deviation.end(), [](double value) { return value > 0 && value <= kLargestReal; }),
                kOrigin, "deviation", "expected the positive deviations of three colours, got ", print_field(deviation), ".");
  require_range(kOrigin, "classes", classes, int64_t{0}, kMostChannels);
}

ResNetImpl::ResNetImpl(const ResNetOptions& options) : options_(options) {
  options_.validate();
  const auto of_colours = [](const std::vector<double>& values) { return at::tensor(values, at::kFloat).view({3, 1, 1}); };
  mean_ = register_buffer("input_mean", of_colours(options_.mean));
  deviation_ = register_buffer("input_deviation", of_colours(options_.deviation));
  conv1_ = register_module("conv1", std::make_shared<Kernel>(3, options_.width, 7, 2));
  bn1_ = register_module("bn1", std::make_shared<BatchNorm>(options_.width, options_.batch_norm_eps));
  int64_t inputs = options_.width;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto stage = register_module("layer" + std::to_string(i + 1), std::make_shared<torch::nn::Module>());
    const int64_t width = options_.width << i;
    for (int64_t block = 0; block < options_.blocks[i]; ++block) {
      const int64_t stride = block == 0 && i > 0 ? 2 : 1;
      stages_[i].push_back(stage->register_module(std::to_string(block), std::make_shared<Bottleneck>(inputs, width, stride, options_)));
      inputs = kExpansion * width;
    }
  }
  if (options_.classes > 0) fc_ = register_module("fc", std::make_shared<Linear>(inputs, options_.classes));
}

std::array<at::Tensor, 4> ResNetImpl::forward(const at::Tensor& pixels) {
  require(pixels.defined() && pixels.dim() == 4 && pixels.size(1) == 3 && pixels.is_floating_point(), "ResNet",
          "expected grey levels (B, 3, H, W) of a floating type, got ", pixels.defined() ? pixels.toString() : "nothing", " ",
          pixels.defined() ? pixels.sizes() : at::IntArrayRef{}, ".");
  auto x = (pixels - mean_) / deviation_;
  x = at::relu((*bn1_)((*conv1_)(x)));
  x = at::max_pool2d(x, 3, 2, 1);
  std::array<at::Tensor, 4> levels;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    for (const auto& block : stages_[i]) x = (*block)(x);
    levels[i] = x;
  }
  return levels;
}

at::Tensor ResNetImpl::classify(const at::Tensor& pixels) {
  require(fc_ != nullptr, "ResNet", "expected a network with classes, got one without. Load a file that has fc.weight and fc.bias.");
  return at::linear(forward(pixels)[3].mean({2, 3}), fc_->weight, fc_->bias);
}

void ResNetImpl::pretty_print(std::ostream& stream) const { stream << "ResNet(" << print_fields(options_) << ")"; }

namespace {

/// The numbers of a text, as they come; none where one of them is more than a double can hold.
std::vector<double> numbers_in(const std::string& text) {
  std::vector<double> result;
  const auto is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* start = *at == '+' ? at + 1 : at;
    const char* digits = start < end && *start == '-' ? start + 1 : start;  // not "inf", nor "nan", as in "information"
    const bool is_number = digits < end && (is_digit(*digits) || (*digits == '.' && digits + 1 < end && is_digit(digits[1])));
    if (!is_number) {
      ++at;
      continue;
    }
    double value = 0;
    const auto [next, problem] = std::from_chars(start, end, value);
    if (problem != std::errc()) return {};
    result.push_back(value);
    at = next;
  }
  return result;
}

[[noreturn]] void fail_metadata(const std::string& file, const char* key, const char* expected, const std::string& got) {
  fail(ErrorKind::kData, "load_resnet", file, ": expected the metadata '", key, "' to be ", expected, ", got ", in_quotes(got),
       ". Convert the weights again, or take the key out if they are torchvision's.");
}

/// What the shapes and the metadata say; `bgr` where the first convolution wants blue first.
ResNetOptions options_of(const SafetensorsFile& file, const std::string& name, bool& bgr) {
  ResNetOptions options;
  const auto first = file.tensors.find("conv1.weight");
  if (first == file.tensors.end() || first->second.dim() != 4 || first->second.size(0) == 0) {
    fail(ErrorKind::kData, "load_resnet", name, ": expected a tensor 'conv1.weight' (width, 3, 7, 7), got ",
         first == file.tensors.end() ? "none of that name" : "another shape", ". The file must hold a ResNet under torchvision's names.");
  }
  options.width = first->second.size(0);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string stage = "layer" + std::to_string(i + 1) + ".";
    options.blocks[i] = 0;
    while (file.tensors.contains(stage + std::to_string(options.blocks[i]) + ".conv1.weight")) ++options.blocks[i];
    if (options.blocks[i] == 0) {
      fail(ErrorKind::kData, "load_resnet", name, ": expected a tensor '", stage, "0.conv1.weight', got none of that name.",
           " The file must hold a ResNet of bottleneck blocks under torchvision's names.");
    }
  }
  if (const auto fc = file.tensors.find("fc.weight"); fc != file.tensors.end() && fc->second.dim() == 2) {
    options.classes = fc->second.size(0);
  }
  const auto note = [&file](const char* key) {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  if (const std::string text = note("batch_norm_eps"); !text.empty()) {
    const auto values = numbers_in(text);
    if (values.size() != 1 || !(values[0] > 0)) fail_metadata(name, "batch_norm_eps", "a positive number", text);
    options.batch_norm_eps = values[0];
  }
  if (const std::string text = note("stride_in"); !text.empty()) {
    if (!text.starts_with("first") && !text.starts_with("second")) fail_metadata(name, "stride_in", "first … or second …", text);
    options.stride_in = text.starts_with("first") ? StrideIn::kFirst : StrideIn::kSecond;
  }
  bgr = false;
  if (const std::string text = note("input"); !text.empty()) {
    const std::size_t minus = text.find("0..255, minus (");
    const auto values = numbers_in(minus == std::string::npos ? "" : text.substr(text.find('(', minus)));
    bgr = text.starts_with("BGR");
    if (!(bgr || text.starts_with("RGB")) || values.size() != 3)
      fail_metadata(name, "input", "'BGR, 0..255, minus (b, g, r)' or 'RGB, 0..255, minus (r, g, b)'", text);
    options.mean = values;
    if (bgr) std::reverse(options.mean.begin(), options.mean.end());
    options.deviation = {1, 1, 1};
  }
  try {
    options.validate();
  } catch (const Error& problem) {
    fail(ErrorKind::kData, "load_resnet", name, ": ", problem.what(), " Convert the weights again, or take another file.");
  }
  return options;
}

}  // namespace

ResNet load_resnet(const std::filesystem::path& path) {
  const SafetensorsFile file = read_safetensors(path);
  const std::string name = printable_path(path);
  bool bgr = false;
  const ResNetOptions options = options_of(file, name, bgr);
  const WeightBudget budget(name, file.tensors);
  ResNet network(options);
  std::map<std::string, at::Tensor> targets;
  for (const auto& item : network->named_parameters()) targets[item.key()] = item.value();
  for (const auto& item : network->named_buffers()) {
    if (!item.key().starts_with("input_")) targets[item.key()] = item.value();
  }
  for (const auto& [key, tensor] : file.tensors) {
    if (!targets.contains(key) && !key.ends_with("num_batches_tracked")) {
      fail(ErrorKind::kData, "load_resnet", name, ": expected only tensors of a ResNet of bottleneck blocks, got ", in_quotes(key), ".");
    }
  }
  const at::NoGradGuard no_grad;
  for (auto& [key, target] : targets) {
    const auto found = file.tensors.find(key);
    if (found == file.tensors.end()) {
      fail(ErrorKind::kData, "load_resnet", name, ": expected a tensor '", key, "' of shape ", target.sizes(), ", got none of that name.");
    }
    const at::Tensor& stored = found->second;
    if (stored.sizes() != target.sizes() || !stored.is_floating_point()) {
      fail(ErrorKind::kData, "load_resnet", name, ": expected '", key, "' of floating type and shape ", target.sizes(), ", got ",
           stored.scalar_type(), " ", stored.sizes(), ".");
    }
    if (!stored.isfinite().all().item<bool>()) {
      fail(ErrorKind::kData, "load_resnet", name, ": expected finite weights, got NaN or infinity in '", key, "'.");
    }
    target.copy_(bgr && key == "conv1.weight" ? stored.flip(1) : stored);
  }
  network->eval();
  return network;
}

}  // namespace invattn

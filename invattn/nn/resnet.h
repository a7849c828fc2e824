#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/core/names.h"

namespace invattn {

/// Which convolution of the first block of a stage halves the image.
enum class StrideIn {
  kFirst,   ///< the first 1x1, as in the paper that introduced residual networks
  kSecond,  ///< the 3x3, as torchvision has it
};

template <>
struct EnumNames<StrideIn> {
  static constexpr std::string_view kWhat = "a place of the stride";
  static constexpr std::array<std::pair<StrideIn, std::string_view>, 2> kNames{
      {{StrideIn::kFirst, "first"}, {StrideIn::kSecond, "second"}}};
};

/// The defaults are torchvision's ResNet-50.
struct ResNetOptions {
  int64_t width = 64;                       ///< channels behind the first convolution; the levels have 4, 8, 16 and 32 times as many
  std::vector<int64_t> blocks{3, 4, 6, 3};  ///< of the four stages
  StrideIn stride_in = StrideIn::kSecond;   ///< which convolution halves the image
  double batch_norm_eps = 1e-5;             ///< added to variances
  std::vector<double> mean{123.675, 116.28, 103.53};     ///< of red, green and blue, 0..255, taken away from the input
  std::vector<double> deviation{58.395, 57.12, 57.375};  ///< the input is divided by it afterwards
  int64_t classes = 0;                                   ///< outputs of the linear layer behind the mean over positions; 0: none

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("width", self.width, "channels behind the first convolution; the four levels have 4, 8, 16 and 32 times as many");
    field("blocks", self.blocks, "blocks of the four stages");
    field("stride_in", self.stride_in, "which convolution of a stage's first block halves the image: first (1x1) or second (3x3)");
    field("batch_norm_eps", self.batch_norm_eps, "added to variances");
    field("mean", self.mean, "of red, green and blue, 0..255, taken away from the input");
    field("deviation", self.deviation, "the input is divided by it afterwards");
    field("classes", self.classes, "outputs of the linear layer at the end; 0: none");
  }

  /// Throws a usage error that names the first field out of range.
  void validate() const;
};

/// A residual network of bottleneck blocks (He et al. 2015), ResNet-50 by default, as a backbone. Its weights have torchvision's names.
class ResNetImpl : public torch::nn::Module {
 public:
  explicit ResNetImpl(const ResNetOptions& options);

  /// The four levels, (B, 4w, H/4, W/4) to (B, 32w, H/32, W/32), of grey levels (B, 3, H, W), 0..255, red, green, blue. Sizes are
  /// rounded up.
  std::array<at::Tensor, 4> forward(const at::Tensor& pixels);

  /// (B, classes), before the softmax. A usage error without classes.
  at::Tensor classify(const at::Tensor& pixels);

  /// Channels of level 0 to 3.
  int64_t channels(int64_t level) const { return 4 * (options_.width << level); }

  void pretty_print(std::ostream& stream) const override;
  const ResNetOptions& options() const { return options_; }

 private:
  class BatchNorm;
  class Kernel;
  class Bottleneck;
  class Linear;

  ResNetOptions options_;
  at::Tensor mean_, deviation_;  // (3, 1, 1)
  std::shared_ptr<Kernel> conv1_;
  std::shared_ptr<BatchNorm> bn1_;
  std::array<std::vector<std::shared_ptr<Bottleneck>>, 4> stages_;
  std::shared_ptr<Linear> fc_;  // none without classes
};
TORCH_MODULE(ResNet);

/// The network that a safetensors file with torchvision's names holds, in evaluation mode: width and blocks follow from its tensors,
/// half precision becomes float32, and `fc` is there if the file has it. The file's metadata may say how it differs from torchvision:
/// `batch_norm_eps` (a number), `stride_in` (begins with "first" or "second"), `input` ("BGR, 0..255, minus (b, g, r)"). A file
/// without them is torchvision's. The network always takes red, green and blue: weights of a BGR network are turned round.
/// Missing, unexpected, ill-shaped or non-finite tensors are an Error(kData) that names file and tensor.
ResNet load_resnet(const std::filesystem::path& path);

}  // namespace invattn

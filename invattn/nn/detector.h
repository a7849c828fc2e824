#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/core/names.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/resnet.h"

namespace invattn {

/// The paper's nine networks, and two with the kind distance: without attention, and with each kind, plain or invertible.
enum class DetectorVariant {
  kBase,
  kGaussian,
  kEmbeddedGaussian,
  kDotProduct,
  kConcatenation,
  kDistance,
  kInvertibleGaussian,
  kInvertibleEmbeddedGaussian,
  kInvertibleDotProduct,
  kInvertibleConcatenation,
  kInvertibleDistance,
};

template <>
struct EnumNames<DetectorVariant> {
  static constexpr std::string_view kWhat = "a variant";
  static constexpr std::array<std::pair<DetectorVariant, std::string_view>, 11> kNames{
      {{DetectorVariant::kBase, "base"},
       {DetectorVariant::kGaussian, "gaussian"},
       {DetectorVariant::kEmbeddedGaussian, "embedded-gaussian"},
       {DetectorVariant::kDotProduct, "dot-product"},
       {DetectorVariant::kConcatenation, "concatenation"},
       {DetectorVariant::kDistance, "distance"},
       {DetectorVariant::kInvertibleGaussian, "invertible-gaussian"},
       {DetectorVariant::kInvertibleEmbeddedGaussian, "invertible-embedded-gaussian"},
       {DetectorVariant::kInvertibleDotProduct, "invertible-dot-product"},
       {DetectorVariant::kInvertibleConcatenation, "invertible-concatenation"},
       {DetectorVariant::kInvertibleDistance, "invertible-distance"}}};
};

/// The kind of attention of a variant; none for the base.
std::optional<AttentionKind> kind_of(DetectorVariant variant);
bool is_invertible(DetectorVariant variant);

/// The defaults are the paper's network.
struct DetectorOptions {
  DetectorVariant variant = DetectorVariant::kBase;
  AttentionPreset preset = AttentionPreset::kGuarded;  ///< the other options of invertible attention; plain attention is the preset plain
  int64_t heads = 1;                                   ///< of plain and invertible attention
  int64_t size = 352;                                  ///< height and width that images are resized to, a multiple of 32
  bool antialias = true;                               ///< smooth images (and masks) that are shrunk to it, as Pillow does
  ResNetOptions backbone{};
  int64_t channels = 32;                               ///< that each level is reduced to
  std::vector<int64_t> dilations{3, 6, 12, 18};        ///< of the convolutions that reduce a level, or fuse several
  std::vector<int64_t> last_dilations{6, 12, 18, 24};  ///< of those that make the map
  int64_t reduction = 16;                              ///< of the channel attention

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("variant", self.variant, "base, or the kind of attention at each level, alone (plain) or behind `invertible-`");
    field("preset", self.preset, "the other options of invertible attention: guarded, strict, paper or published-code");
    field("heads", self.heads, "of plain and invertible attention; divides channels");
    field("size", self.size, "height and width that images are resized to, a multiple of 32");
    field("antialias", self.antialias, "smooth images and masks that are shrunk to it, as Pillow does");
    field("backbone", self.backbone, "the residual network");
    field("channels", self.channels, "that each level is reduced to");
    field("dilations", self.dilations, "of the 3x3 convolutions whose sum reduces a level, or fuses several");
    field("last_dilations", self.last_dilations, "of those that make the map");
    field("reduction", self.reduction, "of the channel attention: it passes through channels / reduction");
  }

  /// Throws a usage error that names the first field out of range.
  void validate() const;
};

/// The paper's network for camouflaged objects (its section 4.3): a backbone whose four levels are each reduced by dilated convolutions,
/// given an attention block of the variant, and fused from the coarsest to the finest.
///
/// The finest level has size^2 / 16 positions, 7,744 by default: attention never holds the map of all pairs.
class DetectorImpl : public torch::nn::Module {
 public:
  explicit DetectorImpl(const DetectorOptions& options);

  /// (B, 1, H, W): above 0 where there is an object, before the sigmoid; of grey levels (B, 3, H, W), 0..255, H and W multiples of 32.
  at::Tensor forward(const at::Tensor& pixels);

  /// The features of each level where its attention takes them.
  std::array<at::Tensor, 4> features(const at::Tensor& pixels);

  /// The blocks of an invertible variant, finest level first; else empty.
  const std::vector<std::shared_ptr<InvertibleAttentionImpl>>& invertible_blocks() const { return invertible_; }
  /// The attention of each level, plain or inside its block; empty for the base.
  const std::vector<std::shared_ptr<AttentionImpl>>& attention() const { return attention_; }

  ResNet& backbone() { return backbone_; }
  const DetectorOptions& options() const { return options_; }
  std::string describe() const;
  void pretty_print(std::ostream& stream) const override;

 private:
  class Dilated;
  class ChannelAttention;

  at::Tensor attended(std::size_t level, const at::Tensor& x);
  std::shared_ptr<Dilated> add_dilated(const std::string& name, int64_t inputs, int64_t outputs, const std::vector<int64_t>& dilations);

  DetectorOptions options_;
  ResNet backbone_{nullptr};
  std::array<std::shared_ptr<Dilated>, 4> reduce_;
  std::vector<std::shared_ptr<AttentionImpl>> attention_;
  std::vector<std::shared_ptr<InvertibleAttentionImpl>> invertible_;
  std::array<std::shared_ptr<ChannelAttention>, 3> weigh_;  // of two, three and four levels together
  std::array<std::shared_ptr<Dilated>, 3> fuse_;
};
TORCH_MODULE(Detector);

/// The weights of a backbone into that of a detector of the same shape; its classes are left out.
void copy_backbone(const ResNetImpl& from, DetectorImpl& to);

/// Builds a detector from what `describe()` returned.
Detector make_detector(const std::string& description);

/// As for bijections (archive.h): weights, options and certificates in one file.
void save_detector(const std::filesystem::path& path, DetectorImpl& detector);
Detector load_detector(const std::filesystem::path& path);

}  // namespace invattn

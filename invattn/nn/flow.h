#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/bijection.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"

namespace invattn {

/// What a flow does with its input before anything else.
enum class PixelTransform {
  kNone,    ///< nothing: any numbers
  kCentre,  ///< x / 256 - 0.5, of grey levels 0..256
  kLogit,   ///< log(s / (1 - s)) with s = alpha + (1 - 2 alpha) x / 256: no probability lies outside the grey levels (but for alpha)
};

/// The kinds of attention, or none.
enum class FlowAttention { kNone, kGaussian, kEmbeddedGaussian, kDotProduct, kConcatenation, kDistance };

/// The distribution of the latents.
enum class FlowPrior {
  kLearned,   ///< a Gaussian with a mean and a standard deviation for each of them, learned; starts as the standard normal
  kStandard,  ///< the standard normal
};

template <>
struct EnumNames<PixelTransform> {
  static constexpr std::string_view kWhat = "a transform of the pixels";
  static constexpr std::array<std::pair<PixelTransform, std::string_view>, 3> kNames{
      {{PixelTransform::kNone, "none"}, {PixelTransform::kCentre, "centre"}, {PixelTransform::kLogit, "logit"}}};
};

template <>
struct EnumNames<FlowAttention> {
  static constexpr std::string_view kWhat = "a kind of attention";
  static constexpr std::array<std::pair<FlowAttention, std::string_view>, 6> kNames{
      {{FlowAttention::kNone, "none"},
       {FlowAttention::kGaussian, "gaussian"},
       {FlowAttention::kEmbeddedGaussian, "embedded-gaussian"},
       {FlowAttention::kDotProduct, "dot-product"},
       {FlowAttention::kConcatenation, "concatenation"},
       {FlowAttention::kDistance, "distance"}}};
};

template <>
struct EnumNames<FlowPrior> {
  static constexpr std::string_view kWhat = "a prior";
  static constexpr std::array<std::pair<FlowPrior, std::string_view>, 2> kNames{
      {{FlowPrior::kLearned, "learned"}, {FlowPrior::kStandard, "standard"}}};
};

/// The defaults are the paper's network for CIFAR-10.
struct FlowOptions {
  int64_t channels = 3;                                          ///< C of the images
  int64_t height = 32;                                           ///< of the images
  int64_t width = 32;                                            ///< of the images
  PixelTransform pixels = PixelTransform::kCentre;               ///< what the input goes through first
  double alpha = 0.05;                                           ///< logit: how far the grey levels stay away from 0 and 1
  bool squeeze = true;                                           ///< 2x2 pixels become channels before the first scale too
  std::vector<int64_t> blocks{16, 16, 16};                       ///< convolution blocks of each scale
  bool split = true;                                             ///< after each scale but the last, half of the channels are done
  int64_t hidden = 512;                                          ///< channels inside the convolution branches
  int64_t kernel = 3;                                            ///< of their first and last convolution
  int64_t layers = 3;                                            ///< their convolutions
  Activation activation = Activation::kElu;                      ///< between them
  double constant = 0.9;                                         ///< Lipschitz constant of every branch, attention included
  double tolerance = 1e-4;                                       ///< of the power iterations
  int64_t iterations = 1;                                        ///< power iterations per training step; 0: to the tolerance
  bool actnorm = true;                                           ///< a scale and shift per channel in front of every block
  FlowAttention attention = FlowAttention::kConcatenation;       ///< the kind of the attention blocks
  AttentionPreset attention_preset = AttentionPreset::kGuarded;  ///< their other options
  int64_t attention_heads = 1;                                   ///< of each of them
  std::vector<int64_t> attention_blocks{1};  ///< how many of them stand behind the blocks of each scale; 0 where not given
  double attention_radius = 3;               ///< preset strict: entries beyond are clipped inside the branch
  double attention_follow = 0;               ///< of the ActNorm in front of attention (ActNormOptions::follow)
  int64_t dense_blocks = 0;                  ///< fully connected residual blocks behind the last scale, over all latents
  int64_t dense_hidden = 128;                ///< numbers inside their branches
  FlowPrior prior = FlowPrior::kLearned;     ///< the distribution of the latents
  bool recompute = false;                    ///< training keeps the inputs of the blocks only: less memory, more time

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("channels", self.channels, "channels of the images");
    field("height", self.height, "height of the images");
    field("width", self.width, "width of the images");
    field("pixels", self.pixels, "what the input goes through first: none, centre (x / 256 - 0.5) or logit");
    field("alpha", self.alpha, "logit: how far the grey levels stay away from 0 and 1");
    field("squeeze", self.squeeze, "2x2 pixels become channels before the first scale too");
    field("blocks", self.blocks, "convolution blocks of each scale; the scales after the first begin with a squeeze");
    field("split", self.split, "after each scale but the last, half of the channels are done");
    field("hidden", self.hidden, "channels inside the convolution branches");
    field("kernel", self.kernel, "odd; of their first and last convolution, those between are 1x1");
    field("layers", self.layers, "their convolutions");
    field("activation", self.activation, "between them: elu, lipswish or clipswish");
    field("constant", self.constant, "Lipschitz constant of every branch, attention included");
    field("tolerance", self.tolerance, "of the power iterations for the spectral norms");
    field("iterations", self.iterations, "power iterations per training step; 0: to the tolerance, as outside training");
    field("actnorm", self.actnorm, "a scale and shift per channel in front of every block");
    field("attention", self.attention, "the kind of the attention blocks, or none");
    field("attention_preset", self.attention_preset, "their other options: guarded, strict, paper or published-code");
    field("attention_heads", self.attention_heads, "heads of each of them; divides the channels of every scale that has attention");
    field("attention_blocks", self.attention_blocks, "how many of them stand behind the blocks of each scale; 0 where not given");
    field("attention_radius", self.attention_radius, "preset strict: entries beyond are clipped inside the branch");
    field("attention_follow", self.attention_follow,
          "0: the scale in front of attention is learned; else it follows the batches, and keeps this much of itself with each");
    field("dense_blocks", self.dense_blocks, "fully connected residual blocks behind the last scale, over all latents");
    field("dense_hidden", self.dense_hidden, "numbers inside their branches");
    field("prior", self.prior, "the distribution of the latents: learned (a mean and deviation each) or standard");
    field("recompute", self.recompute, "training keeps the inputs of the blocks only: less memory, more time");
  }

  /// Throws a usage error that names the first field out of range, or what does not go together.
  void validate() const;

  /// How large the network is without building it, at least: what is small beside its convolutions is left out. As real numbers, which do
  /// not overflow.
  struct Size {
    double weights = 0;
    double widest = 0;  ///< numbers of one image within a branch, where they are most
    double kept = 0;    ///< numbers of one image that a training step keeps for its gradient, without `recompute`
  };
  Size size() const;
};

/// Sets of options with a name.
enum class FlowPreset {
  kPaper,         ///< the paper's network for CIFAR-10: ELU, constant 0.9, one attention block at the first scale
  kImproved,      ///< the same size by later findings: LipSwish, constant 0.98, logit transform, attention at every scale
  kPlane,         ///< points of the plane as images of 1 x 1 with 2 channels, without attention, which needs positions
  kResidualFlow,  ///< Residual Flow's layout for CIFAR-10, 3 @ 32x32, 12 @ 16x16, 48 @ 8x8, with attention at the last two scales
};

template <>
struct EnumNames<FlowPreset> {
  static constexpr std::string_view kWhat = "a preset";
  static constexpr std::array<std::pair<FlowPreset, std::string_view>, 4> kNames{{{FlowPreset::kPaper, "paper"},
                                                                                  {FlowPreset::kImproved, "improved"},
                                                                                  {FlowPreset::kPlane, "plane"},
                                                                                  {FlowPreset::kResidualFlow, "residual-flow"}}};
};

FlowOptions flow_preset(FlowPreset preset);

/// log p(x) of each sample, in nats, of the density over x as it is given to the flow.
struct LogProb {
  at::Tensor value;           ///< (B)
  at::Tensor standard_error;  ///< (B), no graph: of the log-determinant's estimate (LogDet); undefined where the value only is asked for
  int64_t exact = 0;          ///< as LogDet's
};

/// A normalizing flow: a multi-scale i-ResNet with attention blocks, and a prior on what comes out.
///
///   Flow flow(flow_preset(FlowPreset::kPaper));
///   auto loss = -flow->log_prob(pixels, SeriesLogDet{}).value.mean();   // pixels: (B, 3, 32, 32), grey levels + noise, 0..256
///   loss.backward(); …
///   auto [images, report] = flow->sample(64, 0.7, /*seed=*/1);
///
/// Scale by scale: [squeeze,] convolution blocks, attention blocks, [split]. A block is [ActNorm,] InvertibleResidual. As a bijection it
/// takes images (B, C, H, W) to latents (B, D, 1, 1) with D = C H W: what the splits put aside, scale after scale, then the last scale; all of
/// them through the dense blocks, where there are any, each with a scale and shift per latent.
///
/// In training mode, after the first batch and with fixed `iterations`, a forward pass never waits for the device; an input in
/// channels-last format stays in it throughout.
class FlowImpl : public BijectionImpl {
 public:
  explicit FlowImpl(const FlowOptions& options);

  using BijectionImpl::forward_log_det;
  using BijectionImpl::inverse;
  at::Tensor forward(const at::Tensor& x, const Given& given = {}) override;
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given = {}) override;
  Solution inverse(const at::Tensor& z, const SolverOptions& options, const Given& given = {}) override;
  /// By a way of one's own: `undo` gives what went into the blocks of a scale (or the dense ones) from what came out, the last first.
  Solution inverse(const at::Tensor& z, const std::function<Solution(SequentialImpl& blocks, const at::Tensor& y)>& undo);
  void project() override;
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

  /// Refuses pixels that are not finite or not in 0..256 (any finite number without a pixel transform); in training on a GPU it does not
  /// look, since that would make the device wait: the result is then not finite.
  LogProb log_prob(const at::Tensor& x, const LogDetOptions& options);

  /// x of latents drawn from the prior with its standard deviations multiplied by `temperature`. A sample that the solver did not find is
  /// NaN throughout, and the report says so. The same seed draws the same latents on every device. Differentiable as `inverse` is, in the
  /// weights of the prior, too.
  Solution sample(int64_t count, double temperature, int64_t seed, const SolverOptions& options);
  Solution sample(int64_t count, double temperature, int64_t seed) { return sample(count, temperature, seed, AndersonOptions{}); }
  /// The next ones of a generator on the CPU: drawn in parts of any size they are those that one call with its seed draws.
  Solution sample(int64_t count, double temperature, at::Generator& generator, const SolverOptions& options);

  /// Latents with this seed, (count, D, 1, 1): what `sample` inverts.
  at::Tensor draw_latents(int64_t count, double temperature, int64_t seed) const;
  at::Tensor draw_latents(int64_t count, double temperature, at::Generator& generator) const;

  /// Sets the scales and shifts that follow batches (`attention_follow`) to where batches of so many of these images would take them under the
  /// present weights (ActNormImpl::settle), in the order of the flow: each is measured behind the ones before it. In evaluation mode. Without
  /// such scales it does nothing.
  void measure_statistics(const at::Tensor& x, int64_t batch);

  /// See ConvolutionImpl::train_in.
  void train_in(std::optional<at::ScalarType> type);

  int64_t dimensions() const { return options_.channels * options_.height * options_.width; }
  const FlowOptions& options() const { return options_; }

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { (name == "prior_mean" ? mean_ : log_deviation_) = tensor; }

 private:
  struct Scale {
    bool squeezes;                                 // its input
    std::shared_ptr<SequentialImpl> blocks;        // each a Sequential of [ActNorm,] InvertibleResidual
    std::vector<int64_t> shape;                    // (C, H, W) inside
    int64_t kept;                                  // channels that go on to the next scale; C at the last scale and without split
    std::vector<ConvolutionImpl*> convolutions{};  // of the blocks
  };
  /// Adds [ActNorm,] x + g(x) with convolutions of this kernel, and says which they are.
  ConvolutionImpl* add_convolution(SequentialImpl& blocks, const std::vector<int64_t>& shape, int64_t hidden, int64_t kernel) const;
  void add_block(SequentialImpl& blocks, int64_t channels, std::shared_ptr<BranchImpl> branch, double follow = 0) const;
  /// Runs the parts in order; `visit(scale, y)` runs the blocks of one.
  template <class Visit>
  at::Tensor run(const at::Tensor& x, Visit&& visit);
  void check(const at::Tensor& x) const;
  at::Tensor transform(const at::Tensor& x) const;
  at::Tensor transform_log_det(const at::Tensor& x) const;
  at::Tensor invert_transform(const at::Tensor& y) const;

  FlowOptions options_;
  std::vector<Scale> scales_;
  std::shared_ptr<SequentialImpl> dense_;  // over the latents, (B, D, 1, 1); none without dense blocks
  std::vector<ConvolutionImpl*> dense_convolutions_;
  SqueezeImpl squeeze_;
  at::Tensor mean_, log_deviation_;  // (D): of the prior; parameters, or buffers of zeros
};
TORCH_MODULE(Flow);

}  // namespace invattn

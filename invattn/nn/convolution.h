#pragma once

#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/lipschitz/spectral_norm.h"
#include "invattn/nn/branch.h"

namespace invattn {

/// Activations with Lipschitz constant 1.
enum class Activation {
  kElu,
  kLipSwish,   ///< x sigmoid(beta x) / 1.1 with a learned beta > 0: smooth, and its slope does not vanish together with its curvature
  kCLipSwish,  ///< (LipSwish(x), LipSwish(-x)) / 1.004, twice as many channels: hardly ever loses slope, and so constant
};

template <>
struct EnumNames<Activation> {
  static constexpr std::string_view kWhat = "an activation";
  static constexpr std::array<std::pair<Activation, std::string_view>, 3> kNames{
      {{Activation::kElu, "elu"}, {Activation::kLipSwish, "lipswish"}, {Activation::kCLipSwish, "clipswish"}}};
};

struct ConvolutionOptions {
  int64_t channels = 0;                           ///< C of the input; has to be given
  int64_t height = 0;                             ///< H of the input, which the spectral norms belong to; has to be given
  int64_t width = 0;                              ///< W of the input; has to be given
  int64_t hidden = 128;                           ///< channels inside
  int64_t kernel = 3;                             ///< odd; of the first and the last convolution, those between are 1x1
  int64_t layers = 3;                             ///< convolutions, with an activation between each two
  Activation activation = Activation::kLipSwish;  ///< has Lipschitz constant 1
  double constant = 0.9;                          ///< of the branch: each convolution gets its layers-th root
  double tolerance = 1e-4;                        ///< of the power iterations
  int64_t iterations = 0;                         ///< power iterations per training step; 0: to the tolerance, as outside training

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("channels", self.channels, "channels of the input; has to be given");
    field("height", self.height, "height of the input; has to be given");
    field("width", self.width, "width of the input; has to be given");
    field("hidden", self.hidden, "channels inside");
    field("kernel", self.kernel, "odd; of the first and the last convolution, those between are 1x1");
    field("layers", self.layers, "convolutions, with an activation between each two");
    field("activation", self.activation, "between convolutions; has Lipschitz constant 1");
    field("constant", self.constant, "of the branch: each convolution gets its layers-th root");
    field("tolerance", self.tolerance, "of the power iterations for the spectral norms");
    field("iterations", self.iterations, "power iterations per training step; 0: to the tolerance, as outside training");
  }

  void validate() const;

  /// (O, I, k, k) of each convolution.
  std::vector<std::vector<int64_t>> weight_shapes() const;
};

/// The branch of an i-ResNet: convolutions whose spectral norms multiply to the constant.
///
/// In training mode with fixed `iterations` the norms follow the weights without the host waiting for the device; in evaluation mode,
/// `project` and whatever is saved they are measured to the tolerance. An input in channels-last format is convolved in that format.
class ConvolutionImpl : public BranchImpl {
 public:
  explicit ConvolutionImpl(const ConvolutionOptions& options);

  at::Tensor forward(const at::Tensor& x) override;
  BranchValue forward_with_vjp(const at::Tensor& x) override;
  FrozenBranch freeze(const at::Tensor& example) override;
  void project() override;
  void scale_by(const at::Tensor& factor) override;
  /// Also forgets what was worked out from the weights, which a replayed CUDA graph changes without a trace.
  void train(bool on = true) override;
  Policy policy() const override { return Policy::kProduct; }
  double constant() const override { return options_.constant; }
  Certificate certificate() const override;
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

  /// Training passes convolve in this type (bfloat16), with the input, the output and the weights themselves in their own; none: in the
  /// type of the weights. Spectral norms, evaluation and inverses are not touched.
  void train_in(std::optional<at::ScalarType> type) { reduced_ = type; }

  /// In training mode: works out the weights that the next call of each of these branches takes, for all at once. They are equal in their
  /// options, and their inputs will be in this format.
  static void prepare(const std::vector<ConvolutionImpl*>& branches, at::MemoryFormat format);

  const ConvolutionOptions& options() const { return options_; }

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override;

 private:
  struct Layer {
    at::Tensor weight;  // (O, I, k, k)
    at::Tensor bias;    // (O)
    at::Tensor beta;    // of the activation behind it, before the softplus; undefined for the last layer and for ELU
    ConvolutionNorm norm;
  };
  /// What a pass convolves with, by layer.
  struct Constrained {
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> biases;
    at::Tensor betas;                // (layers - 1), of the activations; undefined for ELU
    std::vector<at::Tensor> shifts;  // (1, C, 1, 1), taken from the activations behind each layer but the last; empty: nothing is
    at::Tensor at_zero;              // (1, C, H, W), where there are shifts: g(0), the last layer's bias among it
  };
  class Slopes;
  class PointLinearization;

  void check(const at::Tensor& x) const;
  Constrained constrained(const at::Tensor& example, at::ScalarType type);
  Constrained constrained_for(const at::Tensor& x);
  void centre(Constrained& maps) const;
  static at::Tensor activate(Activation activation, const Layer& layer, at::Tensor input);
  at::Tensor evaluate(const Constrained& maps, const at::Tensor& x) const;
  at::Tensor pass(const Constrained& maps, Slopes& slopes, const at::Tensor& x) const;
  static at::Tensor pulled_back(const std::vector<at::Tensor>& weights, const Slopes& slopes, const at::Tensor& cotangent);
  double layer_constant() const;
  std::vector<at::Tensor> betas() const;
  at::ScalarType computed_in() const;

  ConvolutionOptions options_;
  std::vector<Layer> layers_;
  std::optional<at::ScalarType> reduced_;
  Constrained prepared_;           // for the next call
  uint32_t prepared_version_ = 0;  // of the first layer's weights then
};
TORCH_MODULE(Convolution);

}  // namespace invattn

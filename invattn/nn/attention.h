#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "invattn/core/fields.h"
#include "invattn/lipschitz/attention_bound.h"
#include "invattn/lipschitz/policy.h"
#include "invattn/nn/branch.h"
#include "invattn/nn/rebindable.h"
#include "invattn/ops/response_attention.h"

namespace invattn {

/// The paper's four response functions (its table 1), and one by distances, whose constant has a bound on the whole space.
enum class AttentionKind {
  kGaussian,          ///< exp(x_i . x_j)
  kEmbeddedGaussian,  ///< exp(W_1 x_i . W_2 x_j)
  kDotProduct,        ///< phi(W_1 x_i . W_2 x_j)
  kConcatenation,     ///< phi(W_3 [W_1 x_i, W_2 x_j])
  kDistance,          ///< exp(-|q_i - q_j|^2) with q = W_1 x + b_1, and F a map of q, without bias
};

/// What stands after the weighted sum.
enum class OutputMap {
  kLinear,  ///< W_L, a 1x1 convolution
  kGate,    ///< one number, tanh(gamma), that starts at 0
  kNone,    ///< nothing, as in the paper's plain attention
};

/// What the weights are before training.
enum class Start {
  kUniform,      ///< as torch's convolutions begin
  kIdentity,     ///< W_L = 0, so that the block begins as the identity; F close to it; query and key that tell bright from dark positions
  kContraction,  ///< g about -0.8 of what F and the positions' brightness hold of x, by a map that is nearly even: made for strict columns
};

/// What a strict branch does with inputs outside the domain of its bound.
enum class OutsideDomain {
  kReport,  ///< computes them all the same; inverse reports count them
  kThrow,   ///< refuses them
  kClip,    ///< uses g(clip(x)): the bound then holds everywhere, since clipping is a contraction
};

template <>
struct EnumNames<AttentionKind> {
  static constexpr std::string_view kWhat = "a kind of attention";
  static constexpr std::array<std::pair<AttentionKind, std::string_view>, 5> kNames{
      {{AttentionKind::kGaussian, "gaussian"},
       {AttentionKind::kEmbeddedGaussian, "embedded-gaussian"},
       {AttentionKind::kDotProduct, "dot-product"},
       {AttentionKind::kConcatenation, "concatenation"},
       {AttentionKind::kDistance, "distance"}}};
};

template <>
struct EnumNames<OutputMap> {
  static constexpr std::string_view kWhat = "an output map";
  static constexpr std::array<std::pair<OutputMap, std::string_view>, 3> kNames{
      {{OutputMap::kLinear, "linear"}, {OutputMap::kGate, "gate"}, {OutputMap::kNone, "none"}}};
};

template <>
struct EnumNames<Start> {
  static constexpr std::string_view kWhat = "a start";
  static constexpr std::array<std::pair<Start, std::string_view>, 3> kNames{
      {{Start::kUniform, "uniform"}, {Start::kIdentity, "identity"}, {Start::kContraction, "contraction"}}};
};

template <>
struct EnumNames<OutsideDomain> {
  static constexpr std::string_view kWhat = "a way to treat inputs outside the domain";
  static constexpr std::array<std::pair<OutsideDomain, std::string_view>, 3> kNames{
      {{OutsideDomain::kReport, "report"}, {OutsideDomain::kThrow, "throw"}, {OutsideDomain::kClip, "clip"}}};
};

struct AttentionOptions {
  int64_t channels = 0;                                   ///< C of the input; has to be given
  AttentionKind kind = AttentionKind::kConcatenation;     ///< the response function
  Normalization normalization = Normalization::kColumns;  ///< what the response map is divided by
  Response phi = Response::kEluPlusOne;                   ///< of dot-product and concatenation; the other kinds use exp
  int64_t bottleneck = 4;                                 ///< query and key have C / bottleneck channels over all heads, at least one each
  int64_t heads = 1;                                      ///< response maps, each with its share of query, key and F; divides C
  bool relative = false;                                  ///< distance: A_i = sum_j R_ij (F_j - F_i) in place of sum_j R_ij F_j
  double mass = 1.0;                                      ///< what columns (rows, all) of the map sum to (appendix, technique 4)
  double value_constant = 0.9;                            ///< c of F; 0: unconstrained
  double output_constant = 0.9;                           ///< c of W_L; 0: unconstrained
  double response_constant = 0.0;                         ///< c of W_1, W_2 and W_3 (appendix, technique 5); 0: unconstrained
  double score_scale = 1.0;                               ///< Gaussian: exp(scale (x_i + shift) . (x_j + shift)); 1 and 0 in the paper
  double score_shift = 0.0;                               ///< the same in every channel; docs/reference/math.md says what it is for
  OutputMap output = OutputMap::kLinear;                  ///< what stands after the weighted sum
  Start start = Start::kUniform;                          ///< the weights before training
  bool bias = true;                                       ///< biases of the 1x1 maps
  Policy policy = Policy::kGuarded;                       ///< how g is kept under constant 1
  double constant = 0.9;                                  ///< the constant that guarded and strict hold g under
  double radius = 1.0;                                    ///< strict: the bound is for entries of x within [-radius, radius]
  OutsideDomain outside = OutsideDomain::kReport;         ///< strict: what happens to other inputs

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("channels", self.channels, "channels of the input; has to be given");
    field("kind", self.kind, "the response function");
    field("normalization", self.normalization, "what the response map is divided by");
    field("phi", self.phi, "activation of dot-product and concatenation; the other kinds use exp");
    field("bottleneck", self.bottleneck, "query and key have channels / bottleneck channels over all heads, at least one each");
    field("heads", self.heads, "response maps, each with its share of query, key and F; divides channels");
    field("relative", self.relative, "distance: sums differences F_j - F_i in place of F_j");
    field("mass", self.mass, "what the columns (rows, all) of the response map sum to");
    field("value_constant", self.value_constant, "Lipschitz constant of F; 0: unconstrained");
    field("output_constant", self.output_constant, "Lipschitz constant of W_L; 0: unconstrained");
    field("response_constant", self.response_constant, "Lipschitz constant of W_1, W_2 and W_3; 0: unconstrained");
    field("score_scale", self.score_scale, "Gaussian: exp(scale (x_i + shift) . (x_j + shift)); 1 in the paper");
    field("score_shift", self.score_shift, "Gaussian: the shift of every channel; 0 in the paper");
    field("output", self.output, "what stands after the weighted sum");
    field("start", self.start, "the weights before training");
    field("bias", self.bias, "biases of the 1x1 maps");
    field("policy", self.policy, "how g is kept under constant 1");
    field("constant", self.constant, "the constant that the policies guarded and strict hold g under");
    field("radius", self.radius, "strict: the bound is for entries of x within [-radius, radius]");
    field("outside", self.outside, "strict: what happens to inputs outside that domain");
  }

  /// Throws a usage error that names the first field out of range, or two that do not go together.
  void validate() const;

  /// The response map these options ask for.
  ResponseMap map() const;
};

/// Sets of options with a name.
enum class AttentionPreset {
  kPlain,          ///< the paper's table 1, upper half: ordinary attention, not invertible
  kPaper,          ///< the paper's text: columns, phi >= 0, F and W_L at 0.9
  kPublishedCode,  ///< the paper's code: rows, mass 1/1.5, phi = ELU, query and key at 0.9; Gaussian with a gate
  kGuarded,        ///< guarded, with the normalisation and the start that train best for the kind (docs/guide/choosing.md)
  kStrict,         ///< columns of a nearly even map, query and key constrained, and a proved bound
};

template <>
struct EnumNames<AttentionPreset> {
  static constexpr std::string_view kWhat = "a preset";
  static constexpr std::array<std::pair<AttentionPreset, std::string_view>, 5> kNames{{{AttentionPreset::kPlain, "plain"},
                                                                                       {AttentionPreset::kPaper, "paper"},
                                                                                       {AttentionPreset::kPublishedCode, "published-code"},
                                                                                       {AttentionPreset::kGuarded, "guarded"},
                                                                                       {AttentionPreset::kStrict, "strict"}}};
};

AttentionOptions attention_preset(AttentionPreset preset, AttentionKind kind, int64_t channels);

/// A map of each position, x_i -> W x_i + b, with W held under a Lipschitz constant: the paper's F, W_L, W_1, W_2 and W_3.
class PointwiseMapImpl : public RebindableModule {
 public:
  PointwiseMapImpl(int64_t inputs, int64_t outputs, bool bias, double constant);

  double constant() const { return constant_; }  ///< 0: not held
  void project();
  void scale_by(const at::Tensor& factor);
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight;  // (outputs, inputs)
  at::Tensor bias;    // (outputs), undefined without

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { (name == "weight" ? weight : bias) = tensor; }

 private:
  double constant_;
};
TORCH_MODULE(PointwiseMap);

/// W_L A(x): the attention branch of all kinds, plain or constrained.
///
/// A position of x is a column of the flattened image, N = H W, or one of a sequence or set (B, N, C). NaN in a sample stays in that sample.
class AttentionImpl : public BranchImpl {
 public:
  explicit AttentionImpl(const AttentionOptions& options);

  at::Tensor forward(const at::Tensor& x) override;
  FrozenBranch freeze(const at::Tensor& example) override;
  void project() override;
  void scale_by(const at::Tensor& factor) override;
  /// W_L = 0 (F = 0 where there is no W_L), biases too, so that g is 0 everywhere: to see what a trained network owes to it.
  void switch_off();
  bool takes_images() const override { return false; }  // sequences, too
  Policy policy() const override { return options_.policy; }
  double constant() const override { return options_.constant; }
  Certificate certificate() const override;
  int64_t outside_domain(const at::Tensor& x) const override;
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

  /// R(x), (B, N, N): how much each position takes from each; with several heads, their mean.
  at::Tensor response(const at::Tensor& x);

  /// The same between cells of `factor` x `factor` positions, (B, P, P): how much of what a cell's positions take, on average, comes from
  /// each cell; of a sequence, cells of `factor` positions. The whole map is never in memory, so that large images can be looked at.
  at::Tensor response(const at::Tensor& x, int64_t factor);

  /// The terms of the bound on the constant of A over the domain of `options().radius`, at N positions; of the kind distance, over the
  /// whole space.
  AttentionBound bound(int64_t positions) const;

  const AttentionOptions& options() const { return options_; }

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { gate_ = tensor; }

 private:
  /// An affine map of positions; undefined weights stand for the identity.
  struct Affine {
    at::Tensor weight;                                         // (outputs, inputs)
    at::Tensor bias;                                           // (outputs)
    at::Tensor operator()(const at::Tensor& positions) const;  // (B, inputs, N) -> (B, outputs, N)
    at::Tensor linear(const at::Tensor& tangents) const;       // without the bias
    at::Tensor adjoint(const at::Tensor& cotangents) const;    // (B, outputs, N) -> (B, inputs, N)
  };
  /// The constrained maps as used at N positions. The kind distance has no key, and its F is a map of the query.
  struct Maps {
    Affine query, key, value, output;
    bool symmetric = false;  // query and key are one map
  };
  class PointLinearization;

  void start_as_identity();
  void start_as_contraction();
  void check(const at::Tensor& x, const char* origin) const;
  Maps maps(int64_t positions) const;
  /// Query and key of the kind gaussian: x_i shifted, and scaled by the root of the scale. Made once, not at every call.
  Affine score_map() const;
  /// Query, key and value of every head, (B heads, ..., N): heads are samples to whatever computes attention.
  AttentionInputs inputs(const Maps& maps, const at::Tensor& positions) const;
  MapNorms norms(const Affine& map) const;
  at::Tensor score_at_zero(const Maps& maps) const;
  AttentionBound bound(const Maps& maps, int64_t positions) const;
  at::Tensor attend(const Maps& maps, const at::Tensor& positions) const;
  at::Tensor evaluate(const Maps& maps, const at::Tensor& x) const;
  bool clips() const { return options_.policy == Policy::kStrict && options_.outside == OutsideDomain::kClip; }
  /// Whether what is proved holds for |entries of x| <= radius only.
  bool has_domain() const { return options_.policy == Policy::kStrict && options_.kind != AttentionKind::kDistance && !clips(); }
  at::Tensor clipped(const at::Tensor& positions) const;

  AttentionOptions options_;
  PointwiseMap query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr};
  PointwiseMap concat_{nullptr};  // W_3, (heads, 2 d / heads), without bias
  at::Tensor gate_;               // gamma
  mutable std::mutex score_mutex_;
  mutable Affine score_map_;  // as made for the weights' device and type
};
TORCH_MODULE(Attention);

}  // namespace invattn

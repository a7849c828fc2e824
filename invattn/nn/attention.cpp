#include "invattn/nn/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/io/json_fields.h"
#include "invattn/lipschitz/spectral_norm.h"
#include "invattn/nn/weight_budget.h"
#include "invattn/ops/attention_inverse.h"
#include "invattn/ops/composed_score.h"
#include "invattn/ops/distance_attention.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "AttentionOptions";

bool has_query(AttentionKind kind) { return kind != AttentionKind::kGaussian; }
bool is_distance(AttentionKind kind) { return kind == AttentionKind::kDistance; }
bool has_key(AttentionKind kind) { return has_query(kind) && !is_distance(kind); }
bool uses_phi(AttentionKind kind) { return kind == AttentionKind::kDotProduct || kind == AttentionKind::kConcatenation; }

/// A projection aims this far below the constant, so that rounding does not put it above and the forward pass has nothing left to do.
constexpr double kBelow = 1 - 1e-6;

constexpr double kStartingGain = 0.85;  // of F, and of the response map with its bias
constexpr double kStartingShare = 0.8;  // of W_L

/// Channels of query and key of each head.
int64_t head_width(const AttentionOptions& options) {
  return std::max<int64_t>(1, options.channels / (options.bottleneck * options.heads));
}

DistanceMap distance_map(const AttentionOptions& options) { return {options.normalization, options.mass, options.relative}; }

int64_t position_count(const at::Tensor& x) { return x.dim() == 3 ? x.size(1) : x.size(2) * x.size(3); }

/// (B, C, H, W) or (B, N, C) -> (B, C, N)
at::Tensor positions_of(const at::Tensor& x) { return x.dim() == 3 ? x.transpose(1, 2).contiguous() : x.flatten(2); }

/// (B, C, N) as what had this shape.
at::Tensor in_shape(const at::Tensor& positions, at::IntArrayRef shape) {
  return shape.size() == 3 ? positions.transpose(1, 2).contiguous() : positions.reshape(shape);
}

/// (B, H c, N) -> (B H, c, N): heads as samples.
at::Tensor split_heads(const at::Tensor& positions, int64_t heads) {
  if (heads == 1) return positions;
  return positions.reshape({positions.size(0) * heads, positions.size(1) / heads, positions.size(2)});
}

/// (B H, c, N) -> (B, H c, N)
at::Tensor join_heads(const at::Tensor& positions, int64_t heads) {
  if (heads == 1) return positions;
  return positions.reshape({positions.size(0) / heads, positions.size(1) * heads, positions.size(2)});
}

/// (B H, n, m) -> (B, n, m)
at::Tensor mean_of_heads(const at::Tensor& maps, int64_t heads) {
  return heads == 1 ? maps : maps.unflatten(0, {maps.size(0) / heads, heads}).mean(1);
}

}  // namespace

ResponseMap AttentionOptions::map() const {
  return {kind == AttentionKind::kConcatenation ? Score::kSum : Score::kProduct, uses_phi(kind) ? phi : Response::kExponential,
          normalization, mass};
}

void AttentionOptions::validate() const {
  require_field(channels > 0 && channels <= kMostChannels, kOrigin, "channels", "expected a positive number of channels, got ", channels,
                ". Set it to C of the input, for example AttentionOptions{.channels = 12}.");
  require_field(bottleneck > 0, kOrigin, "bottleneck", "expected a positive bottleneck, got ", bottleneck, ".");
  require_fields(heads > 0 && channels % heads == 0, kOrigin, {"heads", "channels"}, "expected heads to divide the ", channels,
                 " channels, got ", heads, " heads.");
  require_fields(!relative || is_distance(kind), kOrigin, {"relative", "kind"},
                 "expected relative = true for the kind distance only, got it for ", kind, ".");
  require_field(mass > 0 && mass <= kLargestReal, kOrigin, "mass", "expected a positive mass, got ", mass, ".");
  for (const auto& [name, value] : {std::pair{"value_constant", value_constant}, std::pair{"output_constant", output_constant},
                                    std::pair{"response_constant", response_constant}}) {
    require_field(value >= 0 && value <= kLargestReal, kOrigin, name, "expected ", name, " to be a positive constant, or 0 for none, got ",
                  value, ".");
  }
  require_field(constant > 0 && constant < 1, kOrigin, "constant", "expected a constant between 0 and 1, got ", constant, ".");
  require_field(radius > 0 && radius <= kLargestReal, kOrigin, "radius", "expected a positive, finite radius, got ", radius, ".");
  const auto response = map().response;
  require_fields(
      !(normalization == Normalization::kCount && response == Response::kExponential && !is_distance(kind)), kOrigin,
      {"normalization", "kind"},
      "expected the Gaussian kinds to be divided by a sum of their responses, got normalisation count, with which exp overflows. "
      "Use columns, rows, all or balanced.");
  const bool has_sign = response == Response::kElu || response == Response::kIdentity;
  require_fields(!(normalization == Normalization::kBalanced && has_sign), kOrigin, {"phi", "normalization"},
                 "expected a phi without sign for normalisation balanced, got ", response, ". Use elu+1, softplus or relu.");
  require_fields(response != Response::kExponential || !uses_phi(kind), kOrigin, {"phi", "kind"},
                 "expected phi to be elu+1, softplus, relu, elu or identity for ", kind,
                 ", got exp. For exp use the kind embedded-gaussian.");
  require_field(score_scale > 0 && std::isfinite(score_scale) && std::isfinite(score_shift), kOrigin,
                std::isfinite(score_shift) ? "score_scale" : "score_shift",
                "expected a positive score_scale and a finite score_shift, got ", score_scale, " and ", score_shift, ".");
  require_fields(kind == AttentionKind::kGaussian || (score_scale == 1 && score_shift == 0), kOrigin,
                 {"score_scale", "score_shift", "kind"}, "expected score_scale and score_shift for the kind gaussian only, got ",
                 score_scale, " and ", score_shift, " for ", kind, ", whose query and key maps can do the same.");
  require_fields(start != Start::kContraction || output == OutputMap::kLinear, kOrigin, {"start", "output"},
                 "expected output = linear for start = contraction, which begins with W_L, got output ", output, ".");
  require_field(policy != Policy::kProduct, kOrigin, "policy",
                "expected the policy none, paper, guarded or strict, got product, which is for convolutions.");
  if (policy == Policy::kStrict) {
    if (is_distance(kind)) {
      check_fields({"normalization", "relative"}, [&] { require_distance_bound_exists(normalization, relative); });
      require_field(outside == OutsideDomain::kReport, kOrigin, "outside",
                    "expected outside = report for the kind distance, whose strict bound holds for every x, got ", outside, ".");
    } else {
      check_fields({"phi", "normalization", "kind"}, [&] { require_bound_exists(map()); });
    }
    require_fields(
        output == OutputMap::kLinear && output_constant > 0 && value_constant > 0, kOrigin,
        {output == OutputMap::kLinear ? output_constant > 0 ? "value_constant" : "output_constant" : "output", "policy"},
        "expected a constrained F and W_L for the policy strict (output linear, value_constant and output_constant above 0), got output ",
        output, ", ", value_constant, " and ", output_constant, ".");
  }
}

namespace {

AttentionOptions by_distance(AttentionOptions options, Policy policy) {
  options.policy = policy;
  options.normalization = Normalization::kCount;
  options.relative = true;
  options.bottleneck = 1;
  options.start = Start::kIdentity;
  return options;
}

}  // namespace

AttentionOptions attention_preset(AttentionPreset preset, AttentionKind kind, int64_t channels) {
  AttentionOptions options{.channels = channels, .kind = kind};
  switch (preset) {
    case AttentionPreset::kPlain:
      options.normalization = uses_phi(kind) ? Normalization::kCount : Normalization::kRows;
      options.phi = Response::kIdentity;
      options.value_constant = options.output_constant = 0;
      options.output = OutputMap::kNone;
      options.policy = Policy::kNone;
      break;
    case AttentionPreset::kPaper:
      options.policy = Policy::kPaper;
      break;
    case AttentionPreset::kPublishedCode:
      options.normalization = Normalization::kRows;
      options.phi = Response::kElu;
      options.mass = 1 / 1.5;
      options.response_constant = 0.9;
      options.value_constant = kind == AttentionKind::kDotProduct ? 0.5 : 0.9;
      options.output = kind == AttentionKind::kGaussian ? OutputMap::kGate : OutputMap::kLinear;
      options.policy = Policy::kPaper;
      break;
    case AttentionPreset::kGuarded:
      if (is_distance(kind)) return by_distance(options, Policy::kGuarded);
      // Found by training each kind under the guard on three data sets (docs/guide/choosing.md).
      if (!uses_phi(kind)) options.normalization = Normalization::kBalanced;
      if (kind != AttentionKind::kConcatenation) options.start = Start::kIdentity;
      if (kind == AttentionKind::kGaussian) {
        options.score_scale = 0.05;
        options.score_shift = 2;
      }
      break;
    case AttentionPreset::kStrict:
      if (is_distance(kind)) return by_distance(options, Policy::kStrict);
      options.policy = Policy::kStrict;
      // The bound grows with the spread of the scores: small query and key maps leave more to W_L.
      options.start = Start::kContraction;
      options.response_constant = kind == AttentionKind::kConcatenation ? 1 : 0.1;  // its scores pass two maps
      if (kind == AttentionKind::kGaussian) {
        options.score_scale = 1e-3;
        options.score_shift = 10;
      }
      break;
  }
  return options;
}

PointwiseMapImpl::PointwiseMapImpl(int64_t inputs, int64_t outputs, bool with_bias, double constant) : constant_(constant) {
  const double width = 1 / std::sqrt(static_cast<double>(inputs));  // as torch's convolutions begin
  weight = register_parameter("weight", new_weights({outputs, inputs}).uniform_(-width, width));
  if (with_bias) bias = register_parameter("bias", new_weights({outputs}).uniform_(-width, width));
}

void PointwiseMapImpl::project() {
  if (!(constant_ > 0)) return;
  at::NoGradGuard no_grad;
  const auto norm = spectral_norm(weight).to(at::kDouble);
  weight.mul_(at::where(norm > constant_, constant_ / norm * kBelow, 1.0));  // without waiting for a device
}

void PointwiseMapImpl::scale_by(const at::Tensor& factor) {
  at::NoGradGuard no_grad;
  project();  // first, or the constraint would undo the scale
  weight.mul_(factor);
  if (bias.defined()) bias.mul_(factor);
}

void PointwiseMapImpl::pretty_print(std::ostream& stream) const {
  stream << "PointwiseMap(" << weight.size(1) << " -> " << weight.size(0);
  if (constant_ > 0) stream << ", constant " << constant_;
  stream << (bias.defined() ? ")" : ", no bias)");
}

at::Tensor AttentionImpl::Affine::linear(const at::Tensor& tangents) const {
  if (!weight.defined()) return tangents;
  return at::bmm(weight.unsqueeze(0).expand({tangents.size(0), -1, -1}), tangents);
}

at::Tensor AttentionImpl::Affine::operator()(const at::Tensor& positions) const {
  if (!bias.defined()) return linear(positions);
  return at::baddbmm(bias.view({1, -1, 1}), weight.unsqueeze(0).expand({positions.size(0), -1, -1}), positions);
}

at::Tensor AttentionImpl::Affine::adjoint(const at::Tensor& cotangents) const {
  if (!weight.defined()) return cotangents;
  return at::bmm(weight.t().unsqueeze(0).expand({cotangents.size(0), -1, -1}), cotangents);
}

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options) {
  options_.validate();
  const auto channels = options_.channels;
  const auto heads = options_.heads;
  const auto width = head_width(options_);
  if (has_query(options_.kind)) {
    query_ = register_module("query", PointwiseMap(channels, heads * width, options_.bias, options_.response_constant));
  }
  if (has_key(options_.kind)) {
    key_ = register_module("key", PointwiseMap(channels, heads * width, options_.bias, options_.response_constant));
  }
  if (options_.kind == AttentionKind::kConcatenation) {
    concat_ = register_module("concat", PointwiseMap(2 * width, heads, false, options_.response_constant));
  }
  value_ = register_module("value", is_distance(options_.kind) ? PointwiseMap(width, channels, false, options_.value_constant)
                                                               : PointwiseMap(channels, channels, options_.bias, options_.value_constant));
  if (options_.output == OutputMap::kLinear) {
    output_ = register_module("output", PointwiseMap(channels, channels, options_.bias, options_.output_constant));
  } else if (options_.output == OutputMap::kGate) {
    gate_ = register_parameter("gate", new_weights({1}).zero_());
  }
  switch (options_.start) {
    case Start::kUniform:
      break;
    case Start::kIdentity:
      start_as_identity();
      break;
    case Start::kContraction:
      start_as_contraction();
      break;
  }
}

/// With F_j about b_F, the sum over j leaves the row sums of the response map times b_F: a function of x_i alone. A key that is about
/// constant makes it one of how bright position i is, which W_L can then take away from x_i. From random weights training finds this
/// for some seeds only.
void AttentionImpl::start_as_identity() {
  at::NoGradGuard no_grad;
  const auto channels = static_cast<double>(options_.channels);
  if (has_key(options_.kind)) {
    const auto width = static_cast<double>(head_width(options_));
    key_->weight.mul_(0.3);
    query_->weight.mul_(0.3).add_(0.5 / std::sqrt(width * channels));
    if (options_.bias) {
      key_->bias.fill_(1 / std::sqrt(width));
      query_->bias.zero_();
    }
  }
  if (is_distance(options_.kind)) {
    // Distances between the positions' own channels, and each head gives back what it took.
    if (query_->weight.size(0) == options_.channels) query_->weight.copy_(at::eye(options_.channels));
    value_->weight.copy_(0.9 * at::eye(options_.channels / options_.heads, head_width(options_)).repeat({options_.heads, 1}));
  } else {
    value_->weight.copy_(0.9 * at::eye(options_.channels));
  }
  if (value_->bias.defined()) value_->bias.fill_((options_.kind == AttentionKind::kGaussian ? 3 : 2) / std::sqrt(channels));
  if (options_.output == OutputMap::kLinear) {
    output_->weight.zero_();
    if (options_.bias) output_->bias.zero_();
  }
}

/// Scores that differ little, by each head's brightness of its own channels, and an F with a large bias b: the row sums of the response
/// map then follow the brightness about linearly, a change that b carries, and W_L takes it away from x. The less scores differ, the closer
/// the strict bound of columns comes to what is attained.
void AttentionImpl::start_as_contraction() {
  if (is_distance(options_.kind)) {
    start_as_identity();
    at::NoGradGuard no_grad;
    output_->weight.copy_(kStartingShare * at::eye(options_.channels));  // differences F_j - F_i point back
    return;
  }
  at::NoGradGuard no_grad;
  const auto width = head_width(options_);
  const auto share = options_.channels / options_.heads;
  const double root = std::sqrt(static_cast<double>(share));
  const bool by_itself = !has_query(options_.kind);  // gaussian: the scores are given
  const double given = options_.score_scale * options_.score_shift * root;
  const double size =
      by_itself && given > 0 ? kStartingGain / given : 10 * options_.radius * std::sqrt(static_cast<double>(options_.channels));
  const double slope = kStartingGain / size;  // of a score in the brightness
  const auto brightness = at::block_diag(std::vector<at::Tensor>(options_.heads, at::ones({width, share}))) / (root * std::sqrt(width));
  const double level = is_positive(options_.map().response) ? -1 : 1;  // of the scores: elu+1 is exp where they are negative
  const double even = 1 / std::sqrt(static_cast<double>(width));
  // A hundredth of the random start stays, so that no two singular values are equal: there the norms that hold the maps have kinks.
  const auto begin = [](const at::Tensor& weight, const at::Tensor& with) { weight.mul_(0.01 * with.norm() / weight.norm()).add_(with); };
  if (has_key(options_.kind)) {
    const bool sums = options_.kind == AttentionKind::kConcatenation;
    begin(query_->weight, (sums ? std::sqrt(slope) : slope) * brightness);
    key_->weight.mul_(0.01 * slope);
    if (sums) begin(concat_->weight, at::full_like(concat_->weight, std::sqrt(slope) * even));
    if (options_.bias) {
      query_->bias.fill_(sums ? 0 : level * even);
      key_->bias.fill_(sums ? level / std::sqrt(slope) * even : even);
    }
  }
  begin(value_->weight, kStartingGain * at::eye(options_.channels));
  begin(output_->weight, -kStartingShare * at::eye(options_.channels));
  if (options_.bias) {
    value_->bias.fill_(size / root);
    output_->bias.fill_(kStartingShare * options_.mass * size / root);
  }
}

void AttentionImpl::check(const at::Tensor& x, const char* origin) const {
  const bool is_image = x.defined() && x.dim() == 4 && x.size(1) == options_.channels;
  const bool is_sequence = x.defined() && x.dim() == 3 && x.size(2) == options_.channels;
  require(is_image || is_sequence, origin, "expected images (B, ", options_.channels, ", H, W) or sequences (B, N, ", options_.channels,
          "), got ", x.defined() ? x.sizes() : at::IntArrayRef{}, ". The attention was made with channels = ", options_.channels, ".");
  require(position_count(x) > 0, origin, "expected at least one position, got shape ", x.sizes(), ".");
  require(x.scalar_type() == value_->weight.scalar_type(), origin, "expected the type of the weights, ", value_->weight.scalar_type(),
          ", got ", x.scalar_type(), ". Convert one of them with .to(…).");
  require(x.device() == value_->weight.device(), origin, "expected the device of the weights, ", value_->weight.device(), ", got ",
          x.device(), ". Move one of them with .to(…).");
}

/// Of the one head (), or of each (H).
MapNorms AttentionImpl::norms(const Affine& map) const {
  const auto options = value_->weight.options();
  const auto heads = options_.heads;
  if (heads == 1) {
    return {map.weight.defined() ? spectral_norm(map.weight) : at::ones({}, options),
            map.bias.defined() ? map.bias.norm() : at::zeros({}, options)};
  }
  MapNorms result{at::ones({heads}, options), at::zeros({heads}, options)};
  if (map.weight.defined()) {
    std::vector<at::Tensor> of_heads;
    for (const auto& rows : map.weight.chunk(heads)) of_heads.push_back(spectral_norm(rows));
    result.weight = at::stack(of_heads);
  }
  if (map.bias.defined()) result.bias = at::linalg_vector_norm(map.bias.view({heads, -1}), 2, 1);
  return result;
}

/// s_ij where x_i = x_j = 0, of the one head () or of each (H).
at::Tensor AttentionImpl::score_at_zero(const Maps& maps) const {
  const auto bias = [this](const Affine& map) {
    return map.bias.defined() ? map.bias : at::zeros({options_.heads}, value_->weight.options());
  };
  const auto query = bias(maps.query).view({options_.heads, -1});
  const auto key = bias(maps.key).view({options_.heads, -1});
  const auto scores = (options_.map().score == Score::kProduct ? query * key : query + key).sum(1);
  return options_.heads == 1 ? scores.squeeze(0) : scores;
}

AttentionBound AttentionImpl::bound(const Maps& maps, int64_t positions) const {
  if (is_distance(options_.kind)) {
    const auto options = value_->weight.options();
    const double constant = distance_constant(options_.normalization, options_.relative, options_.mass, positions);
    AttentionBound bound;
    bound.mu_R = at::full({}, constant, options);
    bound.c_F = norms(maps.value).weight.amax() * spectral_norm(maps.query.weight);
    bound.mu_F = bound.c_R = at::zeros({}, options);
    return bound;
  }
  const auto share = options_.kind == AttentionKind::kGaussian ? options_.channels / options_.heads : options_.channels;
  const auto of_heads = [this](const at::Tensor& rows) { return rows.view({options_.heads, -1, rows.size(1)}); };
  return attention_bound({.map = options_.map(),
                          .channels = options_.channels,
                          .scored_channels = share,
                          .positions = positions,
                          .radius = options_.radius,
                          .query = norms(maps.query),
                          .key = norms(maps.key),
                          .value = norms(maps.value),
                          .whole_value = options_.heads == 1 ? at::Tensor() : spectral_norm(maps.value.weight),
                          .query_rows = maps.query.weight.defined() ? of_heads(maps.query.weight) : at::Tensor(),
                          .score_at_zero = score_at_zero(maps)});
}

AttentionBound AttentionImpl::bound(int64_t positions) const { return bound(maps(positions), positions); }

AttentionImpl::Affine AttentionImpl::score_map() const {
  const auto options = value_->weight.options();
  const std::lock_guard lock(score_mutex_);
  const at::Tensor& known = score_map_.weight;
  if (!known.defined() || known.device() != options.device() || known.dtype() != options.dtype()) {
    const at::NoGradGuard no_grad;
    const double root = std::sqrt(options_.score_scale);
    score_map_ = {root * at::eye(options_.channels, options), at::full({options_.channels}, root * options_.score_shift, options)};
  }
  return score_map_;
}

AttentionImpl::Maps AttentionImpl::maps(int64_t positions) const {
  const std::array holders{&query_, &key_, &concat_, &value_, &output_};
  std::vector<at::Tensor> weights;
  std::vector<double> constants;
  for (const auto* map : holders) {
    weights.push_back(map->is_empty() ? at::Tensor() : (*map)->weight);
    constants.push_back(map->is_empty() ? 0 : (*map)->constant());
  }
  weights = constrained_matrices(weights, constants);
  enum : std::uint8_t { kQuery, kKey, kConcat, kValue, kOutput };

  Maps result;
  result.symmetric = options_.kind == AttentionKind::kGaussian;
  if (has_query(options_.kind)) result.query = {weights[kQuery], query_->bias};
  if (has_key(options_.kind)) result.key = {weights[kKey], key_->bias};
  if (options_.score_scale != 1 || options_.score_shift != 0) {
    result.query = result.key = score_map();
  }
  if (options_.kind == AttentionKind::kConcatenation) {
    const auto [query, key] =
        composed_scores(weights[kConcat], {result.query.weight, result.query.bias}, {result.key.weight, result.key.bias});
    result.query = {query.weight, query.bias};
    result.key = {key.weight, key.bias};
  }
  if (is_distance(options_.kind) && options_.heads > 1) {
    result.value = {at::block_diag(weights[kValue].chunk(options_.heads)), {}};
  } else {
    result.value = {weights[kValue], value_->bias};
  }
  if (options_.output == OutputMap::kLinear) {
    auto weight = weights[kOutput];
    if (options_.policy == Policy::kStrict) {
      const auto constant_of_attention = bound(result, positions).total();
      weight = constrain(weight, spectral_norm(weight) * constant_of_attention, options_.constant);
    }
    result.output = {weight, output_->bias};
  } else if (options_.output == OutputMap::kGate) {
    result.output = {at::tanh(gate_) * at::eye(options_.channels, gate_.options()), {}};
  }
  return result;
}

at::Tensor AttentionImpl::clipped(const at::Tensor& positions) const {
  return clips() ? positions.clamp(-options_.radius, options_.radius) : positions;
}

AttentionInputs AttentionImpl::inputs(const Maps& maps, const at::Tensor& positions) const {
  const auto split = [this](const at::Tensor& channels) { return split_heads(channels, options_.heads); };
  const auto queries = split(maps.query(positions));
  if (is_distance(options_.kind)) return distance_inputs(queries, queries);
  if (maps.symmetric) return AttentionInputs::of_symmetric(queries, split(maps.value(positions)));
  return {queries, split(maps.key(positions)), split(maps.value(positions))};
}

/// A(x)
at::Tensor AttentionImpl::attend(const Maps& maps, const at::Tensor& positions) const {
  if (!is_distance(options_.kind)) return join_heads(response_attention(inputs(maps, positions), options_.map()), options_.heads);
  const auto queries = split_heads(maps.query(positions), options_.heads);
  return maps.value(join_heads(distance_attention(queries, distance_map(options_)), options_.heads));
}

at::Tensor AttentionImpl::evaluate(const Maps& maps, const at::Tensor& x) const {
  return in_shape(maps.output(attend(maps, clipped(positions_of(x)))), x.sizes());
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  RECORD_USER_SCOPE("attention");
  check(x, "Attention");
  if (options_.outside == OutsideDomain::kThrow) outside_domain(x);
  return evaluate(maps(position_count(x)), x);
}

at::Tensor AttentionImpl::response(const at::Tensor& x) {
  check(x, "Attention");
  const auto positions = clipped(positions_of(x));
  return mean_of_heads(response_map(inputs(maps(positions.size(2)), positions), options_.map()), options_.heads);
}

at::Tensor AttentionImpl::response(const at::Tensor& x, int64_t factor) {
  require(factor > 0, "Attention", "expected cells of 1 or more positions, got ", factor, ".");
  if (factor == 1) return response(x);
  check(x, "Attention");
  const auto cells_of = [&x, factor](int64_t size) { return at::arange(size, x.options().dtype(at::kLong)).div(factor, "floor"); };
  const auto [height, width] = x.dim() == 3 ? std::pair(int64_t{1}, x.size(1)) : std::pair(x.size(2), x.size(3));
  const auto columns = (width + factor - 1) / factor;
  const auto cells = (cells_of(height).unsqueeze(1) * columns + cells_of(width)).flatten();  // (N): the cell of each position
  const auto count = ((height + factor - 1) / factor) * columns;
  const auto member = at::one_hot(cells, count).to(x.scalar_type()).t();  // (P, N)
  const auto positions = clipped(positions_of(x));
  auto of_heads = inputs(maps(positions.size(2)), positions);
  of_heads.value = member.unsqueeze(0).expand({of_heads.query.size(0), -1, -1});
  const auto taken = mean_of_heads(response_attention(of_heads, options_.map()), options_.heads);         // (B, P from, N)
  return at::matmul(taken, (member / member.sum(1, /*keepdim=*/true)).t()).transpose(1, 2).contiguous();  // (B, P, P from)
}

/// J at a point: the 1x1 maps, the closed form of the attention, W_L.
class AttentionImpl::PointLinearization final : public Linearization {
 public:
  PointLinearization(const AttentionImpl& attention, Maps maps, const at::Tensor& x)
      : maps_(std::move(maps)), heads_(attention.options_.heads), shape_(x.sizes().vec()) {
    const auto& options = attention.options_;
    const auto positions = positions_of(x.detach());
    if (attention.clips()) inside_ = (positions.abs() <= options.radius).to(x.scalar_type());
    const auto clipped = attention.clipped(positions);
    if (is_distance(options.kind)) {
      by_distance_ = linearize_distance_attention(split(maps_.query(clipped)), distance_map(options));
    } else {
      by_score_ = linearize_response_attention(attention.inputs(maps_, clipped), options.map());
    }
  }

  at::Tensor value() const override {
    at::NoGradGuard no_grad;
    const auto attended = by_distance_ ? maps_.value(join(by_distance_->value())) : join(by_score_->value());
    return in_shape(maps_.output(attended), shape_);
  }

  at::Tensor jvp(const at::Tensor& tangent) const override {
    at::NoGradGuard no_grad;
    const auto v = unclipped(positions_of(tangent));
    const auto queries = split(maps_.query.linear(v));
    const auto pushed = by_distance_ ? maps_.value.linear(join(by_distance_->jvp(queries)))
                                     : join(by_score_->jvp({queries, split(maps_.key.linear(v)), split(maps_.value.linear(v))}));
    return in_shape(maps_.output.linear(pushed), shape_);
  }

  at::Tensor vjp(const at::Tensor& cotangent) const override {
    at::NoGradGuard no_grad;
    const auto attended = maps_.output.adjoint(positions_of(cotangent));
    return in_shape(unclipped(by_distance_ ? through_distance(attended) : through_score(attended)), shape_);
  }

 private:
  at::Tensor split(const at::Tensor& channels) const { return split_heads(channels, heads_); }
  at::Tensor join(const at::Tensor& channels) const { return join_heads(channels, heads_); }
  at::Tensor unclipped(const at::Tensor& positions) const { return inside_.defined() ? positions * inside_ : positions; }

  at::Tensor through_distance(const at::Tensor& attended) const {
    return maps_.query.adjoint(join(by_distance_->vjp(split(maps_.value.adjoint(attended)))));
  }
  at::Tensor through_score(const at::Tensor& attended) const {
    const auto pulled = by_score_->vjp(split(attended));
    return maps_.query.adjoint(join(pulled.query)) + maps_.key.adjoint(join(pulled.key)) + maps_.value.adjoint(join(pulled.value));
  }

  Maps maps_;
  int64_t heads_;
  std::vector<int64_t> shape_;
  at::Tensor inside_;  // where clipping lets changes through
  // One of the two.
  std::unique_ptr<AttentionLinearization> by_score_;
  std::unique_ptr<Linearization> by_distance_;
};

FrozenBranch AttentionImpl::freeze(const at::Tensor& example) {
  check(example, "Attention");
  at::NoGradGuard no_grad;
  const auto fixed = maps(position_count(example));
  return {[this, fixed](const at::Tensor& x) {
            at::NoGradGuard quiet;
            return evaluate(fixed, x);
          },
          [this, fixed](const at::Tensor& x) -> std::unique_ptr<Linearization> {
            at::NoGradGuard quiet;
            return std::make_unique<PointLinearization>(*this, fixed, x);
          },
          [this, fixed](const at::Tensor& y, const IterationRules& rules) -> std::optional<EngineRun> {
            if (clips() || options_.heads > 1 || is_distance(options_.kind)) return std::nullopt;  // the kernels know none of these
            const auto map = [](const Affine& affine) { return AttentionBranch::Map{affine.weight, affine.bias}; };
            const AttentionBranch branch{map(fixed.query),  map(fixed.key), map(fixed.value),
                                         map(fixed.output), options_.map(), fixed.symmetric};
            auto found = fast_attention_inverse(branch, positions_of(y), rules);
            if (!found) return std::nullopt;
            return EngineRun{in_shape(found->x, y.sizes()), std::move(found->residual), std::move(found->iterations),
                             std::move(found->statuses)};
          }};
}

void AttentionImpl::project() {
  for (auto* map : {&query_, &key_, &concat_, &value_, &output_}) {
    if (!map->is_empty()) (*map)->project();
  }
}

void AttentionImpl::scale_by(const at::Tensor& factor) {
  // g is linear in W_L, and without one in F.
  (output_.is_empty() ? value_ : output_)->scale_by(factor);
}

void AttentionImpl::switch_off() {
  at::NoGradGuard no_grad;
  auto& map = output_.is_empty() ? value_ : output_;
  map->weight.zero_();
  if (map->bias.defined()) map->bias.zero_();
}

Certificate AttentionImpl::certificate() const {
  Certificate result{.policy = options_.policy};
  if (options_.policy == Policy::kStrict) {
    // W_L is scaled for the number of positions at hand, so that the bound holds for any.
    result.basis = Basis::kProved;
    result.constant = options_.constant;
    result.domain_radius = has_domain() ? options_.radius : 0;
  }
  return result;
}

int64_t AttentionImpl::outside_domain(const at::Tensor& x) const {
  if (!has_domain() || x.numel() == 0) return 0;
  // What a solver's tolerance leaves at the border is not outside; NaN is.
  const auto largest = x.detach().abs().flatten(1).amax(1);
  const auto count = (largest <= options_.radius * (1 + 1e-5)).logical_not().sum().item<int64_t>();
  require(count == 0 || options_.outside == OutsideDomain::kReport, "Attention", "expected entries of x within [", -options_.radius, ", ",
          options_.radius, "], the domain of the strict bound, got ", count, " of ", x.size(0),
          " samples outside. Scale the input, raise `radius`, ", "or set outside = clip.");
  return count;
}

std::string AttentionImpl::describe() const { return nlohmann::json{{"type", "attention"}, {"options", fields_to_json(options_)}}.dump(); }

void AttentionImpl::pretty_print(std::ostream& stream) const { stream << "Attention(" << print_fields(options_) << ")"; }

}  // namespace invattn

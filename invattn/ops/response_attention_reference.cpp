#include "invattn/ops/response_attention_reference.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "invattn/ops/activation_checkpoint.h"
#include "invattn/ops/saved_map.h"

namespace invattn::reference {
namespace {

/// Response maps up to this many pairs stay in memory between products with one linearisation (64 MiB each in float32).
constexpr int64_t kLinearizationPairs = int64_t{1} << 24;

/// Half-open ranges of at most `step` that cover [0, count).
std::vector<std::pair<int64_t, int64_t>> ranges(int64_t count, int64_t step) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (int64_t begin = 0; begin < count; begin += step) result.emplace_back(begin, std::min(count, begin + step));
  return result;
}

at::Tensor rows_of(const at::Tensor& channels_first, std::pair<int64_t, int64_t> range) {
  return channels_first.slice(2, range.first, range.second);
}

at::Tensor scores(Score score, const at::Tensor& query, const at::Tensor& key) {  // (B, D, n), (B, D, N) -> (B, n, N)
  return score == Score::kProduct ? at::bmm(query.transpose(1, 2), key) : query.transpose(1, 2) + key;
}

/// d s = d q . k + q . d k
at::Tensor score_tangents(Score score, const at::Tensor& query, const at::Tensor& key, const at::Tensor& query_tangent,
                          const at::Tensor& key_tangent) {
  if (score == Score::kSum) return query_tangent.transpose(1, 2) + key_tangent;
  return at::bmm(at::cat({query_tangent, query}, 1).transpose(1, 2), at::cat({key, key_tangent}, 1));
}

/// Whether the map is worked out from log phi. Not for `count`, which divides by a constant and so needs no common scale.
bool in_logs(const ResponseMap& map) { return is_positive(map.response) && map.normalization != Normalization::kCount; }

bool has_row_totals(const ResponseMap& map) {
  return map.normalization == Normalization::kRows || map.normalization == Normalization::kBalanced;
}

bool has_column_totals(const ResponseMap& map) { return !has_row_totals(map) || map.normalization == Normalization::kBalanced; }

/// 1/x, and 0 at 0: a row or column without any response (possible with relu) takes part in nothing.
at::Tensor reciprocal_or_zero(const at::Tensor& totals) {
  const auto empty = totals == 0;
  return totals.masked_fill(empty, 1).reciprocal().masked_fill(empty, 0);
}

/// What a map of mass one is divided by, split into a part per row and a part per column: R_ij = phi_ij / (row_i column_j), or in logs
/// exp(log phi_ij - row_i - column_j). An undefined tensor stands for 1 (0 in logs).
struct Divisors {
  at::Tensor row;     // (B, n, 1)
  at::Tensor column;  // (B, 1, N)
};

/// From the sums over rows and columns (their logarithms if the map is in logs) to divisors.
Divisors divisors(const ResponseMap& map, const at::Tensor& row_totals, const at::Tensor& column_totals) {
  const bool logs = in_logs(map);
  const auto root = [logs](const at::Tensor& totals) {
    if (logs) return totals / 2;
    const auto empty = totals == 0;  // whose root has no finite derivative
    return totals.masked_fill(empty, 1).sqrt().masked_fill(empty, 0);
  };
  switch (map.normalization) {
    case Normalization::kColumns:
      return {{}, column_totals};
    case Normalization::kRows:
      return {row_totals, {}};
    case Normalization::kAll:
      return {{}, logs ? at::logsumexp(column_totals, 2, true) : column_totals.sum(2, true)};
    case Normalization::kBalanced:
      return {root(row_totals), root(column_totals)};
    case Normalization::kCount:
      return {};
  }
  return {};
}

/// The normalised map of some rows, without the mass.
at::Tensor normalised(const ResponseMap& map, const at::Tensor& score, const Divisors& divide) {
  if (in_logs(map)) {
    auto exponent = log_response(map.response, score);
    if (divide.row.defined()) exponent = exponent - divide.row;
    if (divide.column.defined()) exponent = exponent - divide.column;
    return exponent.exp();
  }
  auto result = response(map.response, score);
  if (divide.row.defined()) result = result * reciprocal_or_zero(divide.row);
  if (divide.column.defined()) result = result * reciprocal_or_zero(divide.column);
  return map.normalization == Normalization::kCount ? result / score.size(2) : result;
}

/// Sums over j (B, n, 1) and over the given rows i (B, 1, N), those that the normalisation needs; logarithms of them if in logs.
std::pair<at::Tensor, at::Tensor> totals(const ResponseMap& map, const at::Tensor& score) {
  std::pair<at::Tensor, at::Tensor> result;
  if (map.normalization == Normalization::kCount) return result;
  const bool logs = in_logs(map);
  const auto responses = logs ? log_response(map.response, score) : response(map.response, score);
  const auto total = [&](int64_t dim) { return logs ? at::logsumexp(responses, dim, true) : responses.sum(dim, true); };
  if (has_row_totals(map)) result.first = total(2);
  if (has_column_totals(map)) result.second = total(1);
  return result;
}

/// The whole map of mass one, (B, N, N): what one writes where it fits.
at::Tensor dense_map(const AttentionInputs& inputs, const ResponseMap& map) {
  const auto score = scores(map.score, inputs.query, inputs.key);
  if (in_logs(map)) {
    const auto exponent = log_response(map.response, score);
    switch (map.normalization) {
      case Normalization::kColumns:
        return at::softmax(exponent, 1);
      case Normalization::kRows:
        return at::softmax(exponent, 2);
      case Normalization::kAll:
        return at::softmax(exponent.flatten(1), 1).view_as(score);
      case Normalization::kCount:
      case Normalization::kBalanced:
        break;
    }
  }
  const auto [row_totals, column_totals] = totals(map, score);
  return normalised(map, score, divisors(map, row_totals, column_totals));
}

at::Tensor dense_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  return at::bmm(inputs.value, dense_map(inputs, map).transpose(1, 2)) * map.mass;
}

/// The block's results, with their graph as it is, or with one that computes the block again.
TensorList run(const TensorBlock& block, const TensorList& arguments, bool keep) {
  return keep ? block(arguments) : checkpoint(block, arguments);
}

/// The sums of the whole map, block of rows by block of rows.
std::pair<at::Tensor, at::Tensor> blocked_totals(const AttentionInputs& inputs, const ResponseMap& map, int64_t rows_at_once, bool keep) {
  if (map.normalization == Normalization::kCount) return {};
  const TensorBlock block = [map](const TensorList& arguments) {
    const auto [row, column] = totals(map, scores(map.score, arguments[0], arguments[1]));
    TensorList result;
    if (row.defined()) result.push_back(row);
    if (column.defined()) result.push_back(column);
    return result;
  };
  TensorList rows, columns;
  for (const auto& range : ranges(inputs.query.size(2), rows_at_once)) {
    auto parts = run(block, {rows_of(inputs.query, range), inputs.key}, keep);
    if (has_row_totals(map)) rows.push_back(parts.front());
    if (has_column_totals(map)) columns.push_back(parts.back());
  }
  std::pair<at::Tensor, at::Tensor> result;
  if (!rows.empty()) result.first = at::cat(rows, 1);
  if (!columns.empty()) result.second = in_logs(map) ? at::logsumexp(at::stack(columns), 0) : at::stack(columns).sum(0);
  return result;
}

at::Tensor row_slice(const at::Tensor& rows, std::pair<int64_t, int64_t> range) {  // (B, N, 1)
  return rows.defined() ? rows.slice(1, range.first, range.second) : rows;
}

at::Tensor blocked_attention(const AttentionInputs& inputs, const ResponseMap& map, int64_t rows_at_once, bool keep) {
  const auto [row_totals, column_totals] = blocked_totals(inputs, map, rows_at_once, keep);
  const auto divide = divisors(map, row_totals, column_totals);
  const bool has_row = divide.row.defined();
  const bool has_column = divide.column.defined();
  const TensorBlock block = [map, has_row, has_column](const TensorList& arguments) -> TensorList {
    const Divisors parts{has_row ? arguments[3] : at::Tensor(), has_column ? arguments.back() : at::Tensor()};
    const auto weights = normalised(map, scores(map.score, arguments[0], arguments[1]), parts);
    return {at::bmm(arguments[2], weights.transpose(1, 2))};
  };
  TensorList results;
  for (const auto& range : ranges(inputs.query.size(2), rows_at_once)) {
    TensorList arguments{rows_of(inputs.query, range), inputs.key, inputs.value};
    if (has_row) arguments.push_back(row_slice(divide.row, range));
    if (has_column) arguments.push_back(divide.column);
    results.push_back(run(block, arguments, keep)[0]);
  }
  return at::cat(results, 2) * map.mass;
}

AttentionInputs samples(const AttentionInputs& inputs, std::pair<int64_t, int64_t> range) {
  const auto slice = [&](const at::Tensor& tensor) { return tensor.slice(0, range.first, range.second); };
  return {slice(inputs.query), slice(inputs.key), slice(inputs.value)};
}

/// Samples that are worked on at once, and rows of one of them where a single one is too much.
int64_t samples_at_once(int64_t positions, int64_t pairs_at_once) { return std::max<int64_t>(1, pairs_at_once / (positions * positions)); }
int64_t rows_at_once(int64_t positions, int64_t pairs_at_once) { return std::clamp<int64_t>(pairs_at_once / positions, 1, positions); }

/// The derivative of the map at some samples. With T_ij = (d phi_ij / d s_ij) / divisor, the parts of d R are
///   d R_ij = T_ij d s_ij - R_ij (share of d log row total_i + share of d log column total_j),
/// where the totals are those of the normalisation and a share is 1, or 1/2 each for `balanced`.
class SliceLinearization {
 public:
  SliceLinearization(AttentionInputs inputs, const ResponseMap& map, int64_t pairs_at_once, bool keep)
      : inputs_(std::move(inputs)), map_(map), keep_(keep) {
    const auto positions = inputs_.query.size(2);
    const bool dense = inputs_.query.size(0) * positions * positions <= pairs_at_once;
    const auto step = dense ? positions : rows_at_once(positions, pairs_at_once);
    std::tie(row_totals_, column_totals_) = blocked_totals(inputs_, map_, step, /*keep=*/true);  // no gradients here
    divide_ = divisors(map_, row_totals_, column_totals_);
    share_ = map_.normalization == Normalization::kBalanced ? 0.5 : 1.0;
    blocks_ = ranges(positions, step);
    kept_.resize(blocks_.size());
    value_ = accumulate_rows([&](const Block& block) { return at::bmm(inputs_.value, block.weights.transpose(1, 2)); });
  }

  const at::Tensor& value() const { return value_; }

  at::Tensor jvp(const AttentionInputs& tangents) const {
    const auto score_tangent = [&](const Block& block) {
      return score_tangents(map_.score, rows_of(inputs_.query, block.range), inputs_.key, rows_of(tangents.query, block.range),
                            tangents.key);
    };
    at::Tensor column_change;  // d log column total_j, (B, 1, N)
    if (column_share() != 0) {
      for (std::size_t b = 0; b < blocks_.size(); ++b) {
        const auto part = block(b);
        add(column_change, (part.column_slope * score_tangent(part)).sum(1, true));
      }
      if (map_.normalization == Normalization::kAll) column_change = column_change.sum(2, true);
      column_change = column_change * column_share();
    }
    return accumulate_rows([&](const Block& block) {
      const auto change = score_tangent(block);
      auto weight_change = block.slope * change;
      if (column_change.defined()) weight_change = weight_change - block.weights * column_change;
      if (row_share() != 0) weight_change = weight_change - block.weights * ((block.row_slope * change).sum(2, true) * row_share());
      return at::bmm(inputs_.value, weight_change.transpose(1, 2)) + at::bmm(tangents.value, block.weights.transpose(1, 2));
    });
  }

  AttentionInputs vjp(const at::Tensor& cotangent) const {
    AttentionInputs result;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const auto part = block(b);
      add(result.value, at::bmm(rows_of(cotangent, part.range), part.weights));
    }
    at::Tensor column_pull;  // cotangent of -log column total_j, (B, 1, N)
    if (column_share() != 0) {
      column_pull = (inputs_.value * result.value).sum(1, true);
      if (map_.normalization == Normalization::kAll) column_pull = column_pull.sum(2, true);
      column_pull = column_pull * column_share();
    }
    TensorList query_parts;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const auto part = block(b);
      const auto rows = rows_of(cotangent, part.range);
      auto score_pull = part.slope * at::bmm(rows.transpose(1, 2), inputs_.value);
      if (column_pull.defined()) score_pull = score_pull - part.column_slope * column_pull;
      if (row_share() != 0) {
        const auto row_pull = (rows * rows_of(value_, part.range)).sum(1).unsqueeze(2);  // (B, n, 1)
        score_pull = score_pull - part.row_slope * (row_pull * row_share());
      }
      if (map_.score == Score::kSum) {
        query_parts.push_back(score_pull.sum(2).unsqueeze(1));
        add(result.key, score_pull.sum(1, true));
      } else {
        query_parts.push_back(at::bmm(inputs_.key, score_pull.transpose(1, 2)));
        add(result.key, at::bmm(rows_of(inputs_.query, part.range), score_pull));
      }
    }
    result.query = at::cat(query_parts, 2);
    return result;
  }

 private:
  struct Block {
    std::pair<int64_t, int64_t> range;
    at::Tensor weights;       // R, (B, n, N)
    at::Tensor slope;         // T
    at::Tensor row_slope;     // (d phi / d s) / row total
    at::Tensor column_slope;  // (d phi / d s) / column total (over all for `all`)
  };

  double row_share() const { return has_row_totals(map_) ? share_ : 0; }
  double column_share() const { return map_.normalization != Normalization::kCount && has_column_totals(map_) ? share_ : 0; }

  static void add(at::Tensor& sum, const at::Tensor& part) { sum = sum.defined() ? sum + part : part; }

  template <class Rows>
  at::Tensor accumulate_rows(const Rows& rows) const {
    TensorList parts;
    for (std::size_t b = 0; b < blocks_.size(); ++b) parts.push_back(rows(block(b)));
    return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
  }

  Block block(std::size_t index) const {
    if (kept_[index]) return *kept_[index];
    auto result = make_block(blocks_[index]);
    if (keep_) kept_[index] = result;
    return result;
  }

  Block make_block(std::pair<int64_t, int64_t> range) const {
    Block result{range, {}, {}, {}, {}};
    const auto score = scores(map_.score, rows_of(inputs_.query, range), inputs_.key);
    const Divisors divide{row_slice(divide_.row, range), divide_.column};
    result.weights = normalised(map_, score, divide) * map_.mass;
    at::Tensor relative;  // (d phi / d s) / phi, in logs
    if (in_logs(map_)) {
      if (map_.response == Response::kExponential) {
        result.slope = result.weights;
      } else {
        relative = log_response_derivative(map_.response, score);
        result.slope = result.weights * relative;
      }
    } else {
      result.slope = response_derivative(map_.response, score) * map_.mass;
      if (divide.row.defined()) result.slope = result.slope * reciprocal_or_zero(divide.row);
      if (divide.column.defined()) result.slope = result.slope * reciprocal_or_zero(divide.column);
      if (map_.normalization == Normalization::kCount) result.slope = result.slope / score.size(2);
    }
    if (map_.normalization != Normalization::kBalanced) {  // the divisor is the total itself
      const auto slope = map_.mass == 1 ? result.slope : result.slope / map_.mass;
      result.row_slope = result.column_slope = slope;
      return result;
    }
    const auto rows = row_slice(row_totals_, range);
    if (in_logs(map_)) {
      const auto exponent = log_response(map_.response, score);
      result.row_slope = (exponent - rows).exp();
      result.column_slope = (exponent - column_totals_).exp();
      if (relative.defined()) {
        result.row_slope = result.row_slope * relative;
        result.column_slope = result.column_slope * relative;
      }
    } else {
      const auto slope = response_derivative(map_.response, score);
      result.row_slope = slope * reciprocal_or_zero(rows);
      result.column_slope = slope * reciprocal_or_zero(column_totals_);
    }
    return result;
  }

  AttentionInputs inputs_;
  ResponseMap map_;
  bool keep_;
  double share_ = 1;
  at::Tensor row_totals_, column_totals_, value_;
  Divisors divide_;
  std::vector<std::pair<int64_t, int64_t>> blocks_;
  mutable std::vector<std::optional<Block>> kept_;
};

class ReferenceLinearization final : public AttentionLinearization {
 public:
  ReferenceLinearization(const AttentionInputs& inputs, const ResponseMap& map, int64_t pairs_at_once) {
    at::NoGradGuard no_grad;
    const auto batch = inputs.query.size(0);
    const auto positions = inputs.query.size(2);
    const bool keep = batch * positions * positions <= kLinearizationPairs;
    ranges_ = ranges(batch, samples_at_once(positions, pairs_at_once));
    if (ranges_.empty()) ranges_.emplace_back(0, 0);  // an empty batch still has shapes
    for (const auto& range : ranges_) slices_.emplace_back(samples(inputs, range), map, pairs_at_once, keep);
  }

  at::Tensor value() const override {
    TensorList parts;
    for (const auto& slice : slices_) parts.push_back(slice.value());
    return at::cat(parts);
  }

  at::Tensor jvp(const AttentionInputs& tangents) const override {
    at::NoGradGuard no_grad;
    TensorList parts;
    for (std::size_t s = 0; s < slices_.size(); ++s) parts.push_back(slices_[s].jvp(samples(tangents, ranges_[s])));
    return at::cat(parts);
  }

  AttentionInputs vjp(const at::Tensor& cotangent) const override {
    at::NoGradGuard no_grad;
    TensorList query, key, value;
    for (std::size_t s = 0; s < slices_.size(); ++s) {
      auto part = slices_[s].vjp(cotangent.slice(0, ranges_[s].first, ranges_[s].second));
      query.push_back(part.query);
      key.push_back(part.key);
      value.push_back(part.value);
    }
    return {at::cat(query), at::cat(key), at::cat(value)};
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;
  std::vector<SliceLinearization> slices_;
};

/// The attention by ATen's own differentiation, block by block.
at::Tensor composed_attention(const AttentionInputs& inputs, const ResponseMap& map, int64_t pairs_at_once, bool keep) {
  const auto batch = inputs.query.size(0);
  const auto positions = inputs.query.size(2);
  if (batch * positions * positions <= pairs_at_once) return dense_attention(inputs, map);
  const bool dense = positions * positions <= pairs_at_once;
  const TensorBlock one_slice = [map](const TensorList& arguments) -> TensorList {
    return {dense_attention({arguments[0], arguments[1], arguments[2]}, map)};
  };
  TensorList results;
  for (const auto& range : ranges(batch, samples_at_once(positions, pairs_at_once))) {
    const auto part = samples(inputs, range);
    results.push_back(dense ? run(one_slice, {part.query, part.key, part.value}, keep)[0]
                            : blocked_attention(part, map, rows_at_once(positions, pairs_at_once), keep));
  }
  return at::cat(results);
}

/// The attention where its map is too large to keep: only the inputs stay. The first derivative is the closed form; where it is to be
/// differentiated itself, it is that of the composed attention, so that every further order is right.
struct LargeAttention : torch::autograd::Function<LargeAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const ResponseMap* map, int64_t pairs_at_once) {
    context->save_for_backward({query, key, value});
    save_map(context, *map);
    context->saved_data["pairs"] = pairs_at_once;
    return composed_attention({query, key, value}, *map, pairs_at_once, /*keep=*/false);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list cotangents) {
    auto inputs = context->get_saved_variables();
    const auto map = saved_map(context);
    const auto pairs_at_once = context->saved_data["pairs"].toInt();
    if (!at::GradMode::is_enabled()) {
      const auto pulled =
          reference::linearize_response_attention({inputs[0], inputs[1], inputs[2]}, map, pairs_at_once)->vjp(cotangents[0]);
      return {pulled.query, pulled.key, pulled.value, at::Tensor(), at::Tensor()};
    }
    for (auto& input : inputs) {
      if (!input.requires_grad()) input = input.detach().requires_grad_(true);
    }
    const auto output = composed_attention({inputs[0], inputs[1], inputs[2]}, map, pairs_at_once, /*keep=*/false);
    auto gradients = torch::autograd::grad({output}, inputs, {cotangents[0]}, /*retain_graph=*/true, /*create_graph=*/true);
    gradients.resize(5);  // none for the map and the block size
    return gradients;
  }
};

int64_t block_pairs(const AttentionInputs& inputs) { return inputs.query.is_cuda() ? kDeviceBlockPairs : kBlockPairs; }

}  // namespace

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map, int64_t pairs_at_once, int64_t kept_pairs) {
  const auto positions = inputs.query.size(2);
  if (inputs.query.size(0) * positions * positions <= kept_pairs) return composed_attention(inputs, map, pairs_at_once, /*keep=*/true);
  return LargeAttention::apply(inputs.query, inputs.key, inputs.value, &map, pairs_at_once);
}

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  return response_attention(inputs, map, block_pairs(inputs), std::max(kKeptPairs, block_pairs(inputs)));
}

std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  return linearize_response_attention(inputs, map, block_pairs(inputs));
}

at::Tensor response_map(const AttentionInputs& inputs, const ResponseMap& map) { return dense_map(inputs, map) * map.mass; }

std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map,
                                                                     int64_t pairs_at_once) {
  return std::make_unique<ReferenceLinearization>(inputs, map, pairs_at_once);
}

}  // namespace invattn::reference

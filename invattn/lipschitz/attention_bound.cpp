#include "invattn/lipschitz/attention_bound.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "invattn/core/error.h"
#include "invattn/lipschitz/spectral_norm.h"
#include "invattn/ops/response.h"

namespace invattn {

namespace {

/// Of values (H), one for each head: the largest, and the root of the sum of squares. Of one head, (): the value itself.
at::Tensor largest_of_heads(const at::Tensor& values) { return values.dim() == 0 ? values : values.amax(); }
at::Tensor norm_of_heads(const at::Tensor& values) { return values.dim() == 0 ? values : values.norm(); }

/// The interval in which (log phi)' lies on the domain, by its middle and half of its width.
struct Slopes {
  at::Tensor middle, half;
  at::Tensor largest() const { return middle + half; }
};

}  // namespace

at::Tensor AttentionBound::total() const {
  const auto by_values = largest_of_heads(mu_R) * c_F;
  const auto by_responses = norm_of_heads(mu_F * c_R);
  return apart.defined() ? at::minimum(at::stack({by_values, by_responses}).norm(), apart) : by_values + by_responses;
}

void require_bound_exists(const ResponseMap& map) {
  const bool counted = map.normalization == Normalization::kCount;
  require(counted || is_positive(map.response), "attention_bound",
          "expected a response whose relative slope is bounded (exp, elu+1 or softplus) ", "for the policy strict with normalisation ",
          map.normalization, ", got ", map.response, ". Use phi = elu+1, or the policy guarded.");
  require(!counted || map.response != Response::kExponential, "attention_bound",
          "expected exp to be divided by a sum of its own, got normalisation count. Use columns, balanced, all or rows.");
}

AttentionBound attention_bound(const AttentionFacts& facts) {
  require_bound_exists(facts.map);
  require(facts.radius > 0 && std::isfinite(facts.radius), "attention_bound", "expected a positive, finite domain radius, got ",
          facts.radius, ".");
  require(facts.channels > 0 && facts.positions > 0, "attention_bound", "expected channels and positions, got ", facts.channels, " and ",
          facts.positions, ".");
  const auto reach_of = [&](int64_t channels) { return facts.radius * std::sqrt(static_cast<double>(channels)); };  // of their part of x_i
  const double reach = reach_of(facts.scored_channels > 0 ? facts.scored_channels : facts.channels);                // rho
  const auto positions = static_cast<double>(facts.positions);
  const double mass = facts.map.mass;
  const auto largest = [reach](const MapNorms& map) { return map.weight * reach + map.bias; };

  // How fast a score changes with x_i and with x_j, and how far scores spread over the rows of a column, over the columns of a row, and
  // over the whole map. 0 <= (log phi)' <= 1, so that the spreads of log phi are no larger.
  const bool is_product = facts.map.score == Score::kProduct;
  const auto query_reach = largest(facts.query);  // Q
  const auto key_reach = largest(facts.key);      // K
  const auto key_factor = is_product ? key_reach : at::ones_like(key_reach);
  const auto in_query = key_factor * facts.query.weight;
  const auto in_key = is_product ? query_reach * facts.key.weight : facts.key.weight;
  const auto largest_score = is_product ? query_reach * key_reach : query_reach + key_reach;
  const auto over_rows = 2 * reach * in_query;
  const auto over_columns = 2 * reach * in_key;
  const auto over_all = is_product ? 2 * largest_score : over_rows + over_columns;
  // n equal shares but for a spread: the largest of them is at most 1 / (1 + (n - 1) exp(-spread)).
  const auto crowding = [](double shares, const at::Tensor& spread) { return shares / (1 + (shares - 1) * (-spread).exp()); };

  // (log phi)' falls with the score, so that its values at the ends of the scores' interval are its largest and smallest.
  const auto slopes = [&]() -> Slopes {
    const auto one = at::ones_like(in_query);
    if (facts.map.response == Response::kExponential) return {one, at::zeros_like(one)};
    if (!facts.score_at_zero.defined()) return {one / 2, one / 2};
    const auto of_query = facts.query.weight * reach;
    const auto of_key = facts.key.weight * reach;
    const auto away = is_product ? of_query * facts.key.bias + facts.query.bias * of_key + of_query * of_key : of_query + of_key;
    const auto high = log_response_derivative(facts.map.response, facts.score_at_zero - away);
    const auto low = log_response_derivative(facts.map.response, facts.score_at_zero + away);
    return {(high + low) / 2, (high - low) / 2};
  };

  AttentionBound bound;
  bound.c_F = facts.whole_value.defined() ? facts.whole_value : facts.value.weight;
  bound.mu_F = facts.value.weight * reach_of(facts.channels) + facts.value.bias;
  switch (facts.map.normalization) {
    case Normalization::kColumns: {
      const auto slope = slopes();
      const auto spread = over_rows * slope.largest();
      const auto kappa = crowding(positions, spread);
      // How much the change of a column's scores by its key varies within the column.
      const auto varied = is_product ? slope.middle * facts.query.weight * reach + slope.half * query_reach : slope.half;
      const auto by_key = kappa.sqrt() * varied * facts.key.weight;
      bound.mu_R = mass * kappa.sqrt();
      bound.c_R = mass * (kappa * slope.largest() * in_query + by_key);

      // What is common to all positions goes through F alone, what differs between them through the scores alone, but for remainders.
      const auto factor = slope.middle * kappa * bound.mu_F * key_factor;
      const auto differing = factor.dim() == 1 && facts.query_rows.defined()
                                 ? spectral_norm((factor.view({-1, 1, 1}) * facts.query_rows).flatten(0, 1))
                                 : largest_of_heads(factor * facts.query.weight);
      const auto unevenness = at::minimum((spread / 2).clamp_max(20).sinh(), kappa.sqrt());
      const auto remainder =
          largest_of_heads(unevenness) * bound.c_F + norm_of_heads(bound.mu_F * (slope.half * kappa * in_query + by_key));
      bound.apart = mass * (at::maximum(bound.c_F, differing) + remainder);
      break;
    }
    case Normalization::kRows: {
      const auto kappa = crowding(positions, over_columns);
      bound.mu_R = mass * kappa.sqrt();
      bound.c_R = mass * (in_query + (2 * kappa).sqrt() * in_key);
      break;
    }
    case Normalization::kAll: {
      const auto share = (crowding(positions * positions, over_all) / positions).clamp_max(1);  // a row or column of the map, at most
      bound.mu_R = mass * share;
      bound.c_R = 2 * mass * share * (in_query + in_key);
      break;
    }
    case Normalization::kBalanced: {
      const auto kappa_columns = crowding(positions, over_rows);
      const auto kappa_rows = crowding(positions, over_columns);
      bound.mu_R = at::full_like(bound.c_F, mass);
      bound.c_R = mass * (2 * kappa_columns.sqrt() * in_query + (1.5 + 0.5 * (kappa_columns * kappa_rows).sqrt()) * in_key);
      break;
    }
    case Normalization::kCount: {
      // |phi(s)| <= 1 + |s| and |phi'| <= 1 for every response but exp.
      bound.mu_R = mass * (1 + largest_score);
      bound.c_R = mass * (in_query + in_key);
      break;
    }
  }
  return bound;
}

void require_distance_bound_exists(Normalization normalization, bool relative) {
  const bool exists = normalization == Normalization::kRows || (relative && normalization == Normalization::kCount);
  require(exists, "attention_bound",
          "expected normalisation rows, or count with relative = true, for the policy strict of the kind distance, got ", normalization,
          relative ? " with" : " without", " relative. Use the preset strict, or the policy guarded.");
}

double distance_constant(Normalization normalization, bool relative, double mass, int64_t positions) {
  require_distance_bound_exists(normalization, relative);
  require(positions > 0, "attention_bound", "expected positions, got ", positions, ".");
  if (normalization == Normalization::kCount) return mass;
  // The mean of |q_j - q_i|^2 under a row of R is at most the M of M exp(M + 1) = N - 1. The left side is convex and Newton's method
  // starts on the right, so that it never passes M.
  const double others = static_cast<double>(positions) - 1;
  double spread = std::max(1.0, std::log(std::max(others, 1.0)));
  for (int step = 0; step < 100; ++step) spread -= (spread - others * std::exp(-spread - 1)) / (spread + 1);
  // The largest values of u / (1 + e^u) and of its root over 1 + e^u, rounded up.
  constexpr double kLargestSquare = 0.27847, kLargestRoot = 0.27788;
  const double columns = 1 + others * (0.5 + 2 * kLargestSquare + 2 * std::sqrt(spread) * kLargestRoot);
  const double diagonal = relative ? std::max(1.0, 2 * spread - 1) : 2 * spread;
  return mass * (diagonal + std::sqrt((1 + 2 * spread) * columns));
}

}  // namespace invattn

#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string_view>
#include <utility>

#include "invattn/core/names.h"

namespace invattn {

/// How two positions are scored: s_ij = q_i . k_j, or s_ij = q_i + k_j (concatenation, where both are scalars).
enum class Score { kProduct, kSum };

/// The response r_ij = phi(s_ij). The paper's table uses exp for the two Gaussians, the identity for its plain dot-product and
/// concatenation, and a non-negative phi for the invertible ones.
enum class Response { kExponential, kEluPlusOne, kSoftplus, kRelu, kElu, kIdentity };

/// What the response map R is divided by, in the paper's notation A_i = sum_j R_ij F_j:
///   columns   sum_i r_ij                     each column of R sums to the mass (the paper's invertible attention)
///   rows      sum_j r_ij                     each row sums to the mass (ordinary softmax attention)
///   all       sum_ij r_ij                    the whole map sums to the mass (the appendix's technique 6)
///   count     N                              (the paper's plain dot-product and concatenation)
///   balanced  sqrt(sum_j r_ij sum_i r_ij)    spectral norm at most the mass, by the Schur test
enum class Normalization { kColumns, kRows, kAll, kCount, kBalanced };

template <>
struct EnumNames<Response> {
  static constexpr std::string_view kWhat = "a response function";
  static constexpr std::array<std::pair<Response, std::string_view>, 6> kNames{{{Response::kExponential, "exp"},
                                                                                {Response::kEluPlusOne, "elu+1"},
                                                                                {Response::kSoftplus, "softplus"},
                                                                                {Response::kRelu, "relu"},
                                                                                {Response::kElu, "elu"},
                                                                                {Response::kIdentity, "identity"}}};
};

template <>
struct EnumNames<Normalization> {
  static constexpr std::string_view kWhat = "a normalisation";
  static constexpr std::array<std::pair<Normalization, std::string_view>, 5> kNames{{{Normalization::kColumns, "columns"},
                                                                                     {Normalization::kRows, "rows"},
                                                                                     {Normalization::kAll, "all"},
                                                                                     {Normalization::kCount, "count"},
                                                                                     {Normalization::kBalanced, "balanced"}}};
};

/// What makes a response map out of scores.
struct ResponseMap {
  Score score = Score::kProduct;
  Response response = Response::kExponential;
  Normalization normalization = Normalization::kColumns;
  double mass = 1.0;
};

/// Whether phi is positive everywhere, so that everything can be computed from log phi and no scale overflows.
bool is_positive(Response response);

/// log phi(s) and its derivative, for positive phi. Finite for every finite s.
at::Tensor log_response(Response response, const at::Tensor& scores);
at::Tensor log_response_derivative(Response response, const at::Tensor& scores);

/// phi(s) and its derivative.
at::Tensor response(Response response, const at::Tensor& scores);
at::Tensor response_derivative(Response response, const at::Tensor& scores);

}  // namespace invattn

#pragma once

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

/// What makes a response map out of scores.
struct ResponseMap {
  Score score = Score::kProduct;
  Response response = Response::kExponential;
  Normalization normalization = Normalization::kColumns;
  double mass = 1.0;
};

}  // namespace invattn

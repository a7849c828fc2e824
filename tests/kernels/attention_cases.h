#pragma once

#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "invattn/kernels/attention.h"
#include "invattn/kernels/standard_shapes.h"

/// One table of cases for the tests and the benchmarks of the attention kernels.
namespace invattn::kernels::testing {

/// What the scores look like.
enum class Data {
  kRandom,      ///< about 1 in size
  kEqual,       ///< all the same
  kZero,        ///< all zero: the corner of elu+1 and relu
  kDominating,  ///< one query and one key far above the rest
  kSpread,      ///< spread over some thousands
  kNegative,    ///< all around -1000: every exponential underflows without a shift
  kHuge,        ///< up to 1e6
};

inline const char* name(Data d) {
  static const char* names[] = {"random", "equal", "zero", "dominating", "spread", "negative", "huge"};
  return names[static_cast<int>(d)];
}
inline const char* name(Response r) {
  static const char* names[] = {"exp", "elu_plus_one", "softplus", "relu", "elu", "identity"};
  return names[static_cast<int>(r)];
}
inline const char* name(Normalization n) {
  static const char* names[] = {"columns", "rows", "all", "count", "balanced"};
  return names[static_cast<int>(n)];
}
inline const char* name(Score s) { return s == Score::kProduct ? "product" : "sum"; }

struct AttentionCase {
  AttentionProblem problem;
  Data data = Data::kRandom;

  std::string name() const {
    const auto& p = problem;
    return std::string(testing::name(p.score)) + "_" + testing::name(p.response) + "_" + testing::name(p.normalization) + "_" +
           testing::name(data) + "_B" + std::to_string(p.batch) + "_D" + std::to_string(p.depth) + "_V" + std::to_string(p.values) + "_N" +
           std::to_string(p.positions);
  }
  friend std::ostream& operator<<(std::ostream& out, const AttentionCase& c) { return out << c.name(); }
};

/// Inputs, tangents and a cotangent of a case; always the same.
template <class T>
struct AttentionData {
  std::vector<T> query, key, value, query_tangent, key_tangent, value_tangent, cotangent;

  explicit AttentionData(const AttentionCase& c) {
    const auto& p = c.problem;
    std::mt19937 generator(static_cast<unsigned>(1 + p.positions * 7 + p.values * 3 + p.depth));
    const auto fill = [&](std::vector<T>& to, int64_t channels, float scale, float offset = 0) {
      std::normal_distribution<double> normal;
      to.resize(static_cast<std::size_t>(p.batch * channels * p.positions));
      for (auto& x : to) x = T(double(offset) + double(scale) * normal(generator));
    };
    const bool sum = p.score == Score::kSum;
    float scale = 1, query_offset = 0, key_offset = 0;
    if (c.data == Data::kEqual) scale = 0, query_offset = 0.75F, key_offset = -0.5F;
    if (c.data == Data::kZero) scale = 0;
    if (c.data == Data::kSpread) scale = sum ? 1000.0F : 32.0F;
    if (c.data == Data::kNegative) query_offset = sum ? -600.0F : 30.0F, key_offset = sum ? -400.0F : -30.0F;
    if (c.data == Data::kHuge) scale = sum ? 5e5F : 700.0F;
    fill(query, p.depth, scale, query_offset);
    fill(key, p.depth, scale, key_offset);
    fill(value, p.values, 1, 0.25F);
    fill(query_tangent, p.depth, 1);
    fill(key_tangent, p.depth, 1);
    fill(value_tangent, p.values, 1);
    fill(cotangent, p.values, 1);
    if (c.data == Data::kDominating) {
      for (int64_t d = 0; d < p.batch * p.depth; ++d) {
        query[static_cast<std::size_t>(d * p.positions + p.positions / 2)] += sum ? T(200) : T(12);
        key[static_cast<std::size_t>(d * p.positions + p.positions / 3)] += sum ? T(200) : T(12);
      }
    }
  }
};

/// The kinds of the paper as `invattn bench` measures them, on one of the standard shapes.
inline std::vector<AttentionCase> standard_cases(const StandardShape& shape) {
  const int64_t b = shape.batch, c = shape.channels, n = shape.positions();
  using R = Response;
  using M = Normalization;
  return {{{b, c, c, n, Score::kProduct, R::kExponential, M::kBalanced, 1.0}},
          {{b, c / 4, c, n, Score::kProduct, R::kExponential, M::kBalanced, 1.0}},
          {{b, c / 4, c, n, Score::kProduct, R::kEluPlusOne, M::kColumns, 1.0}},
          {{b, 1, c, n, Score::kSum, R::kEluPlusOne, M::kColumns, 1.0}}};
}

/// Everything that the tests check in full. Of the standard shapes the small one, with two samples; the large one is for check_large.
inline std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](Score score, Response response, Normalization normalization, Data data, int64_t b, int64_t d, int64_t v, int64_t n) {
    cases.push_back({{b, score == Score::kSum ? 1 : d, v, n, score, response, normalization, 1.0}, data});
    if (normalization == Normalization::kRows) cases.back().problem.mass = 0.75;
  };
  using R = Response;
  using M = Normalization;
  for (auto score : {Score::kProduct, Score::kSum}) {
    for (auto response : {R::kExponential, R::kEluPlusOne, R::kRelu, R::kElu, R::kIdentity}) {
      for (auto normalization : {M::kColumns, M::kRows, M::kAll, M::kBalanced, M::kCount}) {
        const bool overflows = response == R::kExponential && normalization == M::kCount;  // where scores are large
        const bool has_sign = response == R::kElu || response == R::kIdentity;
        if (has_sign && normalization == M::kBalanced) continue;
        for (auto data : {Data::kRandom, Data::kEqual, Data::kZero, Data::kDominating, Data::kSpread, Data::kNegative, Data::kHuge}) {
          if (overflows && data != Data::kRandom && data != Data::kEqual && data != Data::kZero) continue;
          add(score, response, normalization, data, 1, 3, 12, 67);
        }
        for (int64_t n : {1, 2, 3, 31, 32, 33, 64, 257}) add(score, response, normalization, Data::kRandom, 2, 3, 5, n);
      }
    }
    for (int64_t v = 1; v <= 17; ++v) add(score, R::kEluPlusOne, M::kColumns, Data::kRandom, 1, 3, v, 40);
    add(score, R::kExponential, M::kColumns, Data::kRandom, 0, 3, 4, 8);
  }
  for (int64_t v : {16, 24, 32, 40, 64}) add(Score::kProduct, R::kExponential, M::kBalanced, Data::kRandom, 1, 8, v, 37);
  for (AttentionCase standard : standard_cases(kSmallStandardShape)) {
    standard.problem.batch = 2;
    cases.push_back(standard);
  }
  for (int64_t d : {1, 2, 4, 7, 12, 20}) add(Score::kProduct, R::kExponential, M::kColumns, Data::kRandom, 1, d, 12, 70);
  return cases;
}

}  // namespace invattn::kernels::testing

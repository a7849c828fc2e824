// The kernels against loops in higher precision: the error is at most twice that of the same loops in the precision of the data.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <thread>

#include "invattn/kernels/attention.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/naive_attention.h"
#include "tests/kernels/sampled_attention.h"

namespace invattn::kernels::testing {
namespace {

template <class T>
struct Results {
  std::vector<T> output, jvp, query, key, value, result_change, query_change, key_change, value_change, rows, columns, total;
  std::array<double, 6> magnitudes{};  // of the terms of jvp, query and key, and of the changes of query, key and value
};

template <class T>
Results<T> run_kernels(const AttentionProblem& p, const AttentionData<T>& data, const ParallelFor& parallel = {}) {
  Results<T> r;
  r.output = r.jvp = r.value = std::vector<T>(data.value.size(), T(-7));
  r.query = r.key = std::vector<T>(data.query.size(), T(-7));
  r.result_change = r.value_change = r.value;
  r.query_change = r.key_change = r.query;
  r.rows = r.columns = std::vector<T>(static_cast<std::size_t>(p.batch * cpu::kSumParts * p.positions));
  r.total = std::vector<T>(static_cast<std::size_t>(p.batch * cpu::kSumParts));
  const AttentionInputs<T> inputs{data.query.data(), data.key.data(), data.value.data()};
  cpu::attention_forward<T>(p, inputs, {r.rows.data(), r.columns.data(), r.total.data()}, r.output.data(), parallel);
  const AttentionSums<const T> sums{r.rows.data(), r.columns.data(), r.total.data()};
  cpu::attention_jvp<T>(p, inputs, sums, r.output.data(), {data.query_tangent.data(), data.key_tangent.data(), data.value_tangent.data()},
                        r.jvp.data(), parallel);
  cpu::attention_vjp<T>(p, inputs, sums, r.output.data(), data.cotangent.data(), r.query.data(), r.key.data(), r.value.data(), parallel);
  cpu::attention_hvp<T>(p, inputs, sums, r.output.data(), data.cotangent.data(),
                        {data.query_tangent.data(), data.key_tangent.data(), data.value_tangent.data()}, r.result_change.data(),
                        r.query_change.data(), r.key_change.data(), r.value_change.data(), parallel);
  return r;
}

template <class Real, class T>
Results<Real> run_naive(const AttentionProblem& p, const AttentionData<T>& data, T rounding = 0, uint64_t draw = 0) {
  const auto cast = [](const std::vector<T>& v) { return std::vector<Real>(v.begin(), v.end()); };
  const NaiveAttention<Real> naive(p, cast(data.query), cast(data.key), cast(data.value), rounding, draw);
  Results<Real> r;
  r.output = naive.forward();
  r.jvp = naive.jvp(cast(data.query_tangent), cast(data.key_tangent), cast(data.value_tangent));
  auto pulled = naive.vjp(cast(data.cotangent));
  r.query = pulled.query;
  r.key = pulled.key;
  r.value = pulled.value;
  auto second = naive.hvp(cast(data.cotangent), cast(data.query_tangent), cast(data.key_tangent), cast(data.value_tangent));
  r.result_change = second.result;
  r.query_change = second.query;
  r.key_change = second.key;
  r.value_change = second.value;
  const auto& size = naive.second_magnitudes;
  r.magnitudes = {naive.magnitudes.jvp, naive.magnitudes.query, naive.magnitudes.key, size.query, size.key, size.value};
  return r;
}

template <class T, class Real>
double error(const std::vector<T>& got, const std::vector<Real>& exact) {
  double result = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(double(Real(got[i]) - exact[i]));
    if (!(difference <= result)) result = difference;  // NaN stays
  }
  return result;
}
template <class Real>
double size(const std::vector<Real>& exact) {
  double result = 0;
  for (Real x : exact) result = std::max(result, std::abs(double(x)));
  return result;
}

class AttentionKernel : public ::testing::TestWithParam<AttentionCase> {};

/// Runs body with every instruction set that this machine and this build have.
template <class Body>
void for_each_instruction_set(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ASSERT_STREQ(cpu::instruction_set(), hwy::TargetName(target));
    body(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

/// All arrays with their positions moved up, round the end.
template <class Arrays>
Arrays rotated(Arrays arrays, int64_t positions, int64_t by) {
  const auto rotate = [&](auto& values) {
    const int64_t first = ((-by) % positions + positions) % positions;
    for (auto row = values.begin(); row != values.end(); row += positions) std::rotate(row, row + first, row + positions);
  };
  if constexpr (requires { arrays.cotangent; }) {
    for (auto* values : {&arrays.query, &arrays.key, &arrays.value, &arrays.query_tangent, &arrays.key_tangent, &arrays.value_tangent,
                         &arrays.cotangent}) {
      rotate(*values);
    }
  } else {
    for (auto* values : {&arrays.output, &arrays.jvp, &arrays.query, &arrays.key, &arrays.value, &arrays.result_change,
                         &arrays.query_change, &arrays.key_change, &arrays.value_change}) {
      rotate(*values);
    }
  }
  return arrays;
}

template <class T, class Real>
void check(const AttentionCase& c) {
  ASSERT_TRUE(cpu::covers(c.problem));
  const AttentionData<T> data(c);
  const auto exact = run_naive<Real>(c.problem, data);
  const T rounding = std::numeric_limits<T>::epsilon() / 2;
  std::vector<Results<T>> plain{run_naive<T>(c.problem, data)};
  std::vector<Results<Real>> rounded{run_naive<Real>(c.problem, data, rounding)};
  // Sums of either sign may nearly cancel: then one of them decides, and a single plain version, whose sums may be lucky, says little of the
  // size of the error. Others sum up in other orders.
  const bool has_sign = c.problem.response == Response::kElu || c.problem.response == Response::kIdentity;
  for (int64_t draw = 1; has_sign && draw < 5; ++draw) {
    const int64_t by = c.problem.positions * draw / 5;
    plain.push_back(rotated(run_naive<T>(c.problem, rotated(data, c.problem.positions, by)), c.problem.positions, -by));
    rounded.push_back(run_naive<Real>(c.problem, data, rounding, static_cast<uint64_t>(draw)));
  }
  double roundings = 4;
  const auto compare = [&](const char* what, const std::vector<T>& g, std::vector<T> Results<T>::*plain_member,
                           std::vector<Real> Results<Real>::*member, double magnitude) {
    const auto& e = exact.*member;
    double plain_error = 0, rounded_error = 0;
    for (const auto& one : plain) plain_error = std::max(plain_error, error(one.*plain_member, e));
    for (const auto& one : rounded) rounded_error = std::max(rounded_error, error(one.*member, e));
    // Weights below the smallest normal number may be that number instead of less; and what is exact here has roundings of its own.
    const double floor = roundings * double(std::numeric_limits<T>::epsilon()) * std::max(size(e), magnitude) +
                         1e6 * double(std::numeric_limits<T>::min()) + 16 * double(std::numeric_limits<Real>::epsilon());
    EXPECT_LE(error(g, e), 2 * std::max(plain_error, rounded_error) + floor)
        << what << ": plain " << plain_error << ", of rounded scores " << rounded_error << ", size " << size(e);
  };
  for_each_instruction_set([&](const char* instruction_set) {
    SCOPED_TRACE(instruction_set);
    roundings = std::string(instruction_set).find("SSE") == std::string::npos ? 4 : 6;  // no fused products there
    const auto got = run_kernels<T>(c.problem, data);
    const auto& size_of = exact.magnitudes;
    compare("output", got.output, &Results<T>::output, &Results<Real>::output, 0);
    compare("jvp", got.jvp, &Results<T>::jvp, &Results<Real>::jvp, size_of[0]);
    compare("query", got.query, &Results<T>::query, &Results<Real>::query, size_of[1]);
    compare("key", got.key, &Results<T>::key, &Results<Real>::key, size_of[2]);
    compare("value", got.value, &Results<T>::value, &Results<Real>::value, 0);
    compare("change of result", got.result_change, &Results<T>::result_change, &Results<Real>::result_change, size_of[0]);
    compare("change of query", got.query_change, &Results<T>::query_change, &Results<Real>::query_change, size_of[3]);
    compare("change of key", got.key_change, &Results<T>::key_change, &Results<Real>::key_change, size_of[4]);
    compare("change of value", got.value_change, &Results<T>::value_change, &Results<Real>::value_change, size_of[5]);
  });
}

TEST_P(AttentionKernel, Float32IsAsGoodAsThePlainVersion) { check<float, double>(GetParam()); }
TEST_P(AttentionKernel, Float64IsAsGoodAsThePlainVersion) { check<double, long double>(GetParam()); }

TEST_P(AttentionKernel, ProductsAreTransposes) {
  const auto& c = GetParam();
  const AttentionData<double> data(c);
  const auto r = run_kernels<double>(c.problem, data);
  const auto dot = [](const auto& a, const auto& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); };
  const double forward = dot(data.cotangent, r.jvp);
  const double parts[] = {dot(r.query, data.query_tangent), dot(r.key, data.key_tangent), dot(r.value, data.value_tangent)};
  const double scale = std::abs(parts[0]) + std::abs(parts[1]) + std::abs(parts[2]) + std::abs(forward) +
                       1e-3 * std::sqrt(dot(r.jvp, r.jvp) * dot(data.cotangent, data.cotangent));
  const double tolerance = c.data == Data::kHuge || c.data == Data::kSpread ? 1e-8 : 1e-11;  // scores of 1e6 carry 1e-10 themselves
  EXPECT_NEAR(forward, parts[0] + parts[1] + parts[2], tolerance * scale);
}

TEST_P(AttentionKernel, SameBitsForAnyNumberOfThreads) {
  const auto& c = GetParam();
  const AttentionData<float> data(c);
  const auto once = run_kernels<float>(c.problem, data);
  for (int threads : {2, 3}) {
    const ParallelFor parallel = [threads](int64_t count, int64_t, const ParallelBody& body) {
      std::vector<std::thread> pool;
      for (int t = 0; t < threads; ++t) {
        const int64_t begin = count * t / threads, end = count * (t + 1) / threads;
        if (begin < end) pool.emplace_back([&body, begin, end] { body(begin, end); });
      }
      for (auto& thread : pool) thread.join();
    };
    const auto again = run_kernels<float>(c.problem, data, parallel);
    EXPECT_EQ(once.output, again.output);
    EXPECT_EQ(once.jvp, again.jvp);
    EXPECT_EQ(once.query, again.query);
    EXPECT_EQ(once.key, again.key);
    EXPECT_EQ(once.value, again.value);
    EXPECT_EQ(once.result_change, again.result_change);
    EXPECT_EQ(once.query_change, again.query_change);
    EXPECT_EQ(once.key_change, again.key_change);
    EXPECT_EQ(once.value_change, again.value_change);
  }
}

// A NaN makes its own sample NaN and leaves the others as they are.
class AttentionKernelNan : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionKernelNan, StaysInItsSample) {
  auto c = GetParam();
  c.problem.batch = 3;
  const auto& p = c.problem;
  const AttentionData<float> data(c);
  const auto clean = run_kernels<float>(p, data);
  for (auto member : {&AttentionData<float>::query, &AttentionData<float>::key, &AttentionData<float>::value}) {
    auto spoilt = data;
    (spoilt.*member)[(spoilt.*member).size() / 2] = std::numeric_limits<float>::quiet_NaN();
    const auto got = run_kernels<float>(p, spoilt);
    const auto compare = [&](const std::vector<float>& with, const std::vector<float>& without) {
      const auto part = static_cast<int64_t>(with.size()) / 3;
      EXPECT_TRUE(std::equal(with.begin(), with.begin() + part, without.begin()));
      EXPECT_TRUE(std::equal(with.begin() + 2 * part, with.end(), without.begin() + 2 * part));
    };
    compare(got.output, clean.output);
    compare(got.jvp, clean.jvp);
    compare(got.query, clean.query);
    compare(got.key, clean.key);
    compare(got.value, clean.value);
    compare(got.query_change, clean.query_change);
    compare(got.key_change, clean.key_change);
    compare(got.value_change, clean.value_change);
    EXPECT_TRUE(std::any_of(got.output.begin(), got.output.end(), [](float x) { return std::isnan(x); }));
  }
}

std::vector<AttentionCase> small_random_cases() {
  auto cases = attention_cases();
  std::erase_if(cases, [](const auto& c) { return c.data != Data::kRandom || c.problem.positions > 33 || c.problem.batch == 0; });
  return cases;
}

constexpr auto kName = [](const auto& info) { return info.param.name(); };
INSTANTIATE_TEST_SUITE_P(Cases, AttentionKernel, ::testing::ValuesIn(attention_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Cases, AttentionKernelNan, ::testing::ValuesIn(small_random_cases()), kName);

// The closed forms of the naive reference itself, by differences of its forward pass and of its first derivative.
TEST(NaiveAttention, DerivativesAreThoseByDifferences) {
  for (const auto& c : small_random_cases()) {
    const AttentionData<double> data(c);
    const long double h = 1e-8L;
    const auto shifted = [&](long double step) {
      const auto move = [step](const std::vector<double>& x, const std::vector<double>& d) {
        std::vector<long double> result(x.begin(), x.end());
        for (std::size_t i = 0; i < x.size(); ++i) result[i] += step * static_cast<long double>(d[i]);
        return result;
      };
      return NaiveAttention<long double>(c.problem, move(data.query, data.query_tangent), move(data.key, data.key_tangent),
                                         move(data.value, data.value_tangent));
    };
    const auto up = shifted(h), down = shifted(-h);
    const auto exact = run_naive<long double>(c.problem, data);
    const auto compare = [&](const char* what, const auto& above, const auto& below, const auto& derivative) {
      for (std::size_t i = 0; i < above.size(); ++i) {
        EXPECT_NEAR(double((above[i] - below[i]) / (2 * h)), double(derivative[i]), 1e-7 * (1 + size(derivative))) << what << c;
      }
    };
    compare("output ", up.forward(), down.forward(), exact.jvp);
    const std::vector<long double> cotangent(data.cotangent.begin(), data.cotangent.end());
    const auto above = up.vjp(cotangent), below = down.vjp(cotangent);
    compare("query ", above.query, below.query, exact.query_change);
    compare("key ", above.key, below.key, exact.key_change);
    compare("value ", above.value, below.value, exact.value_change);
  }
}

// Beyond the size where threads share a sample and where columns no longer fit the cache.
TEST(AttentionKernelLarge, AgreesWithTheNaiveReference) {
  for (auto response : {Response::kExponential, Response::kEluPlusOne}) {
    for (auto score : {Score::kProduct, Score::kSum}) {
      for (auto normalization : {Normalization::kColumns, Normalization::kBalanced}) {
        const AttentionCase c{{1, score == Score::kSum ? 1 : 3, 4, 2111, score, response, normalization, 1.0}, Data::kRandom};
        check<float, double>(c);
        const AttentionData<float> data(c);
        const auto once = run_kernels<float>(c.problem, data);
        const ParallelFor pieces = [](int64_t count, int64_t, const ParallelBody& body) {
          for (int64_t b = 0; b < count; b += 3) body(b, std::min(count, b + 3));
        };
        EXPECT_EQ(once.output, run_kernels<float>(c.problem, data, pieces).output);
        EXPECT_EQ(once.key, run_kernels<float>(c.problem, data, pieces).key);
      }
    }
  }
}

// Beyond the size where the whole map stays in the cache, block of columns by block of columns under every normalisation.
TEST(AttentionKernelLarge, EveryNormalizationByBlocksOfColumns) {
  for (auto response : {Response::kExponential, Response::kRelu, Response::kElu, Response::kIdentity}) {
    for (auto normalization :
         {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kCount, Normalization::kBalanced}) {
      const bool has_sign = response == Response::kElu || response == Response::kIdentity;  // then one sign: no sum cancels
      const AttentionCase c{{1, 3, 5, 523, Score::kProduct, response, normalization, 0.75}, has_sign ? Data::kNegative : Data::kRandom};
      if (cpu::covers(c.problem)) check<float, double>(c);
    }
  }
}

class AttentionKernelStandard : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionKernelStandard, LargeShapeIsRightWhereSampled) {
  const AttentionCase& c = GetParam();
  const AttentionData<float> data(c);
  const auto r = run_kernels<float>(c.problem, data);
  const LargeErrors errors = check_large(c, data, {r.output, r.jvp, r.query, r.key, r.value});
  EXPECT_LT(errors.output, 2e-6);
  EXPECT_LT(errors.jvp, 2e-6);
  EXPECT_LT(errors.transpose, 1e-6);
  EXPECT_LE(error(r.result_change, r.jvp), 1e-5 * size(r.jvp));
}

INSTANTIATE_TEST_SUITE_P(All, AttentionKernelStandard, ::testing::ValuesIn(standard_cases(kLargeStandardShape)),
                         [](const auto& info) { return info.param.name(); });

// Where a block of columns no longer fits the cache, both sums of `balanced` come from one sweep. The queries are few different numbers, so
// that a plain version need not work out 2.7e8 responses.
TEST(AttentionKernelLarge, BothSumsBeyondTheCache) {
  const AttentionCase c{{1, 1, 1, 16411, Score::kProduct, Response::kExponential, Normalization::kBalanced, 1.0}, Data::kRandom};
  const auto& p = c.problem;
  const auto n = static_cast<std::size_t>(p.positions);
  AttentionData<float> data(c);
  std::map<float, double> counts;
  for (auto& x : data.query) ++counts[x = std::round(8 * x) / 16];
  std::vector<float> output(n), rows(cpu::kSumParts * n), columns(cpu::kSumParts * n);
  cpu::attention_forward<float>(p, {data.query.data(), data.key.data(), data.value.data()}, {rows.data(), columns.data(), nullptr},
                                output.data());
  const auto response = [&](float query, std::size_t j) { return std::exp(double(query) * double(data.key[j])); };
  std::map<float, double> row_sums, results;
  std::vector<double> column_sums(n);
  for (const auto& [query, count] : counts) {
    for (std::size_t j = 0; j < n; ++j) {
      row_sums[query] += response(query, j);
      column_sums[j] += count * response(query, j);
    }
  }
  for (const auto& [query, count] : counts) {
    for (std::size_t j = 0; j < n; ++j) results[query] += response(query, j) / std::sqrt(column_sums[j]) * double(data.value[j]);
    results[query] /= std::sqrt(row_sums[query]);
  }
  std::vector<double> exact(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double row = row_sums[data.query[i]];
    EXPECT_NEAR(double(rows[n + i]) * std::exp2(double(rows[i])), row, 2e-6 * row);
    EXPECT_NEAR(double(columns[n + i]) * std::exp2(double(columns[i])), column_sums[i], 2e-6 * column_sums[i]);
    exact[i] = results[data.query[i]];
  }
  EXPECT_LE(error(output, exact), 2e-6 * size(exact));
}

// The plain Gaussian hands in one array as query and key. What counts are the numbers, and no kernel needs to be told.
TEST(AttentionKernelInputs, QueryAndKeyMayBeOneArray) {
  for (int64_t n : {40, 523}) {
    const AttentionCase c{{2, 3, 5, n, Score::kProduct, Response::kExponential, Normalization::kBalanced, 1.0}, Data::kRandom};
    AttentionData<float> data(c);
    data.key = data.query;
    std::vector<float> one(data.value.size()), two(data.value.size());
    cpu::attention_forward<float>(c.problem, {data.query.data(), data.query.data(), data.value.data()}, {}, one.data());
    cpu::attention_forward<float>(c.problem, {data.query.data(), data.key.data(), data.value.data()}, {}, two.data());
    EXPECT_EQ(one, two);
    auto symmetric = c.problem;
    symmetric.symmetric = true;
    for (const auto* key : {&data.query, &data.key}) {
      cpu::attention_forward<float>(symmetric, {data.query.data(), key->data(), data.value.data()}, {}, two.data());
      EXPECT_EQ(one, two);
    }
  }
}

TEST(AttentionKernelInputs, CoversWhatHasAKernel) {
  AttentionProblem p{1, 3, 4, 10, Score::kProduct, Response::kElu, Normalization::kRows, 1.0};
  for (auto score : {Score::kProduct, Score::kSum}) {
    p.score = score;
    p.depth = score == Score::kSum ? 1 : 3;
    for (auto response : {Response::kElu, Response::kIdentity}) {
      p.response = response;
      for (auto normalization : {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kCount}) {
        p.normalization = normalization;
        EXPECT_TRUE(cpu::covers(p));
      }
      p.normalization = Normalization::kBalanced;
      EXPECT_FALSE(cpu::covers(p)) << "the root of a sum that may be negative";
    }
    p.response = Response::kSoftplus;
    p.normalization = Normalization::kRows;
    EXPECT_FALSE(cpu::covers(p));
    p.response = Response::kExponential;
    p.normalization = Normalization::kCount;
    EXPECT_TRUE(cpu::covers(p));
  }
}

/// A line of /proc/self/status, in bytes; 0 where there is none.
int64_t memory_of_process(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field, 0) == 0) return 1024 * std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

// O(N) beside inputs and outputs: the map alone would take 376 MB.
TEST(AttentionKernelLarge, ForwardAndGradientNeedLittleMemory) {
  for (auto score : {Score::kProduct, Score::kSum}) {
    const AttentionCase c{{1, score == Score::kSum ? 1 : 3, 12, 9701, score, Response::kEluPlusOne, Normalization::kColumns, 1.0},
                          Data::kRandom};
    const auto& p = c.problem;
    const AttentionData<float> data(c);
    std::vector<float> output(data.value.size()), value(data.value.size()), query(data.query.size()), key(data.key.size());
    std::vector<float> columns(static_cast<std::size_t>(cpu::kSumParts * p.positions));
    const AttentionInputs<float> inputs{data.query.data(), data.key.data(), data.value.data()};
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts anew
    const int64_t before = memory_of_process("VmRSS:");
    if (before == 0) GTEST_SKIP() << "no /proc/self/status";
    cpu::attention_forward<float>(p, inputs, {nullptr, columns.data(), nullptr}, output.data());
    cpu::attention_vjp<float>(p, inputs, {nullptr, columns.data(), nullptr}, output.data(), data.cotangent.data(), query.data(), key.data(),
                              value.data());
    const int64_t peak = memory_of_process("VmHWM:") - before;
    RecordProperty(name(score), std::to_string(peak));
    EXPECT_LT(peak, int64_t{32} << 20) << name(score);
  }
}

}  // namespace
}  // namespace invattn::kernels::testing

// Compares every CUDA attention kernel with loops over all pairs on the host in a wider precision, beside a plain version in the kernel's
// own, and times the kernels by graph replay. A plain program, so that it runs where there is no GoogleTest:
//   cuda_attention_test [--small|--tiny|--only-time] [--seed K] [--only NAME]
// --small: few positions (compute-sanitizer, emulation); --tiny: each kernel once (racecheck, which takes a thousand times as long)
// Exit code 0: every case within bounds; 1: not; 77: skipped, there is no CUDA device.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "invattn/kernels/cuda/attention.h"
#include "invattn/kernels/cuda/launch.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/cuda_support.cuh"
#include "tests/kernels/naive_attention.h"
#include "tests/kernels/sampled_attention.h"

namespace {

using namespace invattn;
using namespace invattn::kernels;
using testing::Device;

int failures = 0;
std::string only;  // --only NAME: the cases of that name

struct Case {
  AttentionProblem problem;
  double spread;  // standard deviation of query and key
  const char* name;
  double offset = 0;       // of query and, with the other sign, of key: scores around -depth offset^2
  bool symmetric = false;  // query and key are the same numbers, in two arrays
  bool said = false;       // and the problem says so
  bool plain = false;      // without the matrix units
  bool positive = false;   // values and cotangent
  bool tf32 = false;       // as Launch's
};

template <class R>
struct Results {
  std::vector<R> output, query, key, value, change, second_query, second_key, second_value;  // the last three: hvp
  // The largest of their terms, before they cancel.
  double query_term = 0, key_term = 0, change_term = 0, second_query_term = 0, second_key_term = 0, second_value_term = 0;

  /// Of query and key together.
  std::vector<R> both_gradients() const {
    std::vector<R> sum(query.size());
    std::transform(query.begin(), query.end(), key.begin(), sum.begin(), std::plus<>());
    return sum;
  }
};

template <class T>
struct Inputs {
  std::vector<T> query, key, value, cotangent, query_tangent, key_tangent, value_tangent;
};

/// Loops over all pairs in precision R, from inputs in precision T; `rounding`: of every score, up or down, as `draw` has it.
template <class R, class T>
Results<R> naive(const AttentionProblem& problem, const Inputs<T>& in, R rounding = 0, uint64_t draw = 0) {
  const auto cast = [](const std::vector<T>& v) { return std::vector<R>(v.begin(), v.end()); };
  const testing::NaiveAttention<R> attention(problem, cast(in.query), cast(in.key), cast(in.value), rounding, draw);
  Results<R> out;
  out.output = attention.forward();
  auto first = attention.vjp(cast(in.cotangent));
  auto second = attention.hvp(cast(in.cotangent), cast(in.query_tangent), cast(in.key_tangent), cast(in.value_tangent));
  out.query = std::move(first.query);
  out.key = std::move(first.key);
  out.value = std::move(first.value);
  out.change = std::move(second.result);
  out.second_query = std::move(second.query);
  out.second_key = std::move(second.key);
  out.second_value = std::move(second.value);
  attention.jvp(cast(in.query_tangent), cast(in.key_tangent), cast(in.value_tangent));
  out.change_term = attention.magnitudes.jvp;
  out.query_term = attention.magnitudes.query;
  out.key_term = attention.magnitudes.key;
  out.second_query_term = attention.second_magnitudes.query;
  out.second_key_term = attention.second_magnitudes.key;
  out.second_value_term = attention.second_magnitudes.value;
  return out;
}

/// |x - reference| / |reference|; NaN never passes.
template <class T, class R>
double error_of(const std::vector<T>& x, const std::vector<R>& reference) {
  R difference = 0, length = 0;
  for (size_t e = 0; e < x.size(); ++e) {
    if (!std::isfinite(static_cast<double>(x[e]))) return std::numeric_limits<double>::infinity();
    difference += (x[e] - reference[e]) * (x[e] - reference[e]);
    length += reference[e] * reference[e];
  }
  return static_cast<double>(length > 0 ? std::sqrt(difference / length) : std::sqrt(difference));
}

template <class R>
double length_of(const std::vector<R>& x) {
  R length = 0;
  for (const R entry : x) length += entry * entry;
  return static_cast<double>(std::sqrt(length));
}

template <class T>
Inputs<T> draw(const Case& c, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  const auto array = [&](int64_t channels, double scale) {
    std::vector<T> result(c.problem.batch * channels * c.problem.positions);
    for (auto& x : result) x = static_cast<T>(scale * normal(engine));
    return result;
  };
  const int64_t d = c.problem.depth, v = c.problem.values;
  Inputs<T> inputs{array(d, c.spread), array(d, c.spread), array(v, 1), array(v, 1), array(d, 1), array(d, 1), array(v, 1)};
  for (auto& x : inputs.query) x += static_cast<T>(c.offset);
  for (auto& x : inputs.key) x -= static_cast<T>(c.offset);
  if (c.symmetric) inputs.key = inputs.query;
  if (c.positive) {
    for (auto* values : {&inputs.value, &inputs.cotangent}) {
      for (auto& x : *values) x = std::abs(x);
    }
  }
  return inputs;
}

template <class T>
struct Buffers {
  Device<T> query, key, value, cotangent, query_tangent, key_tangent, value_tangent, rows, columns, total, output, query_gradient,
      key_gradient, value_gradient, both_gradients, change, second_query, second_key, second_value, second_change;
  Device<char> workspace;
  AttentionProblem problem;
  bool one_array = false;  // for query and key, as callers have it: the times
  cuda::Launch launch;

  Buffers(const AttentionProblem& p, const Inputs<T>& in, int multiprocessors, bool said = false, bool plain = false, bool tf32 = false)
      : query(in.query),
        key(in.key),
        value(in.value),
        cotangent(in.cotangent),
        query_tangent(in.query_tangent),
        key_tangent(in.key_tangent),
        value_tangent(in.value_tangent),
        rows(p.batch * p.positions * cuda::kSumParts),
        columns(p.batch * p.positions * cuda::kSumParts),
        total(p.batch * cuda::kSumParts),
        output(in.value.size()),
        query_gradient(in.query.size()),
        key_gradient(in.key.size()),
        value_gradient(in.value.size()),
        both_gradients(said ? in.query.size() : 0),
        change(in.value.size()),
        second_query(in.query.size()),
        second_key(in.key.size()),
        second_value(in.value.size()),
        second_change(in.value.size()),
        workspace(cuda::attention_workspace_bytes<T>(p)),
        problem(p) {
    problem.symmetric = said;
    launch.workspace = workspace.data;
    launch.multiprocessors = multiprocessors;
    launch.matrix_units = !plain;
    launch.tf32 = tf32;
  }
  // The sum score keeps no sums.
  AttentionSums<T> sums() const {
    if (problem.score == Score::kSum) return {nullptr, nullptr, nullptr};
    return {rows.data, columns.data, total.data};
  }
  AttentionSums<const T> const_sums() const { return {sums().rows, sums().columns, sums().total}; }
  AttentionInputs<T> inputs() const { return {query.data, one_array ? query.data : key.data, value.data}; }
  AttentionInputs<T> tangents() const { return {query_tangent.data, key_tangent.data, value_tangent.data}; }
  void forward() { cuda::attention_forward<T>(problem, inputs(), sums(), output.data, launch); }
  void vjp() {
    cuda::attention_vjp<T>(problem, inputs(), const_sums(), output.data, cotangent.data,
                           {query_gradient.data, key_gradient.data, value_gradient.data}, launch);
  }
  /// The gradients of query and key as one, of a symmetric problem.
  void joint_vjp() {
    cuda::attention_vjp<T>(problem, inputs(), const_sums(), output.data, cotangent.data,
                           {both_gradients.data, nullptr, value_gradient.data, /*joint=*/true}, launch);
  }
  void jvp() { cuda::attention_jvp<T>(problem, inputs(), const_sums(), output.data, tangents(), change.data, launch); }
  void hvp() {
    cuda::attention_hvp<T>(problem, inputs(), const_sums(), output.data, cotangent.data, tangents(), second_change.data, second_query.data,
                           second_key.data, second_value.data, launch);
  }
  void all() {
    forward();
    if (problem.symmetric) joint_vjp();
    vjp();
    jvp();
    hvp();
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  /// Everything that the kernels wrote.
  std::vector<std::vector<T>> results() const {
    return {output.host(),       value_gradient.host(), query_gradient.host(), key_gradient.host(),  change.host(),
            second_value.host(), second_query.host(),   second_key.host(),     second_change.host(), both_gradients.host()};
  }
};

/// Bitwise, from sample `first` of `batch` on.
template <class T>
bool same(const std::vector<std::vector<T>>& left, const std::vector<std::vector<T>>& right, int64_t first = 0, int64_t batch = 1) {
  for (size_t a = 0; a < left.size(); ++a) {
    const size_t skip = left[a].size() / batch * first;
    if (std::memcmp(left[a].data() + skip, right[a].data() + skip, (left[a].size() - skip) * sizeof(T)) != 0) return false;
  }
  return true;
}

/// A NaN in the first sample stays there.
template <class T>
void check_isolation(const Case& c, unsigned seed, int multiprocessors) {
  if (!only.empty() && only != c.name) return;
  auto inputs = draw<T>(c, seed);
  Buffers<T> clean(c.problem, inputs, multiprocessors, false, false, c.tf32);
  clean.all();
  inputs.query[1] = inputs.key[0] = std::numeric_limits<T>::quiet_NaN();
  Buffers<T> spoilt(c.problem, inputs, multiprocessors, false, false, c.tf32);
  spoilt.all();
  const bool ok = same(clean.results(), spoilt.results(), 1, c.problem.batch) && !same(clean.results(), spoilt.results());
  std::printf("%s%s\n", c.name, ok ? "" : "  FAILED");
  if (!ok) ++failures;
}

/// The forward pass leaves out the samples that are said to be idle, and does the others as ever.
void check_idle(const Case& c, unsigned seed, int multiprocessors) {
  if (!only.empty() && only != c.name) return;
  const auto inputs = draw<float>(c, seed);
  Buffers<float> all(c.problem, inputs, multiprocessors), one(c.problem, inputs, multiprocessors);
  const Device<int> idle(std::vector<int>{1, 0});
  one.launch.idle = idle.data;
  all.forward();
  one.forward();
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto whole = all.output.host(), rest = one.output.host();
  const size_t half = whole.size() / 2;
  const bool left = std::all_of(rest.begin(), rest.begin() + static_cast<int64_t>(half), [](float x) { return std::isnan(x); });
  const bool ok = left && std::memcmp(whole.data() + half, rest.data() + half, half * sizeof(float)) == 0;
  std::printf("%s%s\n", c.name, ok ? "" : "  FAILED");
  if (!ok) ++failures;
}

/// A bound of the scores.
template <class T>
double largest_score(const AttentionProblem& problem, const Inputs<T>& inputs) {
  const auto largest = [](const std::vector<T>& x) {
    double result = 0;
    for (const T entry : x) result = std::max(result, std::abs(static_cast<double>(entry)));
    return result;
  };
  const double query = largest(inputs.query), key = largest(inputs.key);
  return problem.score == Score::kSum ? query + key : static_cast<double>(problem.depth) * query * key;
}

/// A bound of the logarithm of all responses' sum.
template <class T>
double largest_logarithm(const AttentionProblem& problem, const Inputs<T>& inputs) {
  const double score = largest_score(problem, inputs);
  const double response = problem.response == Response::kExponential ? score : std::log1p(score);
  return response + 2 * std::log(static_cast<double>(problem.positions));
}

/// What is allowed beside twice the error of the plain version, or of rounded scores where that is larger: where a result is
/// nothing but what its terms leave when they cancel, their roundings (`condition`, below); and where nothing or one logarithm divides the
/// whole map (`count`, `all`), those of the largest exponent. A term left out shows as 1e-2 and more, one TF32 product in place of three as
/// 3e-4 (check_tf32): far outside what ordinary cases are allowed, which is the last number of their line.
/// rounded: scores may be off by a rounding, however large they are, and results by that of their largest terms, however much cancels: the
/// bounds of the tests of the CPU kernels, which the table was made for.
template <class T>
void compare(const Case& c, const Inputs<T>& inputs, int multiprocessors, bool rounded = false) {
  using Wide = std::conditional_t<sizeof(T) == 8, long double, double>;
  const auto reference = naive<Wide>(c.problem, inputs);
  const auto plain = naive<T>(c.problem, inputs);
  Buffers<T> buffers(c.problem, inputs, multiprocessors, c.said, c.plain);
  buffers.all();
  struct Error {
    const char* what;
    double kernel, plain;
    double condition = 0;  // the largest term, in every entry, against the result
  };
  const auto error = [](const char* what, const Device<T>& got, const auto& naive_result, const auto& exact) {
    return Error{what, error_of(got.host(), exact), error_of(naive_result, exact)};
  };
  std::vector<Error> errors = {error("A", buffers.output, plain.output, reference.output),
                               error("dF", buffers.value_gradient, plain.value, reference.value),
                               error("dq", buffers.query_gradient, plain.query, reference.query),
                               error("dk", buffers.key_gradient, plain.key, reference.key),
                               error("jvp", buffers.change, plain.change, reference.change),
                               error("jvp2", buffers.second_change, plain.change, reference.change),
                               error("ddF", buffers.second_value, plain.second_value, reference.second_value),
                               error("ddq", buffers.second_query, plain.second_query, reference.second_query),
                               error("ddk", buffers.second_key, plain.second_key, reference.second_key)};
  if (c.said) {
    errors.push_back(error("dq+dk", buffers.both_gradients, plain.both_gradients(), reference.both_gradients()));
  }
  // The plain version's error is one draw of many: where scores are large, what their roundings do counts, however lucky the loop was. Up to
  // 1e-4, though: huge scores may be off by a rounding for the table only (one score that dominates cancels exactly in any version).
  const double most = rounded ? std::numeric_limits<double>::max() : 1e-4;
  for (const uint64_t draw : {0, 1}) {
    const auto other = naive<Wide>(c.problem, inputs, static_cast<Wide>(std::numeric_limits<T>::epsilon() / 2), draw);
    const std::vector<Wide> Results<Wide>::*const members[] = {
        &Results<Wide>::output,       &Results<Wide>::value,        &Results<Wide>::query,
        &Results<Wide>::key,          &Results<Wide>::change,       &Results<Wide>::change,
        &Results<Wide>::second_value, &Results<Wide>::second_query, &Results<Wide>::second_key};
    for (size_t e = 0; e < std::size(members); ++e) {
      errors[e].plain = std::max(errors[e].plain, std::min(most, error_of(other.*members[e], reference.*members[e])));
    }
    if (c.said) {
      errors.back().plain = std::max(errors.back().plain, std::min(most, error_of(other.both_gradients(), reference.both_gradients())));
    }
  }
  {
    const bool everywhere = rounded || c.problem.score == Score::kSum;  // else only where nothing is left of the terms
    const auto condition = [&](double term, const auto& exact) {
      const double length = length_of(exact), terms = term * std::sqrt(static_cast<double>(exact.size()));
      if (!everywhere && length > 1e-5 * terms) return 0.0;
      return terms / (length > 0 ? length : 1);
    };
    errors[2].condition = condition(reference.query_term, reference.query);
    errors[3].condition = condition(reference.key_term, reference.key);
    errors[7].condition = condition(reference.second_query_term, reference.second_query);
    errors[8].condition = condition(reference.second_key_term, reference.second_key);
    errors[4].condition = errors[5].condition = condition(reference.change_term, reference.change);
    errors[6].condition = condition(reference.second_value_term, reference.second_value);
  }
  static const char* const kNormalizations[] = {"columns", "rows", "all", "count", "balanced"};
  static const char* const kResponses[] = {"exp", "elu+1", "softplus", "relu"};
  std::printf("%-22s %-6s %-8s %-8s B%ld D%ld V%ld N%-5ld", c.name, sizeof(T) == 4 ? "float" : "double",
              kResponses[int(c.problem.response)], kNormalizations[int(c.problem.normalization)], long(c.problem.batch),
              long(c.problem.depth), long(c.problem.values), long(c.problem.positions));
  // Where the plain version happens to be nearly exact.
  // In double the logarithms of sums have no more digits than the scores, and one dominating score does not cancel exactly.
  double floor = sizeof(T) == 8 ? 1e-13 : 1e-6;
  const bool whole = c.problem.normalization == Normalization::kAll || c.problem.normalization == Normalization::kCount;
  if (sizeof(T) == 4 && whole) {
    floor = std::clamp(std::numeric_limits<float>::epsilon() * (1 + largest_logarithm(c.problem, inputs)), 2e-6, 2e-4);
  }
  if (rounded && sizeof(T) == 8) floor = std::max(floor, 64 * std::numeric_limits<double>::epsilon() * largest_score(c.problem, inputs));
  bool ok = true;
  double widest = 0;
  for (const auto& e : errors) {
    // The sum score adds the terms of a gradient up separately, by sorted sums that run through all positions, and subtracts the totals:
    // where they cancel (a relu column that holds one tiny score has terms of its inverse, and a gradient of zero) every entry has the
    // rounding, in double, of the largest term. The plain version cancels within each pair.
    const bool wide = c.problem.score == Score::kSum && !rounded;
    const double epsilon = wide ? std::numeric_limits<double>::epsilon() : double(std::numeric_limits<T>::epsilon());
    const double rounding = 4 * epsilon * e.condition;
    // Where not even the plain version has a digit right, the exact result is what cancellation left of larger terms, or lies below the
    // smallest float: there is nothing to compare but that it is finite.
    const double allowed = std::max({2 * e.plain, floor, rounding});
    const bool good = e.kernel <= allowed || (e.plain > 0.1 && std::isfinite(e.kernel));
    widest = std::max(widest, allowed);
    ok = ok && good;
    std::printf(" %s %.1e/%.1e%s", e.what, e.kernel, e.plain, good ? "" : " !!");
  }
  std::printf(" allowed %.1e", widest);
  const auto before = buffers.results();
  buffers.all();
  if (!same(before, buffers.results())) {
    ok = false;
    std::printf(" NOT REPEATABLE");
  }
  std::printf("%s\n", ok ? "" : "  FAILED");
  if (!ok) ++failures;
}

template <class T>
void compare(const Case& c, unsigned seed, int multiprocessors) {
  if (only.empty() || only == c.name) compare(c, draw<T>(c, seed), multiprocessors);
}

/// As the matrix units take a number that goes to them in one part.
float in_11_digits(float x) {
  x *= 1.00034F;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits &= ~uint32_t{0x1fff};
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// With Launch::tf32 the map is that of vectors in 11 digits, however large the scores are, and so many digits have the results, as a whole;
/// without it they are what they are without it.
void check_tf32(const Case& c, unsigned seed, int multiprocessors) {
  if (!only.empty() && only != c.name) return;
  const auto inputs = draw<float>(c, seed);
  auto cut = inputs;
  for (auto* vectors : {&cut.query, &cut.key, &cut.query_tangent, &cut.key_tangent}) {
    std::transform(vectors->begin(), vectors->end(), vectors->begin(), in_11_digits);
  }
  const auto exact = naive<double>(c.problem, cut);
  Buffers<float> full(c.problem, inputs, multiprocessors, c.said), rough(c.problem, inputs, multiprocessors, c.said, false, true);
  full.all();
  rough.all();
  // Where one score is all of a column the derivatives of its weights vanish, and their results are what terms leave when they cancel: 11
  // digits of the channels in a gradient, the last digits of a float in the change of the gradient of F. So these are measured against their
  // terms, which do not vanish, and against themselves only where no score is all of a column.
  constexpr double kMost = 2e-3, kLeast = 1e-4;
  const bool cancels = c.spread >= 1;
  double smallest = std::numeric_limits<double>::max();
  std::vector<double> errors;
  const auto check = [&](const Device<float>& got, const auto& of_exact) {
    errors.push_back(error_of(got.host(), of_exact));
    smallest = std::min(smallest, errors.back());
  };
  const auto check_term = [&](const Device<float>& got, const auto& of_exact, double term, double share) {
    if (!cancels) return check(got, of_exact);
    const double length = length_of(of_exact), terms = share * term * std::sqrt(static_cast<double>(of_exact.size()));
    errors.push_back(error_of(got.host(), of_exact) * (length > 0 ? length : 1) / std::max(length, terms));
  };
  check(rough.output, exact.output);
  check(rough.value_gradient, exact.value);
  check(rough.change, exact.change);
  check_term(rough.second_value, exact.second_value, exact.second_value_term, 4 * std::numeric_limits<float>::epsilon() / kMost);
  check_term(rough.query_gradient, exact.query, exact.query_term, 1);
  check_term(rough.key_gradient, exact.key, exact.key_term, 1);
  check_term(rough.second_query, exact.second_query, exact.second_query_term, 1);
  check_term(rough.second_key, exact.second_key, exact.second_key_term, 1);
  if (c.said) check_term(rough.both_gradients, exact.both_gradients(), exact.query_term + exact.key_term, 1);
  bool ok = *std::max_element(errors.begin(), errors.end()) < kMost && smallest > kLeast;
  const auto precise = full.results(), results = rough.results();
  for (size_t a = 0; a < results.size(); ++a) ok = ok && (results[a].empty() || results[a] != precise[a]);
  rough.all();
  ok = ok && same(results, rough.results());
  rough.launch.tf32 = false;
  rough.all();
  ok = ok && same(precise, rough.results());
  std::printf("%-22s %-6s D%ld V%ld N%-5ld", c.name, "float", long(c.problem.depth), long(c.problem.values), long(c.problem.positions));
  for (const double error : errors) std::printf(" %.1e", error);
  std::printf("%s\n", ok ? "" : "  FAILED");
  if (!ok) ++failures;
}

/// The table that the CPU kernels are tested on, in both precisions.
template <class T>
void compare_table(int multiprocessors) {
  if (!only.empty() && only != "table") return;
  for (const testing::AttentionCase& c : testing::attention_cases()) {
    if (!cuda::covers(c.problem)) continue;
    const testing::AttentionData<T> data(c);
    const Inputs<T> inputs{data.query, data.key, data.value, data.cotangent, data.query_tangent, data.key_tangent, data.value_tangent};
    compare({c.problem, 0, testing::name(c.data)}, inputs, multiprocessors, /*rounded=*/true);
  }
}

/// The large shape that the benchmarks measure, in all kinds.
void check_standard(int multiprocessors) {
  if (!only.empty() && only != "standard") return;
  for (const testing::AttentionCase& c : testing::standard_cases(kLargeStandardShape)) {
    const testing::AttentionData<float> data(c);
    const Inputs<float> inputs{data.query, data.key, data.value, data.cotangent, data.query_tangent, data.key_tangent, data.value_tangent};
    Buffers<float> buffers(c.problem, inputs, multiprocessors);
    buffers.all();
    const auto change = buffers.change.host();
    const auto errors = testing::check_large(
        c, data,
        {buffers.output.host(), change, buffers.query_gradient.host(), buffers.key_gradient.host(), buffers.value_gradient.host()});
    const double second = error_of(buffers.second_change.host(), change);
    const bool ok = errors.output < 2e-6 && errors.jvp < 2e-6 && errors.transpose < 1e-6 && second < 2e-6;
    std::printf("%s: A %.1e, jvp %.1e, transpose %.1e, jvp2 %.1e%s\n", c.name().c_str(), errors.output, errors.jvp, errors.transpose,
                second, ok ? "" : "  FAILED");
    if (!ok) ++failures;
  }
}

/// A map so large that its sides are sorted in runs and merged: A of some positions against loops over all pairs. Keys come twice.
void check_merged(int64_t positions, unsigned seed, int multiprocessors) {
  const Case c{{2, 1, 2, positions, Score::kSum, Response::kEluPlusOne, Normalization::kColumns, 1.0}, 1.0, "sum, merged"};
  if (!only.empty() && only != c.name) return;
  auto inputs = draw<float>(c, seed);
  for (int64_t e = 0; e + 1 < static_cast<int64_t>(inputs.key.size()); e += 2) inputs.key[e + 1] = inputs.key[e];
  Buffers<float> buffers(c.problem, inputs, multiprocessors);
  buffers.forward();
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto output = buffers.output.host();
  const auto phi = [](double s) { return s < 0 ? std::exp(s) : s + 1; };
  double difference = 0, length = 0;
  for (int64_t b = 0; b < 2; ++b) {
    const float *query = &inputs.query[b * positions], *key = &inputs.key[b * positions], *value = &inputs.value[b * 2 * positions];
    std::vector<double> weights(positions);
    for (int64_t j = 0; j < positions; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < positions; ++i) sum += phi(double(query[i]) + key[j]);
      weights[j] = 1 / sum;
    }
    for (int64_t i = 0; i < positions; i += positions / 50) {
      for (int64_t v = 0; v < 2; ++v) {
        double exact = 0;
        for (int64_t j = 0; j < positions; ++j) exact += phi(double(query[i]) + key[j]) * weights[j] * value[v * positions + j];
        const double error = output[(b * 2 + v) * positions + i] - exact;
        difference += error * error;
        length += exact * exact;
      }
    }
  }
  const double error = std::sqrt(difference / length);
  std::printf("%s N%ld: %.1e%s\n", c.name, long(positions), error, error < 2e-7 ? "" : "  FAILED");
  if (!(error < 2e-7)) ++failures;
}

#ifndef INVATTN_CUDA_EMULATION
/// Median milliseconds of one run of `body`, by replays of a graph that holds `copies` of it.
template <class Body>
double time_of(const Body& body, cuda::Launch& launch, int copies) {
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  body();  // loads the module; errors show here
  CHECK_CUDA(cudaDeviceSynchronize());
  launch.stream = stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int c = 0; c < copies; ++c) body();
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t start, stop;
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  std::vector<float> times;
  for (int r = 0; r < 33; ++r) {
    CHECK_CUDA(cudaEventRecord(start, stream));
    CHECK_CUDA(cudaGraphLaunch(executable, stream));
    CHECK_CUDA(cudaEventRecord(stop, stream));
    CHECK_CUDA(cudaEventSynchronize(stop));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, start, stop));
    if (r >= 3) times.push_back(ms / copies);
  }
  launch.stream = nullptr;
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class T>
void time_case(const Case& c, int multiprocessors) {
  const auto inputs = draw<T>(c, 7);
  Buffers<T> buffers(c.problem, inputs, multiprocessors, c.said, c.plain, c.tf32);
  buffers.one_array = c.said;
  const int copies = c.problem.positions <= 512 ? 20 : 3;
  const double forward = time_of([&] { buffers.forward(); }, buffers.launch, copies);
  const double vjp = time_of([&] { c.said ? buffers.joint_vjp() : buffers.vjp(); }, buffers.launch, copies);
  const double jvp = time_of([&] { buffers.jvp(); }, buffers.launch, copies);
  const double hvp = time_of([&] { buffers.hvp(); }, buffers.launch, copies);
  std::printf("%-34s %9.4f %9.4f %9.4f %9.4f   workspace %.1f MB\n", c.name, forward, vjp, jvp, hvp, buffers.workspace.count / 1e6);
}
#endif

AttentionProblem problem(int64_t batch, int64_t depth, int64_t values, int64_t positions, Response response, Normalization normalization,
                         double mass = 1.0, Score score = Score::kProduct) {
  return {batch, depth, values, positions, score, response, normalization, mass};
}

constexpr auto kExp = Response::kExponential, kElu = Response::kEluPlusOne, kRelu = Response::kRelu;
constexpr Normalization kNormalizations[] = {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kCount,
                                             Normalization::kBalanced};

/// Each kernel once, on as few positions as it takes.
void test_tiny(unsigned seed, int multiprocessors) {
  compare<float>({problem(1, 3, 12, 40, kExp, Normalization::kAll), 1.0, "small"}, ++seed, multiprocessors);
  compare<float>({problem(1, 12, 12, 33, kElu, Normalization::kBalanced), 0.5, "deep"}, ++seed, multiprocessors);
  compare<double>({problem(1, 3, 12, 40, kRelu, Normalization::kAll), 1.0, "large"}, ++seed, multiprocessors);
  compare<float>({problem(1, 3, 12, 515, kExp, Normalization::kBalanced), 1.0, "large"}, ++seed, multiprocessors);
  compare<float>({problem(1, 12, 12, 515, kExp, Normalization::kBalanced), 0.6, "symmetric, said", 0, true, true}, ++seed, multiprocessors);
  compare<float>({problem(1, 3, 5, 515, kExp, Normalization::kColumns), 1000.0, "out of range"}, ++seed, multiprocessors);
  compare<float>({problem(1, 8, 24, 70, kExp, Normalization::kColumns), 0.5, "many values"}, ++seed, multiprocessors);
  compare<float>({problem(1, 11, 40, 70, kElu, Normalization::kBalanced), 0.5, "many values"}, ++seed, multiprocessors);
  compare<float>({problem(1, 32, 32, 70, kExp, Normalization::kBalanced), 0.3, "deep, matrix", 0, true, true}, ++seed, multiprocessors);
  check_tf32({problem(1, 8, 24, 70, kExp, Normalization::kColumns), 0.5, "tf32"}, ++seed, multiprocessors);
  check_tf32({problem(1, 32, 32, 70, kExp, Normalization::kBalanced), 0.3, "tf32", 0, true, true}, ++seed, multiprocessors);
  compare<float>({problem(1, 1, 5, 70, kElu, Normalization::kBalanced, 1.0, Score::kSum), 1.0, "sum"}, ++seed, multiprocessors);
  compare<float>({problem(1, 1, 3, 2100, kElu, Normalization::kAll, 1.0, Score::kSum), 1.0, "sum, large"}, ++seed, multiprocessors);
  check_merged(16500, ++seed, multiprocessors);
}

void test(bool small, unsigned seed, int multiprocessors) {
  for (const auto response : {kExp, kElu, kRelu}) {
    for (const auto normalization : kNormalizations) {
      compare<float>({problem(2, 3, 12, 70, response, normalization, 0.8), 1.0, "small"}, ++seed, multiprocessors);
      compare<double>({problem(1, 3, 12, 67, response, normalization, 0.8), 1.0, "small"}, ++seed, multiprocessors);
      compare<float>({problem(1, 12, 12, 33, response, normalization), 0.5, "deep"}, ++seed, multiprocessors);
      compare<float>({problem(1, 3, 12, 517, response, normalization), 1.0, "large"}, ++seed, multiprocessors);
      if (response == kExp) continue;  // the sum score with exp is separable: not covered
      compare<float>({problem(1, 1, 12, 70, response, normalization, 0.8, Score::kSum), 1.0, "sum"}, ++seed, multiprocessors);
      compare<double>({problem(2, 1, 5, 67, response, normalization, 0.8, Score::kSum), 1.0, "sum"}, ++seed, multiprocessors);
    }
  }
  for (const auto normalization : kNormalizations) {
    if (normalization == Normalization::kCount) continue;
    compare<float>({problem(1, 3, 12, 1, kExp, normalization), 1.0, "one position"}, ++seed, multiprocessors);
    compare<float>({problem(1, 2, 5, 31, kExp, normalization), 0.0, "equal scores"}, ++seed, multiprocessors);
    compare<float>({problem(1, 3, 12, 65, kExp, normalization), 1000.0, "huge scores"}, ++seed, multiprocessors);
    compare<float>({problem(1, 3, 12, 65, kElu, normalization), 1000.0, "huge scores"}, ++seed, multiprocessors);
    compare<float>({problem(1, 16, 16, 40, kElu, normalization), 0.4, "padded shape"}, ++seed, multiprocessors);
    compare<float>({problem(1, 1, 12, 65, kElu, normalization, 1.0, Score::kSum), 1000.0, "sum, huge scores"}, ++seed, multiprocessors);
    compare<float>({problem(1, 1, 3, 1, kElu, normalization, 1.0, Score::kSum), 1.0, "sum, one position"}, ++seed, multiprocessors);
  }
  // More depth and more values than one block of them.
  for (const auto normalization : {Normalization::kColumns, Normalization::kBalanced, Normalization::kAll}) {
    for (const int64_t positions : {40, 530}) {
      compare<float>({problem(1, 8, 35, positions, kElu, normalization), 0.5, "many values"}, ++seed, multiprocessors);
      compare<float>({problem(2, 27, 20, positions, kExp, normalization), 0.3, "deepest"}, ++seed, multiprocessors);
    }
    compare<double>({problem(2, 5, 35, 40, kRelu, normalization), 0.5, "many values"}, ++seed, multiprocessors);
    compare<float>({problem(2, 1, 35, 40, kElu, normalization, 1.0, Score::kSum), 1.0, "sum, many values"}, ++seed, multiprocessors);
  }
  // Sums in one sweep, without a reference: half of the tiles of a problem said to be symmetric, with both sides beside; scores whose sums
  // leave the range of float for every row, for some, and all to zero; and a map of three tiles, the last of one position.
  for (const auto normalization : {Normalization::kColumns, Normalization::kRows, Normalization::kBalanced, Normalization::kAll}) {
    for (const bool said : {false, true}) {
      const char* name = said ? "symmetric, said" : "symmetric";
      compare<float>({problem(2, 12, 12, 530, kExp, normalization), 0.6, name, 0, true, said}, ++seed, multiprocessors);
      compare<float>({problem(1, 3, 5, 641, kElu, normalization), 1.0, name, 0, true, said}, ++seed, multiprocessors);
      compare<float>({problem(1, 3, 12, 70, kExp, normalization), 1.0, name, 0, true, said}, ++seed, multiprocessors);
    }
    compare<double>({problem(1, 3, 12, 257, kExp, normalization), 1.0, "symmetric, said", 0, true, true}, ++seed, multiprocessors);
    compare<float>({problem(1, 3, 12, 530, kExp, normalization), 1000.0, "out of range"}, ++seed, multiprocessors);
    compare<float>({problem(1, 3, 12, 530, kExp, normalization), 5.0, "some out of range"}, ++seed, multiprocessors);
    compare<float>({problem(1, 3, 12, 530, kExp, normalization), 5.0, "some out of range", 0, true, true}, ++seed, multiprocessors);
    compare<float>({problem(1, 3, 12, 530, kExp, normalization), 0.3, "all to zero", 20.0}, ++seed, multiprocessors);
  }
  // Many values, on the matrix units and without them: whole and broken tiles of 8 values, of 8 others, of 16 owners, of a block; several
  // blocks of values; scores of all sizes; and values of one sign, whose sums show how they are rounded.
  for (const bool plain : {false, true}) {
    const char* name = plain ? "many values, plain" : "many values, matrix";
    const auto many = [&](int64_t batch, int64_t depth, int64_t values, int64_t positions, Response response, Normalization normalization,
                          double spread, double offset = 0, bool positive = false) {
      const Case c{
          problem(batch, depth, values, positions, response, normalization, 0.8), spread, name, offset, false, false, plain, positive};
      ++seed;
      if (only.empty() || only == name) compare(c, draw<float>(c, seed), multiprocessors);
    };
    for (const auto normalization : kNormalizations) {
      for (const auto response : {kExp, kElu, kRelu}) many(2, 8, 32, 67, response, normalization, 0.5);
      many(1, 7, 24, 133, kExp, normalization, 0.5);
      many(1, 16, 64, 70, kElu, normalization, 0.4);
      if (normalization == Normalization::kCount) continue;
      many(1, 8, 24, 1, kExp, normalization, 0.5);
      many(1, 2, 16, 65, kExp, normalization, 0.0);   // equal scores
      many(1, 8, 40, 65, kExp, normalization, 1000);  // huge scores
      many(1, 8, 40, 65, kElu, normalization, 1000);
      many(1, 3, 33, 65, kExp, normalization, 0.3, 20);  // every exponential becomes zero without its sum
    }
    for (const auto normalization : {Normalization::kColumns, Normalization::kBalanced}) {
      many(1, 8, 32, 641, kExp, normalization, 0.5, 0, true);
      many(2, 11, 20, 530, kElu, normalization, 0.4);
    }
  }
  // Deep scores, which are the matrix units' too: the same, with symmetric maps, and scores of all sizes.
  for (const auto normalization : kNormalizations) {
    const auto deep = [&](int64_t batch, int64_t depth, int64_t values, int64_t positions, Response response, double spread,
                          double offset = 0, bool symmetric = false) {
      compare<float>(
          {problem(batch, depth, values, positions, response, normalization, 0.8), spread, "deep, matrix", offset, symmetric, symmetric},
          ++seed, multiprocessors);
    };
    deep(2, 32, 32, 67, kExp, 0.3);
    if (normalization == Normalization::kBalanced) deep(1, 32, 32, 67, kElu, 0.3);
    if (normalization == Normalization::kBalanced) deep(1, 32, 32, 67, kRelu, 0.3);
    deep(1, 17, 40, 133, kExp, 0.4);
    deep(1, 32, 32, 70, kExp, 0.5, 0, true);
    deep(1, 20, 40, 133, kElu, 0.3, 0, true);
    if (normalization == Normalization::kBalanced) deep(1, 20, 40, 530, kExp, 0.3, 0, true);
    if (normalization == Normalization::kCount) continue;
    deep(1, 32, 24, 1, kExp, 0.3);
    deep(1, 20, 16, 65, kExp, 0);
    deep(1, 32, 32, 65, kExp, 1000);
    deep(1, 32, 32, 65, kElu, 1000);
    deep(1, 30, 33, 65, kExp, 0.3, 6);
  }
  for (const auto normalization : kNormalizations) {
    const auto rough = [&](int64_t batch, int64_t depth, int64_t values, int64_t positions, Response response, bool symmetric = false,
                           double spread = 0.5) {
      check_tf32({problem(batch, depth, values, positions, response, normalization, 0.8), spread, spread < 1 ? "tf32" : "tf32, one score",
                  0, symmetric, symmetric},
                 ++seed, multiprocessors);
    };
    rough(2, 8, 32, 67, kExp);
    if (normalization != Normalization::kCount) rough(1, 8, 24, 65, kExp, false, 3);
    rough(1, 3, 16, 133, kElu);
    rough(1, 16, 40, 70, kRelu);
    rough(1, 32, 32, 70, kExp, true, 0.3);
    if (normalization == Normalization::kBalanced) rough(1, 20, 40, 530, kExp, true, 0.3);
  }
  check_isolation<float>({problem(2, 8, 32, 70, kExp, Normalization::kBalanced), 0.5, "NaN, many values"}, ++seed, multiprocessors);
  check_isolation<float>({problem(2, 32, 32, 70, kExp, Normalization::kBalanced), 0.3, "NaN, deep"}, ++seed, multiprocessors);
  check_isolation<float>(
      {problem(2, 8, 32, 70, kExp, Normalization::kColumns), 0.5, "NaN, tf32", 0, false, false, false, false, /*tf32=*/true}, ++seed,
      multiprocessors);
  check_idle({problem(2, 32, 32, 70, kExp, Normalization::kBalanced), 0.3, "idle, deep"}, ++seed, multiprocessors);
  check_idle({problem(2, 8, 32, 70, kExp, Normalization::kBalanced), 0.5, "idle, many values"}, ++seed, multiprocessors);
  check_isolation<float>({problem(2, 3, 12, 530, kExp, Normalization::kBalanced), 1.0, "NaN, one sweep"}, ++seed, multiprocessors);
  compare<float>({problem(1, 8, 32, 530, kExp, Normalization::kBalanced), 0.5, "many values"}, ++seed, multiprocessors);
  check_isolation<float>({problem(2, 3, 12, 40, kElu, Normalization::kColumns), 1.0, "NaN, small"}, ++seed, multiprocessors);
  check_isolation<float>({problem(2, 3, 12, 530, kExp, Normalization::kAll), 1.0, "NaN, large"}, ++seed, multiprocessors);
  check_isolation<float>({problem(2, 1, 12, 40, kElu, Normalization::kBalanced, 1.0, Score::kSum), 1.0, "NaN, sum"}, ++seed,
                         multiprocessors);
  check_isolation<float>({problem(2, 1, 3, 2300, kElu, Normalization::kColumns, 1.0, Score::kSum), 1.0, "NaN, sum, large"}, ++seed,
                         multiprocessors);
  check_idle({problem(2, 3, 12, 40, kExp, Normalization::kBalanced), 1.0, "idle, small"}, ++seed, multiprocessors);
  check_idle({problem(2, 3, 12, 530, kExp, Normalization::kAll), 1.0, "idle, large"}, ++seed, multiprocessors);
  check_idle({problem(2, 1, 3, 40, kElu, Normalization::kAll, 1.0, Score::kSum), 1.0, "idle, sum"}, ++seed, multiprocessors);
  check_idle({problem(2, 1, 3, 2300, kElu, Normalization::kAll, 1.0, Score::kSum), 1.0, "idle, sum, large"}, ++seed, multiprocessors);
  compare<float>({problem(1, 1, 5, 2300, kElu, Normalization::kBalanced, 1.0, Score::kSum), 1.0, "sum, large"}, ++seed, multiprocessors);
  // Middling maps are a block's or all multiprocessors', as many as there are.
  for (const int among : {1, 1000}) {
    for (const auto normalization : kNormalizations) {
      compare<float>({problem(2, 1, 5, 257, kElu, normalization, 0.8, Score::kSum), 1.0, "sum, middling"}, ++seed, among);
    }
    compare<float>({problem(1, 1, 3, 1100, kElu, Normalization::kColumns, 1.0, Score::kSum), 1.0, "sum, middling"}, ++seed, among);
    compare<double>({problem(1, 1, 12, 300, kRelu, Normalization::kBalanced, 1.0, Score::kSum), 1.0, "sum, middling"}, ++seed, among);
    check_isolation<float>({problem(2, 1, 3, 300, kElu, Normalization::kColumns, 1.0, Score::kSum), 1.0, "sum, middling"}, ++seed, among);
    check_idle({problem(2, 1, 3, 300, kElu, Normalization::kAll, 1.0, Score::kSum), 1.0, "sum, middling"}, ++seed, among);
  }
  check_merged(2100, ++seed, multiprocessors);
  if (!small) {
    compare_table<float>(multiprocessors);
    compare_table<double>(multiprocessors);
    check_standard(multiprocessors);
    check_merged(17000, ++seed, multiprocessors);
    for (const auto normalization : kNormalizations) {
      compare<float>({problem(3, 3, 12, 256, kExp, normalization), 1.0, "16x16"}, ++seed, multiprocessors);
      compare<float>({problem(1, 12, 12, 1201, kElu, normalization), 0.5, "large"}, ++seed, multiprocessors);
      compare<double>({problem(1, 3, 12, 700, kExp, normalization), 1.0, "large"}, ++seed, multiprocessors);
      compare<float>({problem(1, 1, 12, 2100, kElu, normalization, 1.0, Score::kSum), 1.0, "sum, large"}, ++seed, multiprocessors);
    }
  }
}

#ifndef INVATTN_CUDA_EMULATION
void time(int multiprocessors) {
  std::printf("\n%-34s %9s %9s %9s %9s   (ms, median of 30 graph replays)\n", "case", "forward", "vjp", "jvp", "hvp");
  const auto both = [&](int64_t batch, int64_t positions, const char* size) {
    const struct {
      const char* kind;
      int64_t depth;
      Response response;
      Score score;
    } kinds[] = {{"gaussian", 12, kExp, Score::kProduct},
                 {"embedded", 3, kExp, Score::kProduct},
                 {"dot", 3, kElu, Score::kProduct},
                 {"concat", 1, kElu, Score::kSum}};
    for (const auto& kind : kinds)
      for (const auto normalization : {Normalization::kColumns, Normalization::kBalanced}) {
        const std::string name =
            std::string(size) + " " + kind.kind + (normalization == Normalization::kColumns ? " columns" : " balanced");
        const bool symmetric = kind.depth == 12;  // gaussian
        time_case<float>({problem(batch, kind.depth, 12, positions, kind.response, normalization, 1.0, kind.score), 0.5, name.c_str(), 0,
                          symmetric, symmetric},
                         multiprocessors);
      }
  };
  for (const StandardShape& shape : {kSmallStandardShape, kLargeStandardShape, kGrowthShapes.back()}) {
    both(shape.batch, shape.positions(), (std::to_string(shape.batch) + "x" + std::to_string(shape.positions())).c_str());
  }
  // The sum score by one block a sample, and by all multiprocessors.
  for (const int64_t batch : {6, 64}) {
    for (const int64_t positions : {300, 484, 1024, 1936}) {
      for (const bool one : {true, false}) {
        const std::string name = std::to_string(batch) + "x" + std::to_string(positions) + " V32 concat" + (one ? " one block" : " many");
        time_case<float>({problem(batch, 1, 32, positions, kElu, Normalization::kColumns, 1.0, Score::kSum), 0.5, name.c_str()},
                         one ? 1 : 1000);
      }
    }
  }
  time_case<float>({problem(6, 1, 32, 7744, kElu, Normalization::kColumns, 1.0, Score::kSum), 0.5, "6x7744 V32 concat"}, multiprocessors);
  // Many values: on the matrix units, in 11 digits, and without them.
  const auto both_ways = [&](int64_t batch, int64_t depth, int64_t values, int64_t positions, Response response,
                             Normalization normalization, bool symmetric = false) {
    for (const char* way : {" matrix", " tf32", " plain"}) {
      const bool plain = std::string(way) == " plain", tf32 = std::string(way) == " tf32";
      const std::string name = std::to_string(batch) + "x" + std::to_string(positions) + " D" + std::to_string(depth) + " V" +
                               std::to_string(values) + (response == kExp ? " exp" : " elu+1") +
                               (normalization == Normalization::kColumns ? " columns" : " balanced") + way;
      time_case<float>({problem(batch, depth, values, positions, response, normalization), 0.3, name.c_str(), 0, symmetric, symmetric,
                        plain, false, tf32},
                       multiprocessors);
    }
  };
  both_ways(1, 12, 12, kLargeStandardShape.positions(), kExp, Normalization::kBalanced, true);
  both_ways(1, 12, 12, kLargeStandardShape.positions(), kElu, Normalization::kColumns);
  both_ways(1, 8, 32, 7744, kExp, Normalization::kColumns);
  both_ways(1, 8, 32, 7744, kExp, Normalization::kBalanced);
  both_ways(1, 8, 32, 7744, kElu, Normalization::kColumns);
  both_ways(6, 8, 32, 7744, kExp, Normalization::kColumns);
  both_ways(6, 8, 32, 1936, kExp, Normalization::kColumns);
  both_ways(6, 32, 32, 7744, kExp, Normalization::kColumns, true);
  both_ways(6, 32, 32, 7744, kExp, Normalization::kBalanced, true);
  both_ways(6, 32, 32, 1936, kExp, Normalization::kColumns, true);
  both_ways(6, 32, 32, 484, kExp, Normalization::kColumns, true);
  both_ways(1, 8, 16, 7744, kExp, Normalization::kColumns);
  both_ways(1, 3, 16, 7744, kExp, Normalization::kColumns);
  both_ways(1, 8, 64, 7744, kExp, Normalization::kColumns);
  both_ways(1, 16, 64, 7744, kExp, Normalization::kBalanced);
  both_ways(6, 16, 64, 1936, kExp, Normalization::kColumns);
  both_ways(6, 8, 32, 484, kExp, Normalization::kColumns);
  both_ways(64, 8, 32, 256, kExp, Normalization::kColumns);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  bool small = false, tiny = false, timing = false;
  unsigned seed = 1;
  for (int a = 1; a < argc; ++a) {
    small = small || std::string(argv[a]) == "--small";
    tiny = tiny || std::string(argv[a]) == "--tiny";
    timing = timing || std::string(argv[a]) == "--only-time";
    if (std::string(argv[a]) == "--only" && a + 1 < argc) only = argv[a + 1];
    if (std::string(argv[a]) == "--seed" && a + 1 < argc) seed = static_cast<unsigned>(std::stoul(argv[a + 1])) * 1000 + 1;
  }
  int multiprocessors = 4;
#ifndef INVATTN_CUDA_EMULATION
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  multiprocessors = properties.multiProcessorCount;
  std::printf("%s, %d multiprocessors\n", properties.name, multiprocessors);
  if (timing) {
    time(multiprocessors);
    return 0;
  }
#endif
  if (tiny) {
    test_tiny(seed, multiprocessors);
  } else {
    test(small, seed, multiprocessors);
  }
  std::printf("%s: %d case(s) failed\n", failures == 0 ? "PASSED" : "FAILED", failures);
  return failures == 0 ? 0 : 1;
}

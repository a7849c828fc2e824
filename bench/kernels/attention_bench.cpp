// The CPU kernels beside the plain-ATen reference, in one process and on one thread: forward, vjp, jvp.
// Names read what/score/response/normalization/BxDxVxN/implementation. `--table [threads]` prints medians of alternating runs and their
// ratio instead.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>

#include "invattn/kernels/attention.h"
#include "invattn/ops/response_attention_reference.h"
#include "tests/kernels/attention_cases.h"

namespace invattn::bench {
namespace {

using kernels::testing::AttentionCase;

const kernels::ParallelFor kParallel = [](int64_t count, int64_t grain, const kernels::ParallelBody& body) {
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { body(begin, end); });
};

struct Work {
  AttentionCase c;
  kernels::testing::AttentionData<float> data{c};
  AttentionInputs inputs, tangents;
  at::Tensor cotangent;
  ResponseMap map;
  std::unique_ptr<AttentionLinearization> point;
  std::vector<float> output, result, query, key, value, rows, columns, total;

  explicit Work(const AttentionCase& one) : c(one) {
    const auto& p = c.problem;
    const auto wrap = [&](std::vector<float>& v, int64_t channels) { return at::from_blob(v.data(), {p.batch, channels, p.positions}); };
    inputs = {wrap(data.query, p.depth), wrap(data.key, p.depth), wrap(data.value, p.values)};
    tangents = {wrap(data.query_tangent, p.depth), wrap(data.key_tangent, p.depth), wrap(data.value_tangent, p.values)};
    cotangent = wrap(data.cotangent, p.values);
    map = {static_cast<Score>(p.score), static_cast<Response>(p.response), static_cast<Normalization>(p.normalization), p.mass};
    output = result = value = data.value;
    query = key = data.query;
    rows.resize(p.batch * kernels::cpu::kSumParts * p.positions);
    columns = rows;
    total.resize(p.batch * kernels::cpu::kSumParts);
    forward(true);
  }
  const AttentionLinearization& linearization() {
    if (!point) point = reference::linearize_response_attention(inputs, map);
    return *point;
  }
  kernels::AttentionInputs<float> raw() const { return {data.query.data(), data.key.data(), data.value.data()}; }
  kernels::AttentionSums<const float> sums() const { return {rows.data(), columns.data(), total.data()}; }

  void forward(bool keep) {
    const kernels::AttentionSums<float> sums =
        keep ? kernels::AttentionSums<float>{rows.data(), columns.data(), total.data()} : kernels::AttentionSums<float>{};
    kernels::cpu::attention_forward<float>(c.problem, raw(), sums, output.data(), kParallel);
  }
  void vjp() {
    kernels::cpu::attention_vjp<float>(c.problem, raw(), sums(), output.data(), data.cotangent.data(), query.data(), key.data(),
                                       value.data(), kParallel);
  }
  void jvp() {
    kernels::cpu::attention_jvp<float>(c.problem, raw(), sums(), output.data(),
                                       {data.query_tangent.data(), data.key_tangent.data(), data.value_tangent.data()}, result.data(),
                                       kParallel);
  }
  void run(const char* what, bool reference) {
    if (!std::strcmp(what, "forward")) {
      if (reference)
        reference::response_attention(inputs, map);
      else
        forward(false);
    } else if (!std::strcmp(what, "vjp")) {
      if (reference)
        linearization().vjp(cotangent);
      else
        vjp();
    } else {
      if (reference)
        linearization().jvp(tangents);
      else
        jvp();
    }
  }
};

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> result;
  const auto add = [&](Score score, Response response, int64_t b, int64_t d, int64_t n,
                       Normalization normalization = Normalization::kColumns) {
    result.push_back({{b, d, 12, n, score, response, normalization, 1.0}, kernels::testing::Data::kRandom});
  };
  for (const auto& shape : {kernels::kSmallStandardShape, kernels::kLargeStandardShape}) {
    const int64_t b = shape.batch, n = shape.positions();
    add(Score::kProduct, Response::kExponential, b, 3, n);
    add(Score::kProduct, Response::kExponential, b, 12, n);
    add(Score::kProduct, Response::kEluPlusOne, b, 3, n);
    add(Score::kSum, Response::kEluPlusOne, b, 1, n);
    add(Score::kProduct, Response::kExponential, b, 3, n, Normalization::kBalanced);
    add(Score::kProduct, Response::kExponential, b, 12, n, Normalization::kBalanced);
    add(Score::kProduct, Response::kElu, b, 3, n, Normalization::kRows);
    add(Score::kSum, Response::kElu, b, 1, n, Normalization::kRows);
  }
  return result;
}

/// Milliseconds: of the thread where there is one, so that a busy machine does not count, else of the wall clock.
double now(int threads) {
  if (threads > 1) return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * double(time.tv_sec) + 1e-6 * double(time.tv_nsec);
}

void table(int threads, const char* filter) {
  at::NoGradGuard no_grad;
  at::set_num_threads(threads);
  std::printf("%s, %d thread(s)\n%-8s %-60s %12s %12s %8s\n", kernels::cpu::instruction_set(), threads, "", "", "reference ms",
              "kernels ms", "ratio");
  for (const auto& c : cases()) {
    if (filter && c.name().find(filter) == std::string::npos) continue;
    Work work(c);
    for (const char* what : {"forward", "vjp", "jvp"}) {
      const auto time = [&](bool reference) {
        const double start = now(threads);
        work.run(what, reference);
        return now(threads) - start;
      };
      std::vector<double> slow, fast;
      time(false);
      const int repeats = c.problem.positions > 1000 ? 3 : 9;
      for (int r = 0; r < repeats; ++r) {
        slow.push_back(time(true));
        for (int k = 0; k < 3; ++k) fast.push_back(time(false));
      }
      const auto median = [](std::vector<double>& v) {
        std::sort(v.begin(), v.end());
        return v[v.size() / 2];
      };
      const double s = median(slow), f = median(fast);
      std::printf("%-8s %-60s %12.3f %12.3f %8.1f\n", what, c.name().c_str(), s, f, s / f);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace invattn::bench

int main(int argc, char** argv) {
  using namespace invattn::bench;
  if (argc > 1 && !std::strcmp(argv[1], "--table")) {
    table(argc > 2 ? std::atoi(argv[2]) : 1, argc > 3 ? argv[3] : nullptr);
    return 0;
  }
  at::set_num_threads(1);
  at::NoGradGuard no_grad;
  for (const auto& c : cases()) {
    for (const char* what : {"forward", "vjp", "jvp"}) {
      for (bool reference : {true, false}) {
        benchmark::RegisterBenchmark((std::string(what) + "/" + c.name() + (reference ? "/reference" : "/kernels")).c_str(),
                                     [c, what, reference](benchmark::State& state) {
                                       Work work(c);
                                       for (auto _ : state) work.run(what, reference);
                                     })
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}

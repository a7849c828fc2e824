// The CUDA solver against a float64 version of the same method on the host, by each of its ways of working, and its times. A plain program,
// so that it runs where there is no GoogleTest:
//   cuda_solver_test [--small|--tiny|--only-time] [--way 0|1|2] [--host-loop]
// --small: few positions (compute-sanitizer, emulation); --tiny: each kernel once (racecheck, which takes a thousand times as long);
// --host-loop: no WHILE nodes, which compute-sanitizer does not get through
// Exit code 0: every case within bounds.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/solver.h"
#include "tests/kernels/cuda_support.cuh"
#include "tests/kernels/solver_cases.h"

namespace {

using namespace invattn;
using namespace invattn::kernels;
using cuda::SolverPath;
using testing::Device;

int failures = 0, multiprocessors = 132, way = -1;  // way: one SolverPath only
bool host_loop = false;
const char* name(SolverPath path) {
  return path == SolverPath::kTwoBlocks ? "two blocks" : path == SolverPath::kOneBlock ? "one block" : "graph";
}

std::string number(SampleStatus status) { return std::to_string(static_cast<int>(status)); }

void expect(bool good, const std::string& what) {
  std::printf("%s%s\n", what.c_str(), good ? "" : "  FAILED");
  std::fflush(stdout);
  if (!good) ++failures;
}

// ---- The float64 version --------------------------------------------------------------------------------------------------------------

struct Branch {
  AttentionProblem problem;
  int64_t channels;
  std::vector<float> query, query_bias, key, key_bias, value, value_bias, output, output_bias;

  /// Weights drawn at random; `strength` scales the output map and with it the Lipschitz constant.
  /// symmetric: query and key have the same weights; said: and the problem says so.
  Branch(const AttentionProblem& p, int64_t channels_, double strength, unsigned seed, bool symmetric = false, bool said = true)
      : problem(p), channels(channels_) {
    problem.symmetric = symmetric && said;
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    const auto draw = [&](std::vector<float>& weight, std::vector<float>& bias, int64_t rows, int64_t columns, double scale) {
      weight.resize(rows * columns);
      for (auto& w : weight) w = static_cast<float>(scale * normal(engine) / std::sqrt(double(columns)));
      bias.resize(rows);
      for (auto& b : bias) b = static_cast<float>(0.1 * normal(engine));
    };
    draw(query, query_bias, p.depth, channels, 0.5);
    draw(key, key_bias, p.depth, channels, 0.5);
    draw(value, value_bias, p.values, channels, 1.0);
    draw(output, output_bias, channels, p.values, strength);
    if (symmetric) key = query, key_bias = query_bias;
  }

  static std::vector<double> map(const std::vector<float>& weight, const std::vector<float>& bias, const std::vector<double>& in,
                                 int64_t inputs, int64_t n) {
    const auto outputs = static_cast<int64_t>(bias.size());
    std::vector<double> out(outputs * n);
    for (int64_t r = 0; r < outputs; ++r)
      for (int64_t p = 0; p < n; ++p) {
        double sum = bias[r];
        for (int64_t c = 0; c < inputs; ++c) sum += double(weight[r * inputs + c]) * in[c * n + p];
        out[r * n + p] = sum;
      }
    return out;
  }

  /// g(x) of one sample (C, N), by loops over all pairs. Scores are moderate: no shifts.
  std::vector<double> operator()(const std::vector<double>& x) const {
    const int64_t n = problem.positions, depth = problem.depth, values = problem.values;
    const auto q = map(query, query_bias, x, channels, n), k = map(key, key_bias, x, channels, n),
               f = map(value, value_bias, x, channels, n);
    const auto phi = [&](int64_t i, int64_t j) {
      double s = 0;
      if (problem.score == Score::kSum) {
        s = q[i] + k[j];
      } else {
        for (int64_t d = 0; d < depth; ++d) s += q[d * n + i] * k[d * n + j];
      }
      if (problem.response == Response::kExponential) return std::exp(s);
      if (problem.response == Response::kRelu) return s > 0 ? s : 0.0;
      return s < 0 ? std::exp(s) : s + 1;
    };
    std::vector<double> row(n, 0), column(n, 0);
    double total = 0;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const double r = phi(i, j);
        row[i] += r;
        column[j] += r;
        total += r;
      }
    const auto inverse = [](double sum) { return sum > 0 ? 1 / sum : 0; };
    std::vector<double> left(n, 1), right(n, 1);
    for (int64_t i = 0; i < n; ++i) {
      switch (problem.normalization) {
        case Normalization::kColumns:
          right[i] = inverse(column[i]);
          break;
        case Normalization::kRows:
          left[i] = inverse(row[i]);
          break;
        case Normalization::kAll:
          right[i] = inverse(total);
          break;
        case Normalization::kCount:
          right[i] = 1.0 / static_cast<double>(n);
          break;
        case Normalization::kBalanced:
          left[i] = std::sqrt(inverse(row[i])), right[i] = std::sqrt(inverse(column[i]));
          break;
      }
    }
    std::vector<double> transposed(n * values), attended(values * n);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t v = 0; v < values; ++v) transposed[j * values + v] = f[v * n + j] * right[j];
    std::vector<double> sum(values);
    for (int64_t i = 0; i < n; ++i) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t j = 0; j < n; ++j) {
        const double r = phi(i, j);
        for (int64_t v = 0; v < values; ++v) sum[v] += r * transposed[j * values + v];
      }
      for (int64_t v = 0; v < values; ++v) attended[v * n + i] = problem.mass * left[i] * sum[v];
    }
    return map(output, output_bias, attended, values, n);
  }
};

double length(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x) sum += e * e;
  return std::sqrt(sum);
}

using HostSolution = testing::SampleOutcome<double>;

/// One sample, all in float64.
HostSolution host_solve(const Branch& branch, const std::vector<double>& y, const IterationRules& rules) {
  return testing::PlainSolver<double>(branch, y, rules).solve();
}

// ---- Cases ----------------------------------------------------------------------------------------------------------------------------

/// Workspaces are never freed: the solver keeps executable graphs by the workspace they were recorded for, and compute-sanitizer takes
/// accesses to memory that was allocated after the recording for errors, though the address is the same and the memory there.
class Workspaces {
 public:
  char* take(size_t bytes) {
    size_t size = 1 << 16;
    while (size < bytes) size *= 2;
    for (auto& [memory, taken] : all_) {
      if (taken || memory->count != size) continue;
      taken = true;
      CHECK_CUDA(cudaMemset(memory->data, 0xff, size));
      return memory->data;
    }
    all_.push_back({std::make_unique<Device<char>>(size), true});
    return all_.back().first->data;
  }
  void give_back(const char* data) {
    for (auto& [memory, taken] : all_) taken = taken && memory->data != data;
  }

 private:
  std::vector<std::pair<std::unique_ptr<Device<char>>, bool>> all_;  // and whether it is in use
};
Workspaces workspaces_of_all;

struct Solver {
  Device<float> query, query_bias, key, key_bias, value, value_bias, output, output_bias, y, x;
  Device<double> residual;
  Device<int32_t> iterations;
  Device<SampleStatus> status;
  std::vector<std::optional<cuda::SolverPlan>> plans;  // one for each way
  std::vector<char*> workspaces;
  cuda::Launch launch;

  Solver(const Branch& b, const std::vector<float>& y_, const IterationRules& o)
      : query(b.query),
        query_bias(b.query_bias),
        key(b.key),
        key_bias(b.key_bias),
        value(b.value),
        value_bias(b.value_bias),
        output(b.output),
        output_bias(b.output_bias),
        y(y_),
        x(y_.size()),
        residual(b.problem.batch),
        iterations(b.problem.batch),
        status(b.problem.batch) {
    launch.multiprocessors = multiprocessors;
    launch.host_loop = host_loop;
    for (const SolverPath path : cuda::kSolverPaths) {
      plans.push_back(cuda::plan_solve(path, b.problem, b.channels, o));
      workspaces.push_back(workspaces_of_all.take(plans.back() ? plans.back()->workspace_bytes : 0));
    }
    CHECK_CUDA(cudaDeviceSynchronize());  // what is recorded next is younger than the memory, in compute-sanitizer's view, too
  }
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;
  ~Solver() {
    for (const char* workspace : workspaces) workspaces_of_all.give_back(workspace);
  }
  void solve(SolverPath path) {
    launch.workspace = workspaces[static_cast<int>(path)];
    cuda::solve(*plans[static_cast<int>(path)],
                {query.data, query_bias.data, key.data, key_bias.data, value.data, value_bias.data, output.data, output_bias.data}, y.data,
                x.data, {residual.data, iterations.data, status.data}, launch);
    CHECK_CUDA(cudaGetLastError());
  }
};

struct Kind {
  const char* name;
  int64_t depth;
  Score score;
  Response response;
};
constexpr Kind kKinds[] = {{"gaussian", 12, Score::kProduct, Response::kExponential},
                           {"embedded", 3, Score::kProduct, Response::kExponential},
                           {"dot", 3, Score::kProduct, Response::kEluPlusOne},
                           {"concat", 1, Score::kSum, Response::kEluPlusOne},
                           {"relu", 3, Score::kProduct, Response::kRelu},
                           {"concat relu", 1, Score::kSum, Response::kRelu}};

AttentionProblem problem_of(const Kind& kind, int64_t batch, int64_t positions, Normalization normalization = Normalization::kColumns,
                            int64_t values = 12) {
  return {batch, kind.depth, values, positions, kind.score, kind.response, normalization, 1.0};
}

std::vector<float> draw(int64_t count, unsigned seed, double scale = 0.5) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<float> result(count);
  for (auto& e : result) e = static_cast<float>(scale * normal(engine));
  return result;
}

std::vector<double> sample_of(const std::vector<float>& all, int64_t sample, int64_t entries) {
  return {all.begin() + sample * entries, all.begin() + (sample + 1) * entries};
}

/// Solves by one way, twice, and compares with the host: status, iterations within `slack`, solution.
void compare(SolverPath path, const char* kind, const Branch& branch, const std::vector<float>& y, const IterationRules& options,
             int slack = 1, double bound = 2e-5) {
  const AttentionProblem& p = branch.problem;
  const int64_t entries = branch.channels * p.positions;
  char label[200];
  std::snprintf(label, sizeof label, "%-10s %-11s B%ld C%ld V%ld N%-4ld normalization %d memory %d: ", name(path), kind, long(p.batch),
                long(branch.channels), long(p.values), long(p.positions), int(p.normalization), int(options.memory));
  std::string line = label;
  if (!cuda::plan_solve(path, p, branch.channels, options)) return expect(false, line + "not covered");
  Solver solver(branch, y, options);
  solver.solve(path);
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto x = solver.x.host();
  const auto iterations = solver.iterations.host();
  const auto status = solver.status.host();
  const auto residual = solver.residual.host();
  bool ok = true;
  double worst = 0;
  for (int64_t s = 0; s < p.batch; ++s) {
    const auto host = host_solve(branch, sample_of(y, s, entries), options);
    ok = ok && status[s] == host.status && std::abs(iterations[s] - host.iterations) <= slack;
    line += std::to_string(iterations[s]) + "/" + std::to_string(host.iterations) + " status " + number(status[s]) + "/" +
            number(host.status) + ", ";
    if (host.status == SampleStatus::kConverged) ok = ok && residual[s] <= options.tolerance;
    if (host.status == SampleStatus::kConverged || (host.status == SampleStatus::kNotConverged && options.memory == 0)) {
      auto difference = host.x;
      for (int64_t e = 0; e < entries; ++e) difference[e] -= x[s * entries + e];
      const double error = length(difference) / length(host.x);
      worst = std::isfinite(error) ? std::max(worst, error) : error;
      ok = ok && error < bound;
    }
  }
  solver.solve(path);
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto again = solver.x.host();
  const bool same = std::memcmp(x.data(), again.data(), x.size() * sizeof(float)) == 0;
  char end[60];
  std::snprintf(end, sizeof end, "error %.1e%s", worst, same ? "" : " NOT REPEATABLE");
  expect(ok && same, line + end);
}

/// The same result from another problem's workspace (its executable graph serves both), and from a captured stream.
void test_reuse(SolverPath path, int64_t n) {
  const IterationRules options;
  const auto y = draw(12 * n, 14);
  const Branch branch(problem_of(kKinds[1], 1, n), 12, 0.35, 24), other(problem_of(kKinds[1], 1, n), 12, 0.35, 25);
  Solver solver(branch, y, options), borrower(other, draw(12 * n, 15), options), alone(other, draw(12 * n, 15), options);
  const auto same = [](const Solver& a, const Solver& b) {
    const auto left = a.x.host(), right = b.x.host();
    return std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0 && a.iterations.host() == b.iterations.host();
  };
  std::swap(borrower.workspaces, solver.workspaces);
  borrower.solve(path);
  CHECK_CUDA(cudaDeviceSynchronize());
  std::swap(borrower.workspaces, solver.workspaces);
  solver.solve(path);
  CHECK_CUDA(cudaDeviceSynchronize());
  std::swap(borrower.workspaces, solver.workspaces);
  borrower.solve(path);
  alone.solve(path);
  CHECK_CUDA(cudaDeviceSynchronize());
  expect(same(borrower, alone), std::string(name(path)) + ": a workspace used by two problems in turn");
  std::swap(borrower.workspaces, solver.workspaces);
#ifndef INVATTN_CUDA_EMULATION
  Solver host(branch, y, options);
  host.launch.host_loop = true;
  host.solve(path);
  CHECK_CUDA(cudaDeviceSynchronize());
  expect(same(host, solver), std::string(name(path)) + ": the loop run by the host");
  Solver captured(branch, y, options);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamCreate(&stream));
  captured.launch.stream = stream;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  captured.solve(path);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int run = 0; run < 2; ++run) {
    CHECK_CUDA(cudaGraphLaunch(executable, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    expect(same(captured, solver), std::string(name(path)) + ": captured into a graph, run " + std::to_string(run));
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
#endif
}

/// A plan takes the first path that there is room for, and where a sample fits two blocks it fits one.
void test_plans() {
  bool first = true, same = true, alone = true;
  for (const Kind& kind : kKinds) {
    for (int64_t n = 1; n <= 600; n += n < 40 ? 1 : 7) {
      for (const int64_t memory : {0, 6}) {
        IterationRules rules;
        rules.memory = memory;
        const auto by = [&](SolverPath path) { return cuda::plan_solve(path, problem_of(kind, 3, n), 12, rules); };
        const auto chosen = cuda::plan_solve(problem_of(kind, 3, n), 12, rules);
        const auto two = by(SolverPath::kTwoBlocks), one = by(SolverPath::kOneBlock), graph = by(SolverPath::kGraph);
        first = first && chosen && chosen->path == (two ? SolverPath::kTwoBlocks : one ? SolverPath::kOneBlock : SolverPath::kGraph);
        same = same && (!two || one);
        alone = alone && (n <= 512 || !one) && graph;
      }
    }
  }
  expect(first, "a plan takes the first path that there is room for");
  expect(same, "one block has room for what two have room for");
  expect(alone, "one launch does for up to 512 positions, a graph for any");
  IterationRules long_history;
  long_history.memory = 8;
  expect(!cuda::plan_solve(problem_of(kKinds[0], 1, 256), 12, long_history), "a history of 8 is not covered");
  expect(!cuda::plan_solve(problem_of(kKinds[0], 1, 256), 17, {}), "17 channels are not covered");
}

/// Each kernel once or twice, on as few positions as show its barriers.
void test_tiny() {
  const IterationRules anderson;
  for (const SolverPath path : cuda::kSolverPaths) {
    if (way >= 0 && static_cast<int>(path) != way) continue;
    const int64_t n = path == SolverPath::kGraph ? 40 : 140;  // more than a block handles at a time
    compare(path, kKinds[3].name, Branch(problem_of(kKinds[3], 1, n), 12, 0.35, 11), draw(12 * n, 3), anderson);
    compare(path, kKinds[1].name, Branch(problem_of(kKinds[1], 2, 33, Normalization::kAll), 12, 0.35, 11), draw(2 * 12 * 33, 3), anderson);
    const Branch symmetric(problem_of(kKinds[0], 1, n, Normalization::kBalanced), 12, 0.35, 27, true);
    compare(path, "gaussian, symmetric", symmetric, draw(12 * n, 17), anderson);
  }
}

void test(bool small) {
  IterationRules anderson, fixed_point;
  fixed_point.memory = 0;
  fixed_point.max_iterations = 500;
  fixed_point.patience = 50;
  for (const SolverPath path : cuda::kSolverPaths) {
    if (way >= 0 && static_cast<int>(path) != way) continue;
    const bool fused = path != SolverPath::kGraph;
    // Every kind and normalisation.
    for (const Kind& kind : kKinds) {
      for (const auto normalization :
           {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kBalanced, Normalization::kCount}) {
        if (normalization == Normalization::kCount && kind.response == Response::kExponential) continue;
        const Branch branch(problem_of(kind, 1, small ? 20 : 256, normalization), 12, normalization == Normalization::kCount ? 0.1 : 0.35,
                            11);
        compare(path, kind.name, branch, draw(12 * branch.problem.positions, 3), anderson);
      }
      const Branch branch(problem_of(kind, 2, small ? 33 : 100), 12, 0.35, 12);
      compare(path, kind.name, branch, draw(2 * 12 * branch.problem.positions, 4), fixed_point);
    }
    // Query and key with the same weights.
    for (const auto normalization : {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kBalanced}) {
      for (const int k : {0, 1, 2}) {
        const int64_t n = fused ? (small ? 40 : 256) : (small ? 130 : 600);
        for (const bool said : {false, true}) {
          const Branch branch(problem_of(kKinds[k], 1, n, normalization), 12, 0.35, 27, true, said);
          compare(path, (std::string(kKinds[k].name) + (said ? ", said" : ", unsaid")).c_str(), branch, draw(12 * n, 17), anderson);
        }
      }
    }
    if (fused) {
      const Branch branch(problem_of(kKinds[2], 2, small ? 140 : 300, Normalization::kBalanced), 12, 0.35, 28, true);
      compare(path, "dot, symmetric", branch, draw(2 * 12 * branch.problem.positions, 18), anderson);
    }
    // Sizes: fewer channels than compiled, one position, more than a block's tile.
    for (const int64_t n :
         {int64_t{1}, int64_t{2}, int64_t{31}, small ? int64_t{140} : int64_t{300}, small ? int64_t{260} : int64_t{512}}) {
      const Branch branch(problem_of(kKinds[2], 2, n, Normalization::kBalanced, 5), 7, 0.35, 13);
      compare(path, kKinds[2].name, branch, draw(2 * 7 * n, 5), anderson);
    }
    if (fused) {  // every row and column of the blocks in use
      const int64_t n = path == SolverPath::kTwoBlocks ? 256 : 128;
      compare(path, "all rows", Branch(problem_of(kKinds[0], 1, n), 12, 0.6, 23), draw(12 * n, 13), anderson);
    } else {
      for (const Kind& kind : kKinds) {
        const Branch branch(problem_of(kind, 2, small ? 520 : 700), 12, 0.35, 14);
        if (!small || kind.score == Score::kSum) compare(path, kind.name, branch, draw(2 * 12 * branch.problem.positions, 6), anderson);
      }
      const Branch wide(problem_of(kKinds[1], 1, small ? 40 : 300, Normalization::kColumns, 16), 16, 0.35, 15);
      compare(path, "16 channels", wide, draw(16 * wide.problem.positions, 6), anderson);
    }
    const int64_t n = small ? 20 : 200;
    // Options other than the defaults.
    IterationRules options = anderson;
    options.memory = 3;
    options.mixing = 0.7;
    compare(path, "mixing 0.7", Branch(problem_of(kKinds[1], 1, n), 12, 0.6, 16), draw(12 * n, 7), options);
    // Accelerated steps that are taken back: the first strength at which the host takes some back and converges.
    for (double strength = 1; strength < 20; strength *= 1.1) {
      const Branch branch(problem_of(kKinds[1], 1, 20), 12, strength, 26);
      const auto y = draw(12 * 20, 16);
      const auto host = host_solve(branch, sample_of(y, 0, 12 * 20), anderson);
      if (host.status != SampleStatus::kConverged || host.rejections == 0) continue;
      compare(path, "rejections", branch, y, anderson, 2 + host.iterations / 4);
      break;
    }
    // Statuses: too few iterations, an expanding branch, a tolerance below what float can reach.
    options = fixed_point;
    options.max_iterations = 3;
    compare(path, "3 iterations", Branch(problem_of(kKinds[1], 2, n), 12, 0.6, 17), draw(2 * 12 * n, 8), options, 0);
    options.max_iterations = 0;
    compare(path, "0 iterations", Branch(problem_of(kKinds[1], 1, n), 12, 0.6, 17), draw(12 * n, 8), options, 0);
    compare(path, "expanding", Branch(problem_of(kKinds[4], 1, n, Normalization::kCount), 12, 40.0, 18), draw(12 * n, 9, 3.0), fixed_point);
    {
      options = anderson;
      options.tolerance = 1e-12;
      const Branch branch(problem_of(kKinds[1], 1, n), 12, 0.35, 19);
      Solver solver(branch, draw(12 * n, 10), options);
      solver.solve(path);
      CHECK_CUDA(cudaDeviceSynchronize());
      const SampleStatus status = solver.status.host()[0];
      const double residual = solver.residual.host()[0];
      char line[120];
      std::snprintf(line, sizeof line, "%-10s tolerance 1e-12: status %d, residual %.1e", name(path), int(status), residual);
      expect(status == SampleStatus::kStagnated && residual < 3e-7, line);
    }
    {  // What is not finite in one sample leaves the others alone, bit by bit.
      const Branch branch(problem_of(kKinds[0], 3, n), 12, 0.35, 20);
      auto y = draw(3 * 12 * n, 11);
      Solver whole(branch, y, anderson);
      y[12 * n + 5] = std::numeric_limits<float>::quiet_NaN();
      Solver broken(branch, y, anderson);
      whole.solve(path);
      broken.solve(path);
      CHECK_CUDA(cudaDeviceSynchronize());
      const auto x = whole.x.host(), other = broken.x.host();
      const auto status = broken.status.host();
      const bool same = std::memcmp(x.data(), other.data(), 12 * n * 4) == 0 && std::memcmp(&x[24 * n], &other[24 * n], 12 * n * 4) == 0;
      expect(same && status[0] == SampleStatus::kConverged && status[1] == SampleStatus::kNotFinite &&
                 status[2] == SampleStatus::kConverged && std::isnan(other[12 * n + 5]),
             std::string(name(path)) + ": one sample with NaN, statuses " + number(status[0]) + " " + number(status[1]) + " " +
                 number(status[2]));
    }
    test_reuse(path, n);
    Solver none(Branch(problem_of(kKinds[0], 0, n), 12, 0.35, 21), {}, anderson);
    none.solve(path);  // has to return
  }
  test_plans();
  if (small) return;
  for (int k = 0; k < 4; ++k) {  // one large map: against a known x
    const int64_t n = 9701;
    const Branch branch(problem_of(kKinds[k], 1, n), 12, 0.35, 22);
    const auto known = draw(12 * n, 12);
    const auto g = branch(sample_of(known, 0, 12 * n));
    std::vector<float> y(known.size());
    for (size_t e = 0; e < y.size(); ++e) y[e] = static_cast<float>(known[e] + g[e]);
    Solver solver(branch, y, anderson);
    solver.solve(SolverPath::kGraph);
    CHECK_CUDA(cudaDeviceSynchronize());
    const auto x = solver.x.host();
    auto difference = sample_of(known, 0, 12 * n);
    for (size_t e = 0; e < difference.size(); ++e) difference[e] -= x[e];
    const double error = length(difference) / length(sample_of(known, 0, 12 * n));
    char line[120];
    std::snprintf(line, sizeof line, "kernels %s N9701: %d iterations, status %d, error %.1e", kKinds[k].name, solver.iterations.host()[0],
                  int(solver.status.host()[0]), error);
    expect(solver.status.host()[0] == SampleStatus::kConverged && error < 2e-5, line);
  }
}

#ifndef INVATTN_CUDA_EMULATION
/// Median milliseconds of one call, as a caller sees it on the stream.
template <class Body>
double time_of(const Body& body, cuda::Launch& launch) {
  cudaStream_t stream;
  cudaEvent_t start, stop;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  launch.stream = stream;
  std::vector<float> times;
  for (int r = 0; r < 33; ++r) {
    CHECK_CUDA(cudaEventRecord(start, stream));
    body();
    CHECK_CUDA(cudaEventRecord(stop, stream));
    CHECK_CUDA(cudaEventSynchronize(stop));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, start, stop));
    if (r >= 3) times.push_back(ms);
  }
  launch.stream = nullptr;
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// The strength with which the host needs 16 iterations at N = 256: as many as trained blocks of constant 0.88 need.
double trained_strength(const Kind& kind) {
  double low = 0.3, high = 8;
  IterationRules options;
  options.max_iterations = 20;
  for (int step = 0; step < 12; ++step) {
    const double middle = std::sqrt(low * high);
    const Branch branch(problem_of(kind, 1, 256), 12, middle, 5);
    const auto host = host_solve(branch, sample_of(draw(12 * 256, 5), 0, 12 * 256), options);
    if (host.status == SampleStatus::kConverged && host.iterations == 16) return middle;
    (host.status == SampleStatus::kConverged && host.iterations < 16 ? low : high) = middle;
  }
  return low;
}

void time() {
  std::printf(
      "\nsolver to 1e-6: ms, iterations at most, us per evaluation (goals: 64x12x16x16 0.25 ms; 1x12x109x89 2.5, 2.5, 2.5, 1.0 ms)\n");
  for (const int64_t n : {256, 9701}) {
    for (const bool trained : {false, true}) {
      const struct {
        int kind;
        Normalization normalization;
        bool symmetric;
        const char* name;
      } timed[] = {{0, Normalization::kColumns, false, "gaussian"},
                   {1, Normalization::kColumns, false, "embedded"},
                   {2, Normalization::kColumns, false, "dot"},
                   {3, Normalization::kColumns, false, "concat"},
                   {0, Normalization::kBalanced, true, "gaussian, balanced"},
                   {1, Normalization::kBalanced, false, "embedded, balanced"}};
      for (const auto& [k, normalization, symmetric, kind_name] : timed) {
        if (trained && normalization == Normalization::kBalanced) continue;
        const double strength = trained ? trained_strength(kKinds[k]) : 0.5;
        for (const SolverPath path : cuda::kSolverPaths) {
          if (way >= 0 && static_cast<int>(path) != way) continue;
          for (const int64_t memory : {6, 0}) {
            if (memory == 0 && (trained || path == SolverPath::kOneBlock)) continue;
            const int64_t batch = n == 256 ? 64 : 1;
            const Branch branch(problem_of(kKinds[k], batch, n, normalization), 12, strength, 5, symmetric);
            IterationRules options;
            options.memory = memory;
            if (!cuda::plan_solve(path, branch.problem, 12, options)) continue;
            Solver solver(branch, draw(batch * 12 * n, 5), options);
            const double ms = time_of([&] { solver.solve(path); }, solver.launch);
            const auto iterations = solver.iterations.host();
            const auto status = solver.status.host();
            const int most = *std::max_element(iterations.begin(), iterations.end());
            std::printf("%2ldx12x%-5ld %-18s %-14s %-11s %-11s %8.4f ms, %2d iterations, %7.2f us each, %ld of %ld converged\n",
                        long(batch), long(n), kind_name, trained ? "trained-like" : "strength 0.5", name(path),
                        memory ? "anderson" : "fixed point", ms, most, 1000 * ms / (most + 1),
                        long(std::count(status.begin(), status.end(), SampleStatus::kConverged)), long(batch));
            std::fflush(stdout);
          }
        }
      }
    }
  }
}
#endif

}  // namespace

int main(int argc, char** argv) {
  bool small = false, tiny = false, timing = false;
  for (int a = 1; a < argc; ++a) {
    small = small || std::strcmp(argv[a], "--small") == 0;
    if (std::strcmp(argv[a], "--way") == 0 && a + 1 < argc) way = std::atoi(argv[a + 1]);
    tiny = tiny || std::strcmp(argv[a], "--tiny") == 0;
    host_loop = host_loop || std::strcmp(argv[a], "--host-loop") == 0;
    timing = timing || std::strcmp(argv[a], "--only-time") == 0;
  }
#ifndef INVATTN_CUDA_EMULATION
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  CHECK_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  if (timing) {
    time();
    return 0;
  }
#endif
  if (tiny) {
    test_tiny();
  } else {
    test(small);
  }
  std::printf("%s: %d case(s) failed\n", failures == 0 ? "PASSED" : "FAILED", failures);
  return failures == 0 ? 0 : 1;
}

// How large maps are split; large_attention.cuh has the kernels.

#include "invattn/kernels/cuda/large_attention.h"

#include <algorithm>
#include <limits>

#include "invattn/kernels/cuda/matrix_attention.h"

namespace invattn::kernels::cuda {

int64_t most_parts(const AttentionProblem& problem) {
  constexpr int64_t kMostParts = 16;
  return std::clamp<int64_t>(problem.positions / 128, 1, kMostParts);
}

unsigned parts_of(const AttentionProblem& problem, int64_t blocks, int64_t resident, int share) {
  const int64_t most = std::max<int64_t>(1, most_parts(problem) / share);
  int64_t best = 1;
  double least = std::numeric_limits<double>::max();
  for (int64_t parts = 1; parts <= most; ++parts) {
    const double rounds = static_cast<double>((blocks * parts + resident - 1) / resident) / static_cast<double>(parts);
    const double cost = rounds * (1 + 0.005 * static_cast<double>(parts));  // a part more: its sums written and read again
    if (cost < least) {
      least = cost;
      best = parts;
    }
  }
  return static_cast<unsigned>(best);
}

template <class T>
int64_t large_partials(const AttentionProblem& problem) {
  int64_t sums = 0;  // accumulators of the compiled shape
  dispatch_sizes<T>(problem, [&]<int kDepth, int kValues>() { sums = std::max(kDepth, kValues); });
  if (problem.values > sums) sums = std::max<int64_t>(sums, kMatrixValues / kMatrixShare);
  return problem.batch * most_parts(problem) * sums * problem.positions;
}

template <class T>
void large_attention(LargeWork work, const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch) {
  dispatch_response(problem, [&]<Response kResponse>() { run_large<T, kResponse>(work, problem, task, partials, launch); });
}

#define INVATTN_INSTANTIATE(T)                                 \
  template int64_t large_partials<T>(const AttentionProblem&); \
  template void large_attention<T>(LargeWork, const AttentionProblem&, const Task<T>&, T*, const Launch&);
INVATTN_INSTANTIATE(float)
INVATTN_INSTANTIATE(double)
#undef INVATTN_INSTANTIATE

}  // namespace invattn::kernels::cuda

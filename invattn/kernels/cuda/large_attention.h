#pragma once

#include "invattn/kernels/cuda/stages.cuh"

namespace invattn::kernels::cuda {

enum class LargeWork { kForward, kVjp, kJvp, kHvp };

/// Any map, a launch or two per stage.
template <class T>
void large_attention(LargeWork work, const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch);
/// The same for one response, each in a source of its own.
template <class T, Response kResponse>
void run_large(LargeWork work, const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch);

/// Into how many parts a pass splits the others at most, none much smaller than a tile.
int64_t most_parts(const AttentionProblem& problem);
/// Into how many parts a pass splits the others: those for which the rounds of blocks are fullest, of which `resident` run at once; at most
/// the most there are, divided by `share`.
unsigned parts_of(const AttentionProblem& problem, int64_t blocks, int64_t resident, int share = 1);
/// Numbers in `partials`.
template <class T>
int64_t large_partials(const AttentionProblem& problem);

}  // namespace invattn::kernels::cuda

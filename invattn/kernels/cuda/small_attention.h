#pragma once

#include "invattn/kernels/cuda/stages.cuh"

namespace invattn::kernels::cuda {

/// Maps that one block per sample works on, in one launch.
inline bool is_small(const AttentionProblem& problem) { return problem.positions <= 512 && problem.depth <= 12; }

void small_forward(const AttentionProblem& problem, const Task<float>& task, const Launch& launch);
void small_vjp(const AttentionProblem& problem, const Task<float>& task, const Launch& launch);
void small_jvp(const AttentionProblem& problem, const Task<float>& task, const Launch& launch);

// Any map, a launch or two per stage.
template <class T>
void large_forward(const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch);
template <class T>
void large_vjp(const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch);
template <class T>
void large_jvp(const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch);
template <class T>
void large_hvp(const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch);
/// Into how many parts a pass splits the others: those for which the rounds of blocks are fullest, of which `resident` run at once; at most
/// the most there are, divided by `share`.
unsigned parts_of(const AttentionProblem& problem, int64_t blocks, int64_t resident, int share = 1);
/// Numbers in `partials`.
template <class T>
int64_t large_partials(const AttentionProblem& problem, int multiprocessors);

}  // namespace invattn::kernels::cuda

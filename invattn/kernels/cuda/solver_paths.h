#pragma once

#include "invattn/kernels/cuda/solver.h"

// What the paths of solver.h are made of. A plan comes with its path, problem, channels and rules; false: not covered.

namespace invattn::kernels::cuda {

// sample_solver.cu: kTwoBlocks and kOneBlock
bool plan_samples(SolverPlan& plan);
void solve_samples(const SolverPlan& plan, const BranchWeights<float>& weights, const float* y, float* x, const SolverReport& report,
                   const Launch& launch);

// graph_solver.cu: kGraph
bool plan_graph(SolverPlan& plan);
void solve_graph(const SolverPlan& plan, const BranchWeights<float>& weights, const float* y, float* x, const SolverReport& report,
                 const Launch& launch);

}  // namespace invattn::kernels::cuda

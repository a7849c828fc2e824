#include "invattn/kernels/cuda/large_attention.cuh"

namespace invattn::kernels::cuda {

template void run_large<float, Response::kEluPlusOne>(LargeWork, const AttentionProblem&, const Task<float>&, float*, const Launch&);
template void run_large<double, Response::kEluPlusOne>(LargeWork, const AttentionProblem&, const Task<double>&, double*, const Launch&);

}  // namespace invattn::kernels::cuda

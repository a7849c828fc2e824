#include "invattn/kernels/cuda/large_attention.cuh"

namespace invattn::kernels::cuda {

template void run_large<float, Response::kExponential>(LargeWork, const AttentionProblem&, const Task<float>&, float*, const Launch&);
template void run_large<double, Response::kExponential>(LargeWork, const AttentionProblem&, const Task<double>&, double*, const Launch&);

}  // namespace invattn::kernels::cuda

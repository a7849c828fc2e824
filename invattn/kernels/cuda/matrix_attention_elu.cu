#include "invattn/kernels/cuda/matrix_attention.cuh"

namespace invattn::kernels::cuda {

template unsigned matrix_pass_of<Response::kEluPlusOne>(Stage, const AttentionProblem&, const Task<float>&, float*, const Launch&);
template void matrix_sums_of<Response::kEluPlusOne>(Stage, const AttentionProblem&, const Task<float>&, float*, bool, const Launch&);

}  // namespace invattn::kernels::cuda

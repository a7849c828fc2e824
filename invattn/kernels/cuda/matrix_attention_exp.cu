#include "invattn/kernels/cuda/matrix_attention.cuh"

namespace invattn::kernels::cuda {

bool device_has_matrix_units() { return has_matrix_units(matrix_kernel<MatrixProduct<Means<8, false, false>, 4, Response::kExponential>>); }

template unsigned matrix_pass_of<Response::kExponential>(Stage, const AttentionProblem&, const Task<float>&, float*, const Launch&);
template void matrix_sums_of<Response::kExponential>(Stage, const AttentionProblem&, const Task<float>&, float*, bool, const Launch&);

}  // namespace invattn::kernels::cuda

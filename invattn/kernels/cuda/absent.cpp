// The CUDA kernels of a build without a CUDA toolkit: they cover nothing, so that nobody calls them.

#include <stdexcept>

#include "invattn/kernels/cuda/attention.h"
#include "invattn/kernels/cuda/channel_affine.h"
#include "invattn/kernels/cuda/composed_score.h"
#include "invattn/kernels/cuda/convolution.h"
#include "invattn/kernels/cuda/device.h"
#include "invattn/kernels/cuda/solver.h"
#include "invattn/kernels/cuda/spectral_norm.h"
#include "invattn/kernels/cuda/swish.h"

namespace invattn::kernels::cuda {
namespace {

[[noreturn]] void absent() { throw std::logic_error("[kernels] this build has no CUDA kernels; covers() said so."); }

}  // namespace

int multiprocessors() { absent(); }
const char* take_error() { return nullptr; }
bool covers(const AttentionProblem&) { return false; }
bool covers(const ChannelAffineProblem&) { return false; }
void channel_affine(const ChannelAffineProblem&, const float*, const float*, const float*, float*, float*, void*) { absent(); }
size_t channel_affine_workspace_bytes(const ChannelAffineProblem&) { absent(); }
void channel_affine_gradient(const ChannelAffineProblem&, const float*, const float*, const float*, const float*, int64_t, float*, float*,
                             float*, void*, void*) {
  absent();
}
bool has_compose_score() { return false; }
void compose_score(const float*, const ScoreSide&, const ScoreSide&, int64_t, int64_t, void*) { absent(); }
bool covers(const ConvolutionProblem&) { return false; }
int64_t tap_columns(const ConvolutionProblem&) { absent(); }
size_t packed_weights(const ConvolutionProblem&) { absent(); }
size_t pass_workspace_bytes(const ConvolutionProblem&) { absent(); }
int64_t beta_parts(const ConvolutionProblem&) { absent(); }
void pack_weights(const ConvolutionProblem&, const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*, BFloat16*, void*) { absent(); }
void convolution_pass(const ConvolutionProblem&, ConvolutionPass, const float*, const BFloat16*, const ConvolutionArrays&, const BFloat16*,
                      float*, void*, void*, const ConvolutionSums&) {
  absent();
}
void gather_taps(const ConvolutionProblem&, const float*, bool, BFloat16*, void*) { absent(); }
bool norm_covers(int64_t, int64_t) { return false; }
template <class T>
void spectral_norms(const LimitedMatrix<T>*, int, void*) {
  absent();
}
template <class T>
void limited_gradients(const LimitedMatrix<T>*, int, void*) {
  absent();
}
template void spectral_norms<float>(const LimitedMatrix<float>*, int, void*);
template void spectral_norms<double>(const LimitedMatrix<double>*, int, void*);
template void limited_gradients<float>(const LimitedMatrix<float>*, int, void*);
template void limited_gradients<double>(const LimitedMatrix<double>*, int, void*);
bool covers(const SwishProblem&) { return false; }
template <class T>
void swish_forward(const SwishProblem&, const T*, const float*, T*, void*) {
  absent();
}
template <class T>
void swish_jvp(const SwishProblem&, const T*, const float*, const T*, T*, void*) {
  absent();
}
template <class T>
void swish_vjp(const SwishProblem&, const T*, const float*, const T*, T*, float*, void*, void*) {
  absent();
}
template <class T>
void swish_hvp(const SwishProblem&, const T*, const float*, const T*, const T*, T*, T*, float*, void*, void*) {
  absent();
}
template void swish_forward<float>(const SwishProblem&, const float*, const float*, float*, void*);
template void swish_jvp<float>(const SwishProblem&, const float*, const float*, const float*, float*, void*);
template void swish_vjp<float>(const SwishProblem&, const float*, const float*, const float*, float*, float*, void*, void*);
template void swish_hvp<float>(const SwishProblem&, const float*, const float*, const float*, const float*, float*, float*, float*, void*,
                               void*);
template void swish_forward<BFloat16>(const SwishProblem&, const BFloat16*, const float*, BFloat16*, void*);
template void swish_jvp<BFloat16>(const SwishProblem&, const BFloat16*, const float*, const BFloat16*, BFloat16*, void*);
template void swish_vjp<BFloat16>(const SwishProblem&, const BFloat16*, const float*, const BFloat16*, BFloat16*, float*, void*, void*);
template void swish_hvp<BFloat16>(const SwishProblem&, const BFloat16*, const float*, const BFloat16*, const BFloat16*, BFloat16*,
                                  BFloat16*, float*, void*, void*);
std::optional<SolverPlan> plan_solve(const AttentionProblem&, int64_t, const IterationRules&) { return std::nullopt; }
void solve(const SolverPlan&, const BranchWeights<float>&, const float*, float*, const SolverReport&, const Launch&) { absent(); }

template <class T>
size_t attention_workspace_bytes(const AttentionProblem&) {
  absent();
}
template <class T>
void attention_forward(const AttentionProblem&, const AttentionInputs<T>&, AttentionSums<T>, T*, const Launch&) {
  absent();
}
template <class T>
void attention_vjp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T*, const T*,
                   const AttentionGradients<T>&, const Launch&) {
  absent();
}
template <class T>
void attention_jvp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T*, const AttentionInputs<T>&,
                   T*, const Launch&) {
  absent();
}
template <class T>
void attention_hvp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T*, const T*,
                   const AttentionInputs<T>&, T*, T*, T*, T*, const Launch&) {
  absent();
}

template size_t attention_workspace_bytes<float>(const AttentionProblem&);
template void attention_forward<float>(const AttentionProblem&, const AttentionInputs<float>&, AttentionSums<float>, float*, const Launch&);
template void attention_vjp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                   const float*, const AttentionGradients<float>&, const Launch&);
template void attention_jvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                   const AttentionInputs<float>&, float*, const Launch&);
template void attention_hvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                   const float*, const AttentionInputs<float>&, float*, float*, float*, float*, const Launch&);

template size_t attention_workspace_bytes<double>(const AttentionProblem&);
template void attention_forward<double>(const AttentionProblem&, const AttentionInputs<double>&, AttentionSums<double>, double*,
                                        const Launch&);
template void attention_vjp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                    const double*, const double*, const AttentionGradients<double>&, const Launch&);
template void attention_jvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                    const double*, const AttentionInputs<double>&, double*, const Launch&);
template void attention_hvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                    const double*, const double*, const AttentionInputs<double>&, double*, double*, double*, double*,
                                    const Launch&);

}  // namespace invattn::kernels::cuda

#pragma once

#include <cstddef>
#include <cstdint>

#include "invattn/kernels/cuda/swish.h"

// The branch of an i-ResNet, 3x3, 1x1 and 3x3 convolution with ELU between them, on the matrix units of a CUDA device in bfloat16: its value
// and the products with its Jacobian that a log-determinant is made of, each as one pass that keeps what is inside in shared memory.
// All pointers are the device's, `stream` is a cudaStream_t. Nothing here allocates or waits, and results are bitwise the same in every run.

namespace invattn::kernels::cuda {

/// Images are float32 with channels last, (batch, height, width, channels); arrays inside are bfloat16, (batch, height, width, hidden).
struct ConvolutionProblem {
  int64_t batch = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t hidden = 0;
};

/// False where this build or device has no such kernels, and for sizes other than: channels a multiple of 4 up to 48, hidden a multiple of
/// 128 up to 512.
bool covers(const ConvolutionProblem& problem);

/// Columns of `gather_taps`: nine times the channels, rounded up.
int64_t tap_columns(const ConvolutionProblem& problem);

/// Entries of the packed weights of one direction.
size_t packed_weights(const ConvolutionProblem& problem);

/// Bytes of the workspace of a pass.
size_t pass_workspace_bytes(const ConvolutionProblem& problem);

/// Weights with channels last: first (hidden, 3, 3, channels), middle (hidden, hidden), last (channels, 3, 3, hidden). `along` becomes what
/// value and tangent need, `against` what product and gradient need, in the order in which a pass reads them.
void pack_weights(const ConvolutionProblem& problem, const BFloat16* first, const BFloat16* middle, const BFloat16* last, BFloat16* along,
                  BFloat16* against, void* stream);

/// With W_1, W_2, W_3 the convolutions, a_1 and a_2 what ELU gave behind the first two, and D_1, D_2 its slopes there.
enum class ConvolutionPass {
  kValue,     ///< g(x): leaves a_1 and a_2
  kProduct,   ///< J'u = W_1' q_1, q_1 = D_1 W_2' q_2, q_2 = D_2 W_3' u: leaves q_1 and q_2 where they are wanted
  kTangent,   ///< J v = W_3 p_2, p_2 = D_2 W_2 p_1, p_1 = D_1 W_1 v: leaves p_1 and p_2, and the derivatives of <v, J'u> in what goes into
              ///< the activations, c_l = q_l (W_l p_(l-1)) where a_l < 0 and 0 elsewhere
  kGradient,  ///< as kProduct, with c_2 added to q_2 and c_1 to q_1: the backward pass of the value
};

/// Arrays (positions, hidden), by layer: [0] behind the first convolution, [1] behind the second.
struct ConvolutionArrays {
  const BFloat16* activations[2] = {};  // a; of kValue the result
  const BFloat16* biases[2] = {};       // kValue: (hidden)
  const BFloat16* other[2] = {};        // kTangent: q; kGradient: c, null for none
  BFloat16* results[2] = {};            // kValue: a; kProduct: q, null where not wanted; kTangent: p; kGradient: the sums
  BFloat16* changes[2] = {};            // kTangent: c
};

/// `packed` of the direction: along for kValue and kTangent, against for the others. `bias` (channels) is added to the output, null for none.
void convolution_pass(const ConvolutionProblem& problem, ConvolutionPass pass, const float* input, const BFloat16* packed,
                      const ConvolutionArrays& arrays, const BFloat16* bias, float* output, void* workspace, void* stream);

/// The 3x3 surroundings of each position, (positions, tap_columns): entry tap * channels + channel is the image's at the position plus the
/// tap's offset, or minus it with `against`, and zero outside of the image. Behind the last tap there is a one, for sums over positions, then zeros.
void gather_taps(const ConvolutionProblem& problem, const float* image, bool against, BFloat16* taps, void* stream);

}  // namespace invattn::kernels::cuda

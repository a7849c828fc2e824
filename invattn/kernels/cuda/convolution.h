#pragma once

#include <cstddef>
#include <cstdint>

#include "invattn/kernels/cuda/swish.h"

// The branch of an i-ResNet, 3x3, 1x1 and 3x3 convolution with ELU or LipSwish between them, on the matrix units of a CUDA device in bfloat16: its value
// and the products with its Jacobian that a log-determinant is made of, each as one pass that keeps what is inside in shared memory.
// All pointers are the device's, `stream` is a cudaStream_t. Nothing here allocates or waits, and results are bitwise the same in every run.

namespace invattn::kernels::cuda {

enum class ConvolutionActivation {
  kElu,
  kLipSwish,  ///< scale x sigmoid(beta x)
};

/// Images are float32 with channels last, (batch, height, width, channels); arrays inside are bfloat16, (batch, height, width, hidden).
struct ConvolutionProblem {
  int64_t batch = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t hidden = 0;
  ConvolutionActivation activation = ConvolutionActivation::kElu;
  float scale = 1;  ///< of LipSwish
};

/// False where this build or device has no such kernels, and for sizes other than: up to 48 channels, hidden a multiple of 128 up to 512.
bool covers(const ConvolutionProblem& problem);

/// Columns of `gather_taps`: nine times the channels, which are rounded up to a multiple of 4, and more.
int64_t tap_columns(const ConvolutionProblem& problem);

/// Entries of the packed weights of one direction.
size_t packed_weights(const ConvolutionProblem& problem);

/// Bytes of the workspace of a pass.
size_t pass_workspace_bytes(const ConvolutionProblem& problem);

/// Weights with channels last: first (hidden, 3, 3, channels), middle (hidden, hidden), last (channels, 3, 3, hidden). `along` becomes what
/// value and tangent need, `against` what product and gradient need, in the order in which a pass reads them.
void pack_weights(const ConvolutionProblem& problem, const BFloat16* first, const BFloat16* middle, const BFloat16* last, BFloat16* along,
                  BFloat16* against, void* stream);

/// With W_1, W_2, W_3 the convolutions, z_1 and z_2 what goes into the activations behind the first two, a_l = f(z_l) what they give, D_l their
/// slopes f'(z_l) and E_l their curvatures f''(z_l).
enum class ConvolutionPass {
  kValue,    ///< g(x): leaves a_1 and a_2, or z and D
  kProduct,  ///< J'u = W_1' q_1, q_l = D_l r_l, r_1 = W_2' q_2, r_2 = W_3' u: leaves q or r where they are wanted
  kTangent,  ///< J v = W_3 p_2, p_l = D_l t_l, t_2 = W_2 p_1, t_1 = W_1 v: leaves p, and the derivatives of <v, J'u> in z_l, c_l = E_l r_l t_l
  kGradient,  ///< as kProduct, with c_2 added to q_2 and c_1 to q_1: the backward pass of the value
};

/// Arrays (positions, hidden), by layer: [0] behind the first convolution, [1] behind the second. ELU's slope and curvature follow from what it
/// gives, those of LipSwish do not.
///
///                     ELU                                  LipSwish
///             known   other  results  changes      known   other  results  changes  extras
///   kValue                   a                                    z                 D
///   kProduct  a              q                     D              r
///   kTangent  a       q      p        c            z       r      p        c        q
///   kGradient a       c      sums                  z       c      sums              a
///
/// `other` of kGradient and `results` of kProduct may be null.
struct ConvolutionArrays {
  const BFloat16* known[2] = {};
  const BFloat16* other[2] = {};
  BFloat16* results[2] = {};
  BFloat16* changes[2] = {};
  BFloat16* extras[2] = {};
  const BFloat16* biases[2] = {};  // kValue: (hidden)
  const float* betas = nullptr;    // LipSwish, but for kProduct: (2), by layer
  float* of_betas = nullptr;       // LipSwish, kTangent and kGradient: (2, beta_parts), which add up to the derivatives in beta
};

/// Sums over several passes, which the last step of each adds its output to: sums[i] becomes sums[i] + factors[i] output, or where it starts
/// input_factors[i] input + factors[i] output. Arrays like the output; all or none are given.
struct ConvolutionSums {
  float* sums[2] = {};
  float factors[2] = {};
  float input_factors[2] = {};
  bool starts = false;
};

/// How many numbers add up to the derivative in one beta.
int64_t beta_parts(const ConvolutionProblem& problem);

/// `packed` of the direction: along for kValue and kTangent, against for the others. `bias` (channels) is added to the output, null for none.
void convolution_pass(const ConvolutionProblem& problem, ConvolutionPass pass, const float* input, const BFloat16* packed,
                      const ConvolutionArrays& arrays, const BFloat16* bias, float* output, void* workspace, void* stream,
                      const ConvolutionSums& sums = {});

/// The 3x3 surroundings of each position, (positions, tap_columns): entry tap * channels + channel is the image's at the position plus the
/// tap's offset, or minus it with `against`, and zero outside of the image. Behind the last tap there is a one, for sums over positions, then zeros.
void gather_taps(const ConvolutionProblem& problem, const float* image, bool against, BFloat16* taps, void* stream);

}  // namespace invattn::kernels::cuda

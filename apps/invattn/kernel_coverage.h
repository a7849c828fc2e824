#pragma once

#include <c10/core/Device.h>

#include <string>

#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"

namespace invattn::tool {

/// Why the fast kernels cannot do attention with these options on this device, or nothing where they can. Asks with float32.
std::string kernel_obstacle(const AttentionOptions& options, at::Device device);

/// Why the kernels for the convolution branches of flows cannot do these options on this device, in bfloat16; cuDNN does it then.
std::string kernel_obstacle(const ConvolutionOptions& options, at::Device device);

}  // namespace invattn::tool

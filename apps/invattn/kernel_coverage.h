#pragma once

#include <c10/core/Device.h>

#include <string>

#include "invattn/nn/attention.h"

namespace invattn::tool {

/// Why the fast kernels cannot do attention with these options on this device, or nothing where they can. Asks with float32.
std::string kernel_obstacle(const AttentionOptions& options, at::Device device);

}  // namespace invattn::tool

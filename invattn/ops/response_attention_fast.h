#pragma once

#include <memory>
#include <string>

#include "invattn/ops/response_attention.h"

/// The operations by the kernels of invattn/kernels/, for the CPU and for CUDA devices. Inputs are already checked.
namespace invattn::fast {

/// Why the kernels cannot do this, or nothing where they can.
std::string obstacle(const AttentionInputs& inputs, const ResponseMap& map);

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map);
std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map);

}  // namespace invattn::fast

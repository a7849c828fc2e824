#include "kernel_coverage.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/ops/empty.h>

#include "invattn/ops/branch_convolutions.h"
#include "invattn/ops/response_attention.h"

namespace invattn::tool {

std::string kernel_obstacle(const AttentionOptions& options, at::Device device) {
  const ResponseMap map = options.map();
  const int64_t embedded = std::max<int64_t>(1, options.channels / options.bottleneck);
  const int64_t of_product = options.kind == AttentionKind::kGaussian ? options.channels : embedded;
  const auto positions = [&](int64_t channels) { return at::empty({1, channels, 1}, at::TensorOptions().device(device)); };
  const at::Tensor query = positions(map.score == Score::kSum ? 1 : of_product);
  return fast_obstacle({query, query, positions(options.channels)}, map);
}

std::string kernel_obstacle(const ConvolutionOptions& options, at::Device device) {
  const at::Tensor x = at::empty({1, options.channels, options.height, options.width}, at::TensorOptions().device(device));
  std::vector<at::Tensor> weights;
  for (const auto& shape : options.weight_shapes()) weights.push_back(at::empty(shape, x.options().dtype(at::kBFloat16)));
  return branch_convolutions_obstacle(x, weights);
}

}  // namespace invattn::tool

#include "invattn/nn/batch_mean.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace invattn {
namespace {

struct All {
  int64_t processes = 1;
  std::function<void(const at::Tensor&)> mean;
};

All& all() {
  static All together;
  return together;
}

class SharedMean : public torch::autograd::Function<SharedMean> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& own) { return batch_mean(own.clone()); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* /*context*/, torch::autograd::tensor_list gradients) {
    return {batch_mean(gradients[0].clone())};
  }
};

}  // namespace

BatchesOfAll::BatchesOfAll(int64_t processes, std::function<void(const at::Tensor&)> mean) { all() = {processes, std::move(mean)}; }
BatchesOfAll::~BatchesOfAll() { all() = {}; }

at::Tensor batch_mean(at::Tensor own) {
  if (all().mean) all().mean(own);
  return own;
}

at::Tensor differentiable_batch_mean(const at::Tensor& own) { return all().mean ? SharedMean::apply(own) : own; }

int64_t batches_together() { return all().processes; }

}  // namespace invattn

#include "invattn/nn/batch_mean.h"

#include <ATen/ATen.h>

#include <utility>

namespace invattn {
namespace {

std::function<void(const at::Tensor&)>& mean_of_all() {
  static std::function<void(const at::Tensor&)> mean;
  return mean;
}

}  // namespace

BatchesOfAll::BatchesOfAll(std::function<void(const at::Tensor&)> mean) { mean_of_all() = std::move(mean); }
BatchesOfAll::~BatchesOfAll() { mean_of_all() = nullptr; }

at::Tensor batch_mean(at::Tensor own) {
  if (mean_of_all()) mean_of_all()(own);
  return own;
}

}  // namespace invattn

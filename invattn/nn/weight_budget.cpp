#include "invattn/nn/weight_budget.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "invattn/core/error.h"

namespace invattn {
namespace {

thread_local WeightBudget* innermost = nullptr;

}  // namespace

WeightBudget::WeightBudget(std::string file, const std::map<std::string, at::Tensor>& tensors)
    : file_(std::move(file)), tensors_(static_cast<int64_t>(tensors.size())), numbers_(0), outer_(std::exchange(innermost, this)) {
  for (const auto& [name, tensor] : tensors) numbers_ += tensor.numel();
  constexpr int64_t kFewTensors = 64;
  constexpr int64_t kFewNumbers = int64_t{1} << 16;
  tensors_left_ = 2 * tensors_ + kFewTensors;
  numbers_left_ = 2 * numbers_ + kFewNumbers;
}

WeightBudget::~WeightBudget() { innermost = outer_; }

void WeightBudget::claim(at::IntArrayRef shape) {
  bool fits = --tensors_left_ >= 0;
  int64_t numbers = 1;
  for (const int64_t size : shape) {
    fits = fits && (size == 0 || numbers <= numbers_left_ / size);
    if (fits) numbers *= size;
  }
  if (!fits) {
    fail(ErrorKind::kData, "load", file_, ": expected options of a model with ", numbers_, " numbers in ", tensors_,
         " tensors, as many as the file holds, got options that ask for far more, a tensor of shape ", shape,
         " among them. The file is damaged: take another copy of it, or save the model again.");
  }
  numbers_left_ -= numbers;
}

void claim_weights(at::IntArrayRef shape) {
  if (innermost != nullptr) innermost->claim(shape);
}

at::Tensor new_weights(at::IntArrayRef shape) {
  claim_weights(shape);
  return at::empty(shape);
}

}  // namespace invattn

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <string>

namespace invattn {

/// While it lives, modules that are built on this thread may hold about twice as many weights as these tensors. What is built from the
/// metadata of a file cannot need more than the file holds: options that ask for far more are refused, as an Error(kData) with the file's
/// name, before memory is taken. Those that ask for a little more are left to whoever compares the tensors one by one, and can name one.
class WeightBudget {
 public:
  WeightBudget(std::string file, const std::map<std::string, at::Tensor>& tensors);
  ~WeightBudget();
  WeightBudget(const WeightBudget&) = delete;
  WeightBudget& operator=(const WeightBudget&) = delete;

 private:
  friend void claim_weights(at::IntArrayRef shape);
  void claim(at::IntArrayRef shape);

  std::string file_;
  int64_t tensors_;
  int64_t numbers_;
  int64_t tensors_left_;
  int64_t numbers_left_;
  WeightBudget* outer_;
};

/// A module is about to allocate a tensor of its weights.
void claim_weights(at::IntArrayRef shape);

/// at::empty for weights, after claiming them.
at::Tensor new_weights(at::IntArrayRef shape);

}  // namespace invattn

#pragma once

#include <torch/nn/module.h>

namespace invattn {

/// Puts a network into evaluation mode for as long as it lives.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& network) : network_(network), was_training_(network.is_training()) { network_.eval(); }
  ~Evaluating() { network_.train(was_training_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  torch::nn::Module& network_;
  bool was_training_;
};

}  // namespace invattn

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/core/names.h"

namespace invattn {

enum class OptimizerMethod {
  kAdam,
  kAdamax,  ///< Adam with the largest gradient so far in place of the mean square
  kMuon,    ///< weights that are matrices move along their mean gradient made orthogonal, the others as in Adam
};

template <>
struct EnumNames<OptimizerMethod> {
  static constexpr std::string_view kWhat = "an optimiser";
  static constexpr std::array<std::pair<OptimizerMethod, std::string_view>, 3> kNames{
      {{OptimizerMethod::kAdam, "adam"}, {OptimizerMethod::kAdamax, "adamax"}, {OptimizerMethod::kMuon, "muon"}}};
};

struct OptimizerOptions {
  OptimizerMethod method = OptimizerMethod::kAdam;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double clip_norm = 0;  ///< gradients longer than this, all together, are shortened to it; 0: never
  double average = 0;    ///< decay a of the average of the weights; 0: no average

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("method", self.method, "adam, adamax or muon");
    field("learning_rate", self.learning_rate, "the step length");
    field("beta1", self.beta1, "how much of the mean gradient is kept per step");
    field("beta2", self.beta2, "how much of the gradient's size is kept per step");
    field("epsilon", self.epsilon, "added to that size");
    field("clip_norm", self.clip_norm, "longest gradient, all weights together; 0: any");
    field("average", self.average, "decay of the average of the weights, at most 1 - 10 / (t + 9) in step t; 0: no average");
  }

  /// Throws a usage error that names the first field out of range.
  void validate() const;
};

/// How Adam is computed: the same formula, rounded in another order.
enum class AdamArithmetic {
  kFused,     ///< one operation for all weights
  kByWeight,  ///< the operations of torch::optim::Adam, to its bits; waits for the device. Adam alone, without clipping
};

/// The share of step t = 1, 2, … in an average with this decay, a_t = a_(t-1) + share (w_t - a_(t-1)): max(1 - decay, 10 / (t + 9)). It is 1 in the
/// first step, so that what was before has no part in the average; until 1 - decay is larger, the average reaches back over about a tenth of the
/// steps so far. `steps`: () on any device, which is not waited for.
at::Tensor averaging_share(const at::Tensor& steps, double decay);

/// For each of a stack of matrices (n, rows, columns) about U V' of its singular value decomposition U S V': singular values between 0.68 and 1.14
/// in place of S, but for those below a thousandth or so of the root of their sum of squares. By five Newton-Schulz iterations, on a GPU in bfloat16.
at::Tensor nearly_orthogonal(const at::Tensor& matrices);

/// Adam, Adamax and Muon over the weights of a network in a handful of launches, whatever their number, with nothing on the host: a step can be
/// captured (CapturedStep). Weights without a gradient are left alone. With clipping on, a step whose gradient is not finite changes nothing.
///
/// Muon takes a weight of two dimensions or more as the matrix (first dimension, all others); the length of its steps is set so that an entry moves
/// as far as in Adam, about 0.2 learning rates. What has a side of one, biases and scales, is Adam's.
///
/// The average of the weights is a weighted mean of those after each step, with weights that add up to 1 (`averaging_share`).
class Optimizer {
 public:
  Optimizer(const torch::nn::Module& network, const OptimizerOptions& options, AdamArithmetic arithmetic = AdamArithmetic::kFused);

  void zero_grad();
  void step();

  void set_learning_rate(double value);

  /// The norm of all gradients together before the last step's clipping, a 0-dimensional tensor; undefined without clipping.
  const at::Tensor& gradient_norm() const { return gradient_norm_; }

  /// Puts the averaged weights into the network and keeps the others in their place; called again, the other way round.
  void swap_average();

  /// What has to be remembered between two processes, by name.
  std::map<std::string, at::Tensor> state() const;
  /// Takes it over. What is missing or of another shape is an Error(kData) of `origin`, the name of the file.
  void restore(const std::map<std::string, at::Tensor>& state, const std::string& origin);

  const OptimizerOptions& options() const { return options_; }

 private:
  /// What belongs to one weight.
  struct Entry {
    std::string name;
    at::Tensor weight, mean;
    at::Tensor size;     // undefined where Muon moves the weight
    at::Tensor average;  // undefined where there is none
  };

  void move_by_weight(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients,
                      const std::vector<at::Tensor>& means, const std::vector<at::Tensor>& sizes) const;
  void move_matrices(const std::vector<at::Tensor>& weights, std::vector<at::Tensor> gradients, const std::vector<at::Tensor>& means,
                     const at::Tensor& excess, const at::Tensor& skipped) const;

  OptimizerOptions options_;
  AdamArithmetic arithmetic_;
  std::vector<Entry> entries_;
  at::Tensor steps_;          // (), float32: the steps taken
  at::Tensor learning_rate_;  // (), float32
  at::Tensor gradient_norm_;
};

}  // namespace invattn

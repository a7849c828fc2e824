#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/lipschitz/penalty.h"
#include "invattn/nn/residual.h"

namespace invattn {

struct GuardOptions {
  double target = 0.85;            ///< local constants above this are penalised while training
  double weight = 10.0;            ///< of the penalty in the loss
  double fraction = 0.08;          ///< of the samples, in turn, that are evaluated; less than one a batch: one every so many steps
  int64_t every = 1;               ///< steps from one evaluation to the next, each on so many times as many samples: fewer, larger launches
  int64_t iterations = 1;          ///< power iterations per step and block, from the vectors of the step before
  double margin = 1.02;            ///< the final scale leaves room by this factor for what was not measured
  LocalConstantOptions measure{};  ///< how constants are measured at the end

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("target", self.target, "local constants above this are penalised while training");
    field("weight", self.weight, "of the penalty in the loss");
    field("fraction", self.fraction, "of the samples, in turn, that are evaluated; less than one a batch: one every so many steps");
    field("every", self.every, "steps from one evaluation to the next, each on so many times as many samples");
    field("iterations", self.iterations, "power iterations per step and block");
    field("margin", self.margin, "the final scale leaves room by this factor");
    field("measure", self.measure, "how constants are measured at the end");
  }

  void validate() const;
};

/// Keeps every guarded block of a network invertible while any trainer trains it:
///
///   Guard guard(*network);
///   for (...) {
///     auto loss = criterion(network->forward(x));
///     loss = loss + guard.penalty();   // after the forward pass: in one expression C++ may call it first
///     loss.backward(); optimizer.step();
///     guard.after_step();
///   }
///   guard.finish(forward, batches, "the training images");            // measures, scales where needed, certifies
///
/// The penalty evaluates each guarded block once more on a part of the batch, with one product J v and a second backward pass there. It
/// changes the weights of that block only: no gradient flows from it into what comes before.
class Guard {
 public:
  explicit Guard(torch::nn::Module& network, const GuardOptions& options = {});
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Whether a step looks at constants: one of `every`, and fewer for batches so small that `fraction` of one is less than a sample. The
  /// steps between are for the loss alone.
  bool due(int64_t step, int64_t batch) const;

  /// weight x the sum over blocks of mean relu(L - target)^2, differentiable, at the inputs of the last forward pass, as many times as
  /// there are steps from one that is due to the next. `images` numbers
  /// the samples of the batch within the training set, if the caller knows: each image then keeps a vector of its own, which one
  /// iteration a step is enough for, at the cost of one copy of the training set in memory. `count` is the size of the training set: with
  /// it nothing waits for a GPU, so that the step can be captured; without it the numbers are looked at.
  at::Tensor penalty(const at::Tensor& images = {}, int64_t count = 0);

  /// The largest local constant that the last penalty saw, over all blocks: a lower estimate, for showing progress. Waits for the device.
  double last_largest() const;

  /// The same without waiting, (); undefined before the first penalty and where nothing is guarded.
  const at::Tensor& largest() const { return last_largest_; }

  /// With several processes: takes the largest constant of each block over all of them. `maximum` replaces the numbers it is given, one for
  /// each block, by the largest that any process has. Between penalty() and hold().
  void agree(const std::function<void(const at::Tensor&)>& maximum);

  /// How many blocks are guarded.
  int64_t size() const { return static_cast<int64_t>(guarded_.size()); }

  /// Projects the weights of every residual block onto their constraints, guarded or not.
  void after_step();

  /// After an update of the weights, where the penalty alone might come too late: scales each guarded branch back to its constant if the last
  /// penalty saw a larger one. Does not wait for a device.
  void hold();

  /// Runs `forward` over the batches, measures the local constants of each guarded block on its own inputs there, scales g where
  /// margin x largest is above the block's constant, and certifies each block. `data` names the batches in the certificates.
  std::vector<Certificate> finish(const std::function<void(const at::Tensor&)>& forward, const std::vector<at::Tensor>& batches,
                                  const std::string& data);

  /// The local constants that `finish` measured, per guarded block (samples) float64, after its scaling.
  const std::vector<at::Tensor>& constants() const { return constants_; }

  /// What the guard has to remember between two processes for a training to go on to the same bits.
  std::map<std::string, at::Tensor> state() const;
  void restore(const std::map<std::string, at::Tensor>& state);

 private:
  struct Guarded {
    InvertibleResidualImpl* block;
    double constant;
    LocalConstantPenalty penalty;
    at::Tensor largest{};  // (), of the last penalty
  };

  /// Steps from one that is due to the next.
  int64_t interval(int64_t batch) const;

  GuardOptions options_;
  torch::nn::Module* network_;
  std::vector<InvertibleResidualImpl*> blocks_;
  std::vector<Guarded> guarded_;
  at::Tensor turn_;          // (), int64, on the device of the blocks: the steps so far, which say whose turn it is
  at::Tensor last_largest_;  // (), undefined before the first penalty
  std::vector<at::Tensor> constants_;
};

}  // namespace invattn

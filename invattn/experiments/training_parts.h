#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "invattn/dist/world.h"

// What the trainings of flows and of detectors have in common.
namespace invattn {

/// Which images each step takes. The order of an epoch follows from its number, so that nothing of it has to be saved; the last images of
/// one that do not fill a batch are left to another epoch. Images that are fewer than a batch are taken several times.
class Batches {
 public:
  Batches(int64_t images, int64_t batch, int64_t seed, at::Device device);

  int64_t per_epoch() const;

  /// Sets `numbers` to those of the step.
  void choose(int64_t step);

  /// (batch) int64 on the device, always in the same place.
  const at::Tensor& numbers() const { return numbers_; }

 private:
  int64_t images_;
  int64_t seed_;
  at::Tensor numbers_;
  at::Tensor order_;  // of the epoch
  int64_t epoch_ = -1;
};

/// The mean training loss of the last steps, each with its share in an average of the weights (`averaging_share`): what a figure of averaged
/// weights is to be compared with, also while the loss falls.
class TrainingLoss {
 public:
  TrainingLoss(double decay, at::Device device);

  /// Without waiting for the device.
  void add(const at::Tensor& loss);

  /// Of independent steps; both not a number before the first.
  struct Mean {
    double value;
    double standard_error;
  };
  Mean mean() const;

  /// (4) float64: what a training that goes on has to remember; zeros before the first step.
  const at::Tensor& state() const { return state_; }
  void restore(const at::Tensor& state) { state_.copy_(state); }

 private:
  double decay_;
  at::Tensor state_;  // (4): the steps; the means of their losses and of the squares of those; the sum of their squared shares
};

/// Throws unless the processes can share the batches.
void require_shares(int64_t batch, const World& world, std::string_view origin);

/// Before the first step: all processes are about to do the same.
void agree_on_start(const World& world, std::string_view origin, const std::string& configuration, at::Device device,
                    const at::Tensor& images);

/// The name of random numbers that each process draws for itself; rank 0 has those of one process.
std::string own_draws(const std::string& place, const World& world);

/// So many of the images there are as an option wants; 0: all.
inline int64_t chosen_count(int64_t wanted, int64_t images) { return wanted > 0 ? std::min(wanted, images) : images; }

/// How many weights a network has.
int64_t parameter_count(const torch::nn::Module& network);

}  // namespace invattn

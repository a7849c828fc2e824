#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <filesystem>
#include <map>
#include <string>

namespace invattn {

/// Where a training stands, so that it can go on in another process to the same bits.
struct Checkpoint {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> notes;  ///< whatever else the trainer has to remember
};

/// Adds the weights of the network and the state of its optimiser.
void add_training(Checkpoint& checkpoint, const torch::nn::Module& network, torch::optim::Adam& optimizer);

/// Sets both from a checkpoint. What is missing or of another shape is an Error(kData) of `origin`, the name of the file.
void restore_training(const Checkpoint& checkpoint, torch::nn::Module& network, torch::optim::Adam& optimizer, const std::string& origin);

/// The tensors whose name starts with `prefix`, without it.
std::map<std::string, at::Tensor> tensors_below(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix);

/// As one safetensors file, all or nothing: whoever is killed while saving keeps the checkpoint before.
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);
Checkpoint load_checkpoint(const std::filesystem::path& path);

}  // namespace invattn

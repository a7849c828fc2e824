#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "invattn/lipschitz/certificate.h"
#include "invattn/nn/bijection.h"

namespace invattn {

/// Builds a bijection from what `describe()` returned. Unknown types and keys are errors that name the nearest valid one.
Bijection make_bijection(const std::string& description);

/// Writes weights, options and certificates to one safetensors file: projected first, so that what is stored satisfies its bounds;
/// to a temporary file, synced and renamed, so that an interrupted save leaves the old file.
void save(const std::filesystem::path& path, BijectionImpl& model);

/// Builds the model that `save` stored, in evaluation mode, on the CPU and in the type of its weights. The file is checked throughout:
/// missing, unexpected, wrongly shaped or non-finite tensors are errors.
Bijection load(const std::filesystem::path& path);

/// The same for networks that are no bijections but may hold some: `description` is what `make` builds such a network from.
using ModelMaker = std::function<std::shared_ptr<torch::nn::Module>(const std::string& description)>;
void save_model(const std::filesystem::path& path, torch::nn::Module& model, const std::string& description);
std::shared_ptr<torch::nn::Module> load_model(const std::filesystem::path& path, const ModelMaker& make);

/// What a stored model is, without building it twice: for `invattn info`.
struct StoredBlock {
  std::string name;         ///< of the residual block in the model, "" for the model itself
  Certificate certificate;  ///< as stored
  bool current = false;     ///< it speaks of the stored weights
};

/// The residual blocks of a model with their certificates, in the order in which they run.
std::vector<StoredBlock> certificates_of(const torch::nn::Module& model);

}  // namespace invattn

#include "invattn/train/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/safetensors.h"

namespace invattn {
namespace {

constexpr const char* kFormat = "invattn-checkpoint-1";

/// A tensor of the checkpoint that has to be there, with the shape and type of `like`.
const at::Tensor& tensor_like(const Checkpoint& checkpoint, const std::string& name, const at::Tensor& like, const std::string& origin) {
  const auto found = checkpoint.tensors.find(name);
  if (found == checkpoint.tensors.end() || found->second.sizes() != like.sizes() || found->second.scalar_type() != like.scalar_type()) {
    fail(ErrorKind::kData, origin, "expected a tensor '", name, "' ", like.toString(), " ", like.sizes(),
         " of the network that is being trained, got ", found == checkpoint.tensors.end() ? "none" : "another shape or type",
         ". The checkpoint belongs to another configuration: start the run afresh in another folder.");
  }
  return found->second;
}

}  // namespace

std::map<std::string, at::Tensor> tensors_below(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) result.emplace(name.substr(prefix.size()), tensor);
  }
  return result;
}

void add_training(Checkpoint& checkpoint, const torch::nn::Module& network, torch::optim::Adam& optimizer) {
  for (const auto& buffer : network.named_buffers()) checkpoint.tensors.emplace("network." + buffer.key(), buffer.value());
  for (const auto& parameter : network.named_parameters()) {
    checkpoint.tensors.emplace("network." + parameter.key(), parameter.value().detach());
    const auto state = optimizer.state().find(parameter.value().unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;  // no step taken yet
    const auto& adam = dynamic_cast<const torch::optim::AdamParamState&>(*state->second);
    checkpoint.tensors.emplace("adam.step." + parameter.key(), at::scalar_tensor(adam.step(), at::kLong));
    checkpoint.tensors.emplace("adam.mean." + parameter.key(), adam.exp_avg());
    checkpoint.tensors.emplace("adam.square." + parameter.key(), adam.exp_avg_sq());
  }
}

void restore_training(const Checkpoint& checkpoint, torch::nn::Module& network, torch::optim::Adam& optimizer, const std::string& origin) {
  const at::NoGradGuard no_grad;
  for (auto& buffer : network.named_buffers()) {
    buffer.value().copy_(tensor_like(checkpoint, "network." + buffer.key(), buffer.value(), origin));
  }
  for (auto& parameter : network.named_parameters()) {
    at::Tensor& value = parameter.value();
    value.copy_(tensor_like(checkpoint, "network." + parameter.key(), value, origin));
    if (!checkpoint.tensors.contains("adam.step." + parameter.key())) continue;
    auto state = std::make_unique<torch::optim::AdamParamState>();
    state->step(tensor_like(checkpoint, "adam.step." + parameter.key(), at::scalar_tensor(int64_t{0}, at::kLong), origin).item<int64_t>());
    state->exp_avg(tensor_like(checkpoint, "adam.mean." + parameter.key(), value, origin).to(value.device(), /*non_blocking=*/false, true));
    state->exp_avg_sq(
        tensor_like(checkpoint, "adam.square." + parameter.key(), value, origin).to(value.device(), /*non_blocking=*/false, true));
    optimizer.state()[value.unsafeGetTensorImpl()] = std::move(state);
  }
}

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  auto metadata = checkpoint.notes;
  metadata["format"] = kFormat;
  write_safetensors(path, checkpoint.tensors, metadata);
}

Checkpoint load_checkpoint(const std::filesystem::path& path) {
  auto [tensors, metadata] = read_safetensors(path);
  if (metadata["format"] != kFormat) {
    fail(ErrorKind::kData, path.string(), "expected a checkpoint (format ", kFormat, "), got '", metadata["format"],
         "'. Start the run afresh in another folder.");
  }
  metadata.erase("format");
  return {.tensors = std::move(tensors), .notes = std::move(metadata)};
}

}  // namespace invattn

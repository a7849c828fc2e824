#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "invattn/core/fields.h"
#include "invattn/core/fnv.h"
#include "invattn/dist/world.h"
#include "invattn/train/optimizer.h"

namespace invattn {

class Guard;

/// Where a training stands, so that it can go on in another process to the same bits.
struct Checkpoint {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> notes;  ///< whatever else the trainer has to remember
};

/// A digest of the numbers of a tensor (FNV-1a of 64 bits, going on from `digest`): the same bits have the same.
std::uint64_t fnv1a_of(const at::Tensor& tensor, std::uint64_t digest = kFnvStart);

/// Adds the parameters and buffers of the network, as "network.<name>".
void add_network(Checkpoint& checkpoint, const torch::nn::Module& network);

/// Sets them from a checkpoint, which must hold these tensors and no others of a network, of the same shapes and types (a weights-only
/// one: of any floating-point type), and finite numbers alone unless it is of a training that has diverged; else an Error(kData) of
/// `origin`, the name of the file, and the network is unchanged.
void restore_network(const Checkpoint& checkpoint, torch::nn::Module& network, const std::string& origin);

/// Puts the average of the weights in their place, where the checkpoint has one; false where it has none. Buffers stay: what an
/// ActNorm follows has to change with the weights (change_weights in train/judged_flow.h).
bool restore_average(const Checkpoint& checkpoint, torch::nn::Module& network, const std::string& origin);

/// The network and the state of its optimiser, as "optimizer.<name>".
void add_training(Checkpoint& checkpoint, const torch::nn::Module& network, const Optimizer& optimizer);
void restore_training(const Checkpoint& checkpoint, torch::nn::Module& network, Optimizer& optimizer, const std::string& origin);

/// What a guard remembers, as "guard.<name>". With several processes: of all of them, whose parts of a batch come one after another, so that
/// any number of processes can go on from it. Vectors that cannot be shared out in equal parts are left behind: the guard starts new ones.
void add_guard(Checkpoint& checkpoint, const Guard& guard, const World& world = {});
void restore_guard(const Checkpoint& checkpoint, Guard& guard, const std::string& origin, const World& world = {});

/// For a training that goes on although its weights are not finite any more, where that is a result, too.
void note_diverged(Checkpoint& checkpoint);

/// The tensors whose name starts with `prefix`, without it.
std::map<std::string, at::Tensor> tensors_below(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix);

/// The network, by the average of its weights where there is one, and the notes alone, with floating-point tensors in bfloat16 (but for the
/// few numbers of the smallest ones): enough to use the network, an eighth of a training with an average. No training can go on from it.
/// Buffers are as they are in the checkpoint: a flow whose ActNorms follow is added to it while it is judged (JudgedFlow).
/// Rounding moves norms a little: project the network after restoring it, before anything is certified.
Checkpoint weights_only(const Checkpoint& checkpoint);

struct CheckpointOptions {
  int64_t shard_bytes = 0;  ///< most bytes of tensors in one file, at least 4096; 0: all in one file

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("shard_bytes", self.shard_bytes, "most bytes of tensors in one file; 0: all in one file");
  }

  void validate() const;
};

/// All or nothing: whoever is killed while saving, or whose disk is full, keeps the checkpoint before. One process at a time may save to
/// a path; others may load from it meanwhile.
///
/// In one file it is a safetensors file, with a digest of tensors and notes (FNV-1a of 64 bits). In shards, `path` is an index in JSON that names safetensors files beside it,
/// "<name of path>.<generation>-<number>.safetensors", with size and digest (FNV-1a of 64 bits over the whole file), and holds the notes and a digest of itself. A
/// tensor of more than shard_bytes lies in pieces, flattened, in shards one after another. The shards of each save have names of their
/// own, and the index is written last. Then shards of other generations of this path are removed: to keep a copy, copy index and shards.
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint, const CheckpointOptions& options = {});

/// The same where several processes work together: rank 0 reads the file, and gives what is in it to the others.
Checkpoint load_checkpoint(const std::filesystem::path& path, const World& world);

/// Reads either form. A file or shard that is missing, truncated or altered is an Error(kData) that names it.
Checkpoint load_checkpoint(const std::filesystem::path& path);

}  // namespace invattn

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {

/// Another process of the run has ended, or does not answer.
class ProcessLost : public std::runtime_error {
 public:
  static constexpr int kExitCode = 5;
  using std::runtime_error::runtime_error;
};

/// What another process has thrown, and says itself.
class ErrorOfOther : public Error {
 public:
  /// `text` with its origin.
  ErrorOfOther(ErrorKind kind, std::string_view text);
};

/// The processes that work on one run together. Every process calls the same operations in the same order. A process by itself is a World,
/// too: its operations do nothing, and nothing of c10d is touched.
///
/// Where another process was lost, or does not answer in time, an operation throws ProcessLost.
class World {
 public:
  /// Of one process.
  World() = default;

  /// What the environment says: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them. One process where WORLD_SIZE is 1 or
  /// not set. Tensors on `device` are reduced by NCCL where that is a GPU, all others by gloo.
  static World join(at::Device device, std::chrono::seconds timeout);

  /// Whether the environment names more than one process.
  static bool has_others();
  /// The rank on this machine, which is the number of the GPU to use; 0 where the environment says nothing.
  static int64_t local_rank();
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  bool alone() const { return size_ == 1; }
  /// Whether this is the process that writes files and tells what is going on.
  bool leads() const { return rank_ == 0; }
  /// Whether the launcher has started these processes again, after others of them were lost.
  bool started_again() const { return started_again_; }
  /// How long an operation waits for the others.
  std::chrono::seconds timeout() const { return timeout_; }

  /// In place, of tensors of one shape and type in all processes. The sums are the same bits in all processes.
  void sum(const at::Tensor& values) const;
  /// A number that is none in one process is none in all.
  void max(const at::Tensor& values) const;
  void broadcast(const at::Tensor& values) const;  ///< from rank 0
  /// Those of all processes, one after another along the first dimension; of one shape and type.
  at::Tensor gather(const at::Tensor& values) const;

  std::string broadcast(std::string text) const;
  bool any(bool mine) const;
  bool as_first(bool mine) const { return any(leads() && mine); }  ///< rank 0's
  void barrier() const;

  /// Adds to a number that all processes share under this name, from 0, and gives what it is then. Not one of the operations that all
  /// call in the same order: any process at any time. Not where alone.
  int64_t add(const std::string& name, int64_t amount) const;

  /// Rank 0 does it while the others wait. Where that is an Error the others throw ErrorOfOther of the same kind and text, else ProcessLost.
  void first(const std::function<void()>& work) const;

  /// An Error(kUsage) of `origin` unless all processes have the same texts: pairs of what it is and the text (or a digest of it).
  void agree(std::string_view origin, const std::vector<std::pair<std::string, std::string>>& facts) const;

 private:
  struct Group;
  std::shared_ptr<Group> group_;  // none where alone
  int64_t rank_ = 0;
  int64_t size_ = 1;
  bool started_again_ = false;
  std::chrono::seconds timeout_{0};
};

}  // namespace invattn

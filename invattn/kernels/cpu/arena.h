#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace invattn::kernels::cpu {

/// Scratch memory of one thread: arrays are handed out one behind the other and all taken back at once, so that a batch of small samples
/// allocates only for its first one.
class Arena {
 public:
  /// `count` elements, aligned for vectors, not initialised.
  template <class T>
  T* take(int64_t count) {
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) {
      const std::size_t size = bytes > kBlock ? bytes : kBlock;
      blocks_.push_back({Memory(::operator new(size, std::align_val_t(kAlignment))), size});
      used_ = 0;
    }
    auto* result = static_cast<char*>(blocks_[block_].memory.get()) + used_;
    used_ += bytes;
    return reinterpret_cast<T*>(result);
  }

  template <class T>
  T* zeros(int64_t count) {
    T* result = take<T>(count);
    std::memset(static_cast<void*>(result), 0, static_cast<std::size_t>(count) * sizeof(T));
    return result;
  }

  void reset() { block_ = used_ = 0; }

  /// Takes back what is handed out while this is alive.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), block_(arena.block_), used_(arena.used_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    std::size_t block_, used_;
  };

  /// Gives the memory back where it is more than a few calls are likely to want again.
  void trim() {
    std::size_t bytes = 0;
    for (const auto& block : blocks_) bytes += block.size;
    if (bytes > kKept) blocks_.clear();
    reset();
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kBlock = std::size_t{1} << 18;
  static constexpr std::size_t kKept = std::size_t{1} << 25;
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }
  };
  using Memory = std::unique_ptr<void, Free>;
  struct Block {
    Memory memory;
    std::size_t size;
  };
  std::vector<Block> blocks_;
  std::size_t block_ = 0, used_ = 0;
};

}  // namespace invattn::kernels::cpu

#pragma once

#include <cstdint>

namespace invattn {

inline constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325ULL;

/// FNV-1a of 64 bits over a range of bytes: it notices a change, and withstands no forger. Of several ranges, one after another, each goes
/// on from the hash before.
template <class Bytes>
constexpr std::uint64_t fnv1a(const Bytes& bytes, std::uint64_t hash = kFnvStart) {
  for (const auto byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace invattn

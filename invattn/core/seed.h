#pragma once

#include <cstdint>
#include <string_view>

#include "invattn/core/fnv.h"

namespace invattn {

/// A seed for one named stream of random numbers, so that adding a consumer does not shift the others.
/// The same (seed, stream) gives the same value on every platform.
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::string_view stream) {
  std::uint64_t mixed = seed + 0x9e3779b97f4a7c15ULL * (fnv1a(stream) | 1U);  // then the splitmix64 finaliser
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
  return mixed ^ (mixed >> 31);
}

}  // namespace invattn

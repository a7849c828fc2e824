#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "invattn/core/names.h"

namespace invattn {

/// Which implementation of the operations is used, on the CPU and on CUDA devices alike. The results agree to rounding.
enum class Kernels {
  kAuto,       ///< the fast kernels where they cover a request, else the reference
  kReference,  ///< plain ATen operations
  kFast,       ///< the fast kernels; an error where they do not cover a request
};

template <>
struct EnumNames<Kernels> {
  static constexpr std::string_view kWhat = "a choice of kernels";
  static constexpr std::array<std::pair<Kernels, std::string_view>, 3> kNames{
      {{Kernels::kAuto, "auto"}, {Kernels::kReference, "reference"}, {Kernels::kFast, "fast"}}};
};

/// The choice for the whole process. Change it between computations: what was computed under one choice is differentiated under it.
Kernels chosen_kernels();
void use_kernels(Kernels choice);

/// A choice for as long as this object lives.
class KernelsScope {
 public:
  explicit KernelsScope(Kernels choice) : before_(chosen_kernels()) { use_kernels(choice); }
  ~KernelsScope() { use_kernels(before_); }
  KernelsScope(const KernelsScope&) = delete;
  KernelsScope& operator=(const KernelsScope&) = delete;

 private:
  Kernels before_;
};

/// The instruction set that the CPU kernels use here, such as "AVX3".
std::string_view kernel_instruction_set();

}  // namespace invattn

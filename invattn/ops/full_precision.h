#pragma once

#include <ATen/Context.h>

namespace invattn {

/// While it lives, float32 is float32 on a GPU, too (or, where that is not wanted, may be TF32): torch lets convolutions round their inputs to TF32, 10 bits, unless told otherwise. An
/// inverse needs all of them (an i-ResNet comes back to 5e-5 instead of 3e-3), and so does what is reported of a network. Like torch's own
/// switch it holds for the whole process.
class FullPrecision {
 public:
  explicit FullPrecision(bool wanted = true)
      : convolutions_(at::globalContext().allowTF32CuDNN()), products_(at::globalContext().allowTF32CuBLAS()) {
    at::globalContext().setAllowTF32CuDNN(!wanted);
    at::globalContext().setAllowTF32CuBLAS(!wanted);
  }
  ~FullPrecision() {
    at::globalContext().setAllowTF32CuDNN(convolutions_);
    at::globalContext().setAllowTF32CuBLAS(products_);
  }
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;

 private:
  bool convolutions_;
  bool products_;
};

}  // namespace invattn

#pragma once

#include <ATen/Context.h>

namespace invattn {

/// While it lives, float32 is float32 on a GPU, too: torch lets convolutions round their inputs to TF32, 10 bits, unless told otherwise. An
/// inverse needs all of them (an i-ResNet comes back to 5e-5 instead of 3e-3), and so does what is reported of a network. Where it is not
/// wanted they may be TF32: convolutions, or products of matrices, among which are those of attention. Like torch's own switches it holds for
/// the whole process.
class FullPrecision {
 public:
  explicit FullPrecision(bool of_convolutions = true, bool of_products = true)
      : convolutions_(at::globalContext().allowTF32CuDNN()), products_(at::globalContext().allowTF32CuBLAS()) {
    at::globalContext().setAllowTF32CuDNN(!of_convolutions);
    at::globalContext().setAllowTF32CuBLAS(!of_products);
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

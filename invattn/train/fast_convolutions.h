#pragma once

#include <ATen/Context.h>

#include "invattn/ops/full_precision.h"

namespace invattn {

/// While it lives, convolutions on a GPU are in TF32 where that is wanted, attention as well if it is wanted there, and the quickest way to
/// each convolution is found by trying them.
class FastConvolutions {
 public:
  explicit FastConvolutions(bool tf32, bool attention)
      : precision_(!tf32, !(tf32 && attention)), tries_(at::globalContext().benchmarkCuDNN()) {
    at::globalContext().setBenchmarkCuDNN(true);
  }
  ~FastConvolutions() { at::globalContext().setBenchmarkCuDNN(tries_); }
  FastConvolutions(const FastConvolutions&) = delete;
  FastConvolutions& operator=(const FastConvolutions&) = delete;

 private:
  FullPrecision precision_;
  bool tries_;
};

}  // namespace invattn

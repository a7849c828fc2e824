#include "invattn/ops/full_precision.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace invattn {
namespace {

TEST(FullPrecision, HoldsWhileItLivesAndLeavesThingsAsTheyWere) {
  for (const bool before : {true, false}) {
    at::globalContext().setAllowTF32CuDNN(before);
    at::globalContext().setAllowTF32CuBLAS(before);
    {
      const FullPrecision outer;
      const FullPrecision inner;
      EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
      EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
    }
    EXPECT_EQ(at::globalContext().allowTF32CuDNN(), before);
    EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), before);
  }
}

}  // namespace
}  // namespace invattn

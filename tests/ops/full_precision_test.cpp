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

TEST(FullPrecision, IsOfConvolutionsAndProductsApart) {
  const FullPrecision as_it_was;  // restores the switches at the end
  for (const bool convolutions : {true, false}) {
    for (const bool products : {true, false}) {
      const FullPrecision some(convolutions, products);
      EXPECT_EQ(at::globalContext().allowTF32CuDNN(), !convolutions);
      EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), !products);
    }
  }
}

}  // namespace
}  // namespace invattn

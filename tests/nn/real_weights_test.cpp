// The loader on real ImageNet weights and a photograph, where they are: ../shared/data beside the checkout.

#include <gtest/gtest.h>

#include <filesystem>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "invattn/data/mask_pairs.h"
#include "invattn/io/image_file.h"
#include "invattn/nn/resnet.h"

namespace invattn {
namespace {

TEST(RealWeights, KnowAHare) {
  const std::filesystem::path data = INVATTN_SHARED_DATA;
  const auto weights = data / "resnet50/resnet50_imagenet_keras.safetensors";
  const auto photograph = data / "camo/test/image/camourflage_00114.jpg";
  if (!std::filesystem::exists(weights) || !std::filesystem::exists(photograph)) {
    GTEST_SKIP() << "there is no " << weights.string() << " or no " << photograph.string();
  }
  constexpr int64_t kHare = 331;
  auto network = load_resnet(weights);
  EXPECT_EQ(network->options().blocks, (std::vector<int64_t>{3, 4, 6, 3}));
  EXPECT_EQ(network->options().stride_in, StrideIn::kFirst);
  EXPECT_EQ(network->options().classes, 1000);
  const at::NoGradGuard no_grad;
  const at::Tensor pixels = resized(read_image(photograph), 224, 224, /*antialias=*/true).unsqueeze(0).to(at::kFloat);
  const at::Tensor likely = network->classify(pixels).softmax(1)[0];
  EXPECT_EQ(likely.argmax().item<int64_t>(), kHare);
  EXPECT_GT(likely[kHare].item<double>(), 0.9);
}

}  // namespace
}  // namespace invattn

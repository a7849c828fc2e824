// The fast kernels behind the seam, on the CPU and on a CUDA device where there is one, against the reference.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/ops/full_precision.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"
#include "invattn/ops/response_attention.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::directional_difference_of_gradient;
using testing::gradient;
using testing::gradients;
using testing::max_difference;
using testing::random;
using testing::relative_difference;

struct Shape {
  int64_t batch, depth, values, positions;
};

AttentionInputs make_inputs(Score score, const Shape& shape, uint64_t seed, const at::TensorOptions& options, double scale = 1) {
  const int64_t depth = score == Score::kSum ? 1 : shape.depth;
  return {(random({shape.batch, depth, shape.positions}, seed) * scale).to(options),
          (random({shape.batch, depth, shape.positions}, seed + 1) * scale).to(options),
          random({shape.batch, shape.values, shape.positions}, seed + 2).to(options)};
}

AttentionInputs converted(const AttentionInputs& inputs, const at::TensorOptions& options) {
  return {inputs.query.to(options), inputs.key.to(options), inputs.value.to(options)};
}

/// A, its gradients, those of a mixture of them, and those of a mixture of the latter.
std::vector<at::Tensor> derivatives(const AttentionInputs& at, const ResponseMap& map, Kernels kernels, int orders) {
  const KernelsScope scope(kernels);
  std::vector<at::Tensor> leaves;
  for (const auto& tensor : {at.query, at.key, at.value}) leaves.push_back(tensor.detach().clone().requires_grad_(true));
  const auto weights_like = [](const at::Tensor& tensor, uint64_t seed) { return random(tensor.sizes(), seed).to(tensor.options()); };
  auto output = response_attention({leaves[0], leaves[1], leaves[2]}, map);
  std::vector<at::Tensor> all{output.detach()};
  at::Tensor mixed = (output * weights_like(output, 61)).sum();
  for (int order = 1; order <= orders; ++order) {
    const auto parts = gradients(mixed, leaves, order < orders);
    mixed = at::zeros({}, output.options());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      all.push_back(parts[i].detach());
      mixed = mixed + (parts[i] * weights_like(parts[i], 71 + 10 * order + i)).sum();
    }
  }
  return all;
}

using Case = std::tuple<at::DeviceType, Score, Response, Normalization>;

class FastAttention : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    testing::skip_without(device());
    if (IsSkipped()) return;
    if (!fast_obstacle(make_inputs(map().score, {1, 2, 3, 4}, 1, options(at::kFloat)), map()).empty()) {
      GTEST_SKIP() << "left to the reference: " << fast_obstacle(make_inputs(map().score, {1, 2, 3, 4}, 1, options(at::kFloat)), map());
    }
  }
  at::DeviceType device() const { return std::get<0>(GetParam()); }
  at::TensorOptions options(at::ScalarType type) const { return at::TensorOptions().dtype(type).device(device()); }
  ResponseMap map() const {
    const auto [device, score, response, normalization] = GetParam();
    return {score, response, normalization, 0.8};
  }
  static std::vector<Shape> shapes() { return {{2, 3, 4, 7}, {1, 1, 1, 1}, {3, 5, 2, 33}, {2, 3, 12, 70}, {0, 3, 4, 5}}; }
};

TEST_P(FastAttention, EveryDerivativeEqualsTheReference) {
  for (const auto& shape : shapes()) {
    const auto inputs = make_inputs(map().score, shape, 11, options(at::kDouble));
    const auto expected = derivatives(inputs, map(), Kernels::kReference, 3);
    const auto actual = derivatives(inputs, map(), Kernels::kFast, 3);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_LT(relative_difference(actual[i], expected[i]), 1e-9) << "result " << i << " at " << shape.positions << " positions";
    }
  }
}

TEST_P(FastAttention, SecondDerivativesEqualFiniteDifferences) {
  if (map().response == Response::kRelu) return;  // whose kinks a difference may step over
  const KernelsScope scope(Kernels::kFast);
  const auto inputs = make_inputs(map().score, {1, 2, 3, 5}, 81, options(at::kDouble));
  const auto weights = random({1, 3, 5}, 82).to(device());
  const auto check = [&](const at::Tensor& start, const auto& attention) {
    const auto first = [&](const at::Tensor& x) { return gradient((attention(x) * weights).sum(), x, true); };
    const auto x = start.detach().requires_grad_(true);
    const auto direction = random(x.sizes(), 83).to(device());
    const auto exact = gradient((first(x) * direction).sum(), x);
    EXPECT_LT(relative_difference(exact, directional_difference_of_gradient(first, start, direction, 1e-4)), 2e-5);
  };
  check(inputs.query, [&](const at::Tensor& x) { return response_attention({x, inputs.key, inputs.value}, map()); });
  check(inputs.key, [&](const at::Tensor& x) { return response_attention({inputs.query, x, inputs.value}, map()); });
  if (map().score == Score::kProduct) {  // all three from one tensor: the mixed derivatives, too
    check(inputs.query, [&](const at::Tensor& x) {
      return response_attention({x, x.flip(2), at::cat({x, inputs.value.slice(1, 0, 1)}, 1)}, map());
    });
  }
}

TEST_P(FastAttention, LinearizationEqualsTheReference) {
  for (const auto& shape : shapes()) {
    const auto inputs = make_inputs(map().score, shape, 21, options(at::kDouble));
    const auto tangents = make_inputs(map().score, shape, 31, options(at::kDouble));
    const auto cotangent = random(inputs.value.sizes(), 41).to(device());
    const auto products = [&](Kernels kernels) {
      const KernelsScope scope(kernels);
      const auto linearization = linearize_response_attention(inputs, map());
      const auto pulled = linearization->vjp(cotangent);
      return std::vector{linearization->value(), linearization->jvp(tangents), pulled.query, pulled.key, pulled.value};
    };
    const auto expected = products(Kernels::kReference);
    const auto actual = products(Kernels::kFast);
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_LT(relative_difference(actual[i], expected[i]), 1e-10) << "result " << i;
  }
}

TEST_P(FastAttention, Float32IsAtMostTwiceAsFarOffAsTheReference) {
  for (const auto& shape : {Shape{2, 3, 12, 70}, Shape{1, 12, 12, 257}, Shape{1, 3, 12, 600}}) {
    const auto rounded = make_inputs(map().score, shape, 91, options(at::kFloat));
    const auto exact = derivatives(converted(rounded, options(at::kDouble)), map(), Kernels::kReference, 2);
    const auto plain = derivatives(rounded, map(), Kernels::kReference, 2);
    const auto fast = derivatives(rounded, map(), Kernels::kFast, 2);
    // The device keeps the logarithm of a sum as one number, which is rounded like the largest score that it is compared with.
    const auto scores =
        map().score == Score::kSum ? rounded.query.transpose(1, 2) + rounded.key : at::bmm(rounded.query.transpose(1, 2), rounded.key);
    const double log_rounding = device() == at::kCUDA ? 2.4e-7 * scores.abs().max().item<double>() : 0.0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double bound = std::max(2 * relative_difference(plain[i], exact[i]), 2e-6) + log_rounding;
      EXPECT_LE(relative_difference(fast[i], exact[i]), bound) << "result " << i << " at " << shape.positions << " positions";
    }
  }
}

TEST_P(FastAttention, QueryKeyAndValueMayBeOneTensor) {
  if (map().score == Score::kSum) return;
  const auto x = random({2, 3, 21}, 3).to(options(at::kDouble));
  const auto all = [&](Kernels kernels) {
    const KernelsScope scope(kernels);
    const auto linearization = linearize_response_attention({x, x, x}, map());
    const auto pulled = linearization->vjp(x);
    return std::vector{response_attention({x, x, x}, map()), linearization->jvp({x, x, x}), pulled.query, pulled.key, pulled.value};
  };
  const auto expected = all(Kernels::kReference);
  const auto actual = all(Kernels::kFast);
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_LT(relative_difference(actual[i], expected[i]), 1e-10) << "result " << i;
}

// Said to be symmetric the gradients of query and key may come as one, and more is worked out once; the results are those of two tensors.
TEST_P(FastAttention, SymmetricInputsGiveWhatTwoEqualTensorsDo) {
  if (map().score == Score::kSum) return;
  const auto numbers = random({2, 20, 61}, 4) * 0.3, values = random({2, 20, 61}, 5), weights = random({2, 20, 61}, 6);
  enum class Key { kSymmetric, kSame, kCopy };
  const auto found = [&](Kernels kernels, at::ScalarType type, Key key, bool strided) {
    const KernelsScope scope(kernels);
    auto x = numbers.to(options(type));
    if (strided) x = at::cat({x, x}, 2).slice(2, 0, 61);
    x = x.detach().requires_grad_(true);
    const auto value = values.to(options(type)), cotangent = weights.to(options(type));
    const auto inputs =
        key == Key::kSymmetric ? AttentionInputs::of_symmetric(x, value) : AttentionInputs{x, key == Key::kCopy ? x.clone() : x, value};
    const auto output = response_attention(inputs, map());
    const auto first = gradient((output * cotangent).sum(), x, /*create_graph=*/true);
    const auto second = gradient((first * x).sum(), x);
    const auto point = linearize_response_attention(inputs, map());
    const auto pulled = point->vjp(cotangent);
    return std::vector{output.detach(), gradient((response_attention(inputs, map()) * cotangent).sum(), x),
                       first.detach(),  second,
                       point->value(),  point->jvp({x.detach(), x.detach(), value}),
                       pulled.query,    pulled.key};
  };
  const auto expected = found(Kernels::kReference, at::kDouble, Key::kCopy, false);
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto key : {Key::kSymmetric, Key::kSame, Key::kCopy}) {
      for (const bool strided : {false, true}) {
        const auto actual = found(Kernels::kFast, type, key, strided);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          EXPECT_LT(relative_difference(actual[i].to(at::kDouble), expected[i]), type == at::kDouble ? 1e-9 : 2e-5)
              << "result " << i << ", key " << static_cast<int>(key) << ", strided " << strided;
        }
      }
    }
  }
}

// One tensor as query and a part of a graph of its own as key: the gradient is the query's alone.
TEST_P(FastAttention, KeyThatOnlyLiesAtTheSamePlaceGetsNoGradient) {
  if (map().score == Score::kSum) return;
  const auto numbers = random({2, 20, 61}, 4) * 0.3, values = random({2, 20, 61}, 5), weights = random({2, 20, 61}, 6);
  const auto found = [&](Kernels kernels, at::ScalarType type) {
    const KernelsScope scope(kernels);
    const auto x = numbers.to(options(type)).detach().requires_grad_(true);
    return gradient((response_attention({x, x.detach(), values.to(options(type))}, map()) * weights.to(options(type))).sum(), x);
  };
  const auto expected = found(Kernels::kReference, at::kDouble);
  for (const auto type : {at::kDouble, at::kFloat}) {
    EXPECT_LT(relative_difference(found(Kernels::kFast, type).to(at::kDouble), expected), type == at::kDouble ? 1e-9 : 2e-5);
  }
}

TEST_P(FastAttention, NonContiguousInputGivesTheSame) {
  const auto wide = make_inputs(map().score, {2, 3, 4, 74}, 15, options(at::kFloat));
  const auto every_second = [](const at::Tensor& all) { return all.slice(2, 0, 74, 2); };
  const AttentionInputs strided{every_second(wide.query), every_second(wide.key), every_second(wide.value)};
  const AttentionInputs packed{strided.query.contiguous(), strided.key.contiguous(), strided.value.contiguous()};
  const auto expected = derivatives(packed, map(), Kernels::kFast, 2);
  const auto actual = derivatives(strided, map(), Kernels::kFast, 2);
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << "result " << i;
}

TEST_P(FastAttention, NanStaysInItsSample) {
  const KernelsScope scope(Kernels::kFast);
  auto inputs = make_inputs(map().score, {3, 3, 4, 40}, 7, options(at::kFloat));
  const auto clean = response_attention(inputs, map());
  inputs.query[1][0][5] = std::numeric_limits<float>::quiet_NaN();
  const auto spoilt = response_attention(inputs, map());
  EXPECT_FALSE(spoilt[1].isfinite().all().item<bool>());
  EXPECT_TRUE(at::equal(spoilt[0], clean[0]));
  EXPECT_TRUE(at::equal(spoilt[2], clean[2]));
}

TEST_P(FastAttention, IsBitwiseRepeatable) {
  const auto inputs = make_inputs(map().score, {2, 3, 12, 700}, 5, options(at::kFloat));
  const auto once = derivatives(inputs, map(), Kernels::kFast, 2);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  const auto again = derivatives(inputs, map(), Kernels::kFast, 2);
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << "result " << i;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto device : {at::kCPU, at::kCUDA}) {
    for (const auto score : {Score::kProduct, Score::kSum}) {
      for (const auto& [response, response_name] : EnumNames<Response>::kNames) {
        for (const auto& [normalization, normalization_name] : EnumNames<Normalization>::kNames) {
          const bool has_sign = response == Response::kElu || response == Response::kIdentity;
          if (has_sign && normalization != Normalization::kCount) continue;  // sums that cross zero: nothing to compare
          result.emplace_back(device, score, response, normalization);
        }
      }
    }
  }
  return result;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto [device, score, response, normalization] = info.param;
  std::string name = device == at::kCUDA ? "cuda_" : "cpu_";
  name += score == Score::kSum ? "sum_" : "product_";
  name += std::string(to_string(response)) + "_" + std::string(to_string(normalization));
  std::replace(name.begin(), name.end(), '+', 'p');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, FastAttention, ::testing::ValuesIn(cases()), case_name);

TEST(FastKernels, CoverTheKindsOfThePaper) {
  for (const auto& [score, response] :
       {std::pair{Score::kProduct, Response::kExponential}, std::pair{Score::kProduct, Response::kEluPlusOne},
        std::pair{Score::kSum, Response::kEluPlusOne}, std::pair{Score::kSum, Response::kRelu}}) {
    for (const auto normalization : {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kBalanced}) {
      EXPECT_EQ(fast_obstacle(make_inputs(score, {1, 3, 12, 9}, 1, at::kFloat), {score, response, normalization, 1}), "");
    }
  }
}

TEST(FastKernels, WhatTheyDoNotCoverIsAnErrorOnlyWhereTheyAreDemanded) {
  const ResponseMap map{Score::kSum, Response::kSoftplus, Normalization::kColumns, 1};
  const auto inputs = make_inputs(map.score, {1, 1, 2, 5}, 1, at::kDouble);
  ASSERT_NE(fast_obstacle(inputs, map).find("softplus"), std::string::npos);
  const auto with = [&](Kernels kernels) {
    const KernelsScope scope(kernels);
    return response_attention(inputs, map);
  };
  EXPECT_TRUE(at::equal(with(Kernels::kAuto), with(Kernels::kReference)));
  try {
    with(Kernels::kFast);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("softplus"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("auto"), std::string::npos) << error.what();
  }
}

// Torch's switch for products in TF32: many values go by it, forward and derivatives as the forward pass found it; FullPrecision turns it off.
TEST(FastKernels, cuda_ProductsAreInTf32WhereTorchAllowsThem) {
  if (!testing::has_gpu()) GTEST_SKIP() << "needs a GPU, and there is none";
  const FullPrecision as_it_was;  // restores the switch at the end
  for (const int64_t depth : {8, 32}) {
    const ResponseMap map{Score::kProduct, Response::kExponential, Normalization::kBalanced, 1};
    const auto inputs = make_inputs(map.score, {2, depth, 32, 200}, 3, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA), 0.3);
    const auto results = [&](bool allowed) {
      at::globalContext().setAllowTF32CuBLAS(allowed);
      return derivatives(inputs, map, Kernels::kFast, 2);
    };
    const auto exact = derivatives(converted(inputs, at::kDouble), map, Kernels::kReference, 2);
    const auto rough = results(true), full = results(false);
    std::vector<at::Tensor> guarded;
    at::globalContext().setAllowTF32CuBLAS(true);
    {
      const FullPrecision precise;
      guarded = derivatives(inputs, map, Kernels::kFast, 2);
    }
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LT(relative_difference(full[i].to(at::kDouble), exact[i]), 2e-5) << "result " << i << ", depth " << depth;
      const double difference = relative_difference(rough[i].to(at::kDouble), exact[i]);
      EXPECT_LT(difference, 5e-3) << "result " << i << ", depth " << depth;
      EXPECT_GT(difference, 2e-5) << "result " << i << ", depth " << depth;
      EXPECT_TRUE(at::equal(guarded[i], full[i])) << "result " << i << ", depth " << depth;
    }
    const auto leaf = inputs.value.detach().clone().requires_grad_(true);  // the switch is the forward pass's
    at::globalContext().setAllowTF32CuBLAS(true);
    const auto weights = random(leaf.sizes(), 61).to(leaf.options());
    const KernelsScope scope(Kernels::kFast);
    const auto sum = (response_attention({inputs.query, inputs.key, leaf}, map) * weights).sum();
    at::globalContext().setAllowTF32CuBLAS(false);
    EXPECT_TRUE(at::equal(gradient(sum, leaf), rough[3])) << "depth " << depth;
  }
}

TEST(FastKernels, UseTorchsThreads) {
  const int threads = at::get_num_threads();
  for (const int wanted : {1, 3}) {
    at::set_num_threads(wanted);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    torch_threads()(300, 1, [&](int64_t, int64_t) {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(static_cast<int>(seen.size()), wanted);
  }
  at::set_num_threads(threads);
}

TEST(FastKernels, AScopeEnds) {
  const auto before = chosen_kernels();
  {
    const KernelsScope scope(Kernels::kReference);
    EXPECT_EQ(chosen_kernels(), Kernels::kReference);
  }
  EXPECT_EQ(chosen_kernels(), before);
}

}  // namespace
}  // namespace invattn

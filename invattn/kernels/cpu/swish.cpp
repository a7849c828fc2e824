// With t = beta x, s = sigmoid(t), a = s (1 - s) and q = a (2 + t (1 - 2 s)), without the scale:
//   f = x s,  f' = s + t a,  f'' = beta q,  df/dbeta = x^2 a,  df'/dbeta = x q.
// The other half of a pair, f(x) - x, has the slope f' - 1 and the same other derivatives.
#include "invattn/kernels/swish.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "invattn/kernels/cpu/swish.cpp"
#include <hwy/foreach_target.h>
// After foreach_target: the code below is compiled once per instruction set.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "invattn/kernels/cpu/exponential-inl.h"
#include "invattn/kernels/cpu/swish_pass.h"

HWY_BEFORE_NAMESPACE();
namespace invattn::kernels::cpu::HWY_NAMESPACE {

enum class Work { kForward, kJvp, kVjp, kHvp };

/// One vector from entry `i` on; returns what it adds to df/dbeta or its change.
template <Work kWork, class D>
HWY_INLINE hn::Vec<D> swish_vector(D d, const SwishPass& pass, int64_t i) {
  const auto one = hn::Set(d, 1.0f);
  const auto scale = hn::Set(d, pass.scale);
  const auto x = hn::LoadU(d, pass.inputs[0] + i);
  const auto t = hn::Mul(hn::Set(d, pass.beta), x);
  // Up to 2^126, so that nothing overflows: beyond, s is zero for all purposes.
  const auto power = hn::Min(hn::Set(d, 126.0f), hn::Mul(hn::Set(d, -1.4426950408889634f), t));
  const auto e = exp2(d, power);
  const auto s = hn::Div(one, hn::Add(one, e));
  const auto rest = hn::Mul(e, s);  // 1 - s, with all its digits
  if constexpr (kWork == Work::kForward) {
    hn::StoreU(hn::Mul(hn::Mul(scale, x), s), d, pass.outputs[0] + i);
    if (pass.outputs[1] != nullptr) hn::StoreU(hn::Neg(hn::Mul(hn::Mul(scale, x), rest)), d, pass.outputs[1] + i);
    return hn::Zero(d);
  } else {
    const auto a = hn::Mul(s, rest);
    const auto slope = hn::MulAdd(t, a, s);
    if constexpr (kWork == Work::kVjp) {
      auto sum = hn::LoadU(d, pass.inputs[2] + i);
      auto product = hn::Mul(sum, slope);
      if (pass.inputs[3] != nullptr) {
        const auto second = hn::LoadU(d, pass.inputs[3] + i);
        product = hn::MulAdd(second, hn::Sub(slope, one), product);
        sum = hn::Add(sum, second);
      }
      hn::StoreU(hn::Mul(scale, product), d, pass.outputs[2] + i);
      return hn::Mul(hn::Mul(sum, a), hn::Mul(x, x));
    } else {
      const auto tangent = hn::LoadU(d, pass.inputs[1] + i);
      const auto scaled = hn::Mul(scale, tangent);
      hn::StoreU(hn::Mul(scaled, slope), d, pass.outputs[0] + i);
      if (pass.outputs[1] != nullptr) hn::StoreU(hn::Mul(scaled, hn::Sub(slope, one)), d, pass.outputs[1] + i);
      if constexpr (kWork == Work::kJvp) return hn::Zero(d);
      auto sum = hn::LoadU(d, pass.inputs[2] + i);
      if (pass.inputs[3] != nullptr) sum = hn::Add(sum, hn::LoadU(d, pass.inputs[3] + i));
      const auto curvature = hn::Mul(a, hn::MulAdd(t, hn::Sub(rest, s), hn::Set(d, 2.0f)));
      const auto both = hn::Mul(hn::Mul(tangent, sum), curvature);
      hn::StoreU(hn::Mul(hn::Set(d, pass.scale * pass.beta), both), d, pass.outputs[2] + i);
      return hn::Mul(both, x);
    }
  }
}

template <Work kWork>
double sweep(const SwishPass& pass) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sums = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= pass.count; i += lanes) sums = hn::Add(sums, swish_vector<kWork>(d, pass, i));
  if (i < pass.count) {
    // The rest by a full vector of copies: zeros add nothing.
    HWY_ALIGN float copies[SwishPass::kInputs + SwishPass::kOutputs][hn::MaxLanes(d)] = {};
    SwishPass rest = pass;
    for (int k = 0; k < SwishPass::kInputs; ++k) {
      if (pass.inputs[k] == nullptr) continue;
      std::copy(pass.inputs[k] + i, pass.inputs[k] + pass.count, copies[k]);
      rest.inputs[k] = copies[k];
    }
    for (int k = 0; k < SwishPass::kOutputs; ++k) {
      if (pass.outputs[k] != nullptr) rest.outputs[k] = copies[SwishPass::kInputs + k];
    }
    sums = hn::Add(sums, swish_vector<kWork>(d, rest, 0));
    for (int k = 0; k < SwishPass::kOutputs; ++k) {
      if (pass.outputs[k] != nullptr) std::copy(rest.outputs[k], rest.outputs[k] + (pass.count - i), pass.outputs[k] + i);
    }
  }
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sums)));
}

double sweep_forward(const SwishPass& pass) { return sweep<Work::kForward>(pass); }
double sweep_jvp(const SwishPass& pass) { return sweep<Work::kJvp>(pass); }
double sweep_vjp(const SwishPass& pass) { return sweep<Work::kVjp>(pass); }
double sweep_hvp(const SwishPass& pass) { return sweep<Work::kHvp>(pass); }

}  // namespace invattn::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace invattn::kernels::cpu {

HWY_EXPORT(sweep_forward);
HWY_EXPORT(sweep_jvp);
HWY_EXPORT(sweep_vjp);
HWY_EXPORT(sweep_hvp);

namespace {

/// What a sweep takes at once, and what a thread takes at least.
constexpr int64_t kPiece = 4096;
constexpr int64_t kGrain = 16384;

struct Arrays {
  const float* x = nullptr;
  const float* tangent = nullptr;
  const float* cotangent = nullptr;
  float* result = nullptr;
  float* of_x = nullptr;
};

/// Runs `sweep` on pieces of rows and returns the sum of what they return, in the order of the pieces whatever the threads.
template <class Sweep>
double run(const SwishProblem& problem, float beta, const Arrays& arrays, const ParallelFor& parallel, const Sweep& sweep) {
  const int64_t row_pieces = (problem.width + kPiece - 1) / kPiece;
  const int64_t pieces = problem.rows * row_pieces;
  std::vector<double> sums(pieces);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t row = piece / row_pieces;
      const int64_t column = piece % row_pieces * kPiece;
      const int64_t from = row * problem.width + column;
      const int64_t wide = (problem.pair ? 2 : 1) * row * problem.width + column;  // the same place in the result
      const auto place = [](auto* array, int64_t offset, bool wanted = true) {
        return array != nullptr && wanted ? array + offset : nullptr;
      };
      sums[piece] = sweep(SwishPass{
          .inputs = {place(arrays.x, from), place(arrays.tangent, from), place(arrays.cotangent, wide),
                     place(arrays.cotangent, wide + problem.width, problem.pair)},
          .outputs = {place(arrays.result, wide), place(arrays.result, wide + problem.width, problem.pair), place(arrays.of_x, from)},
          .count = std::min(kPiece, problem.width - column),
          .beta = beta,
          .scale = problem.scale});
    }
  };
  if (parallel) {
    parallel(pieces, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, std::min(kPiece, problem.width))), body);
  } else {
    body(0, pieces);
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum * problem.scale;
}

float softplus(float b) { return b > 20 ? b : std::log1p(std::exp(b)); }
/// d softplus(b) / d b
double softplus_slope(float b) { return 1 / (1 + std::exp(-static_cast<double>(b))); }

}  // namespace

void swish_forward(const SwishProblem& problem, const float* x, float b, float* result, const ParallelFor& parallel) {
  run(problem, softplus(b), {.x = x, .result = result}, parallel,
      [](const SwishPass& pass) { return HWY_DYNAMIC_DISPATCH(sweep_forward)(pass); });
}

void swish_jvp(const SwishProblem& problem, const float* x, float b, const float* tangent, float* result, const ParallelFor& parallel) {
  run(problem, softplus(b), {.x = x, .tangent = tangent, .result = result}, parallel,
      [](const SwishPass& pass) { return HWY_DYNAMIC_DISPATCH(sweep_jvp)(pass); });
}

void swish_vjp(const SwishProblem& problem, const float* x, float b, const float* cotangent, float* of_x, float* of_b,
               const ParallelFor& parallel) {
  const double sum = run(problem, softplus(b), {.x = x, .cotangent = cotangent, .of_x = of_x}, parallel,
                         [](const SwishPass& pass) { return HWY_DYNAMIC_DISPATCH(sweep_vjp)(pass); });
  if (of_b != nullptr) *of_b = static_cast<float>(sum * softplus_slope(b));
}

void swish_hvp(const SwishProblem& problem, const float* x, float b, const float* cotangent, const float* tangent, float* result,
               float* of_x, float* of_b, const ParallelFor& parallel) {
  const double sum = run(problem, softplus(b), {.x = x, .tangent = tangent, .cotangent = cotangent, .result = result, .of_x = of_x},
                         parallel, [](const SwishPass& pass) { return HWY_DYNAMIC_DISPATCH(sweep_hvp)(pass); });
  *of_b = static_cast<float>(sum * softplus_slope(b));
}

}  // namespace invattn::kernels::cpu
#endif

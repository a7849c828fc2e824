#include "invattn/nn/given.h"

#include <ATen/ATen.h>

#include "invattn/core/error.h"

namespace invattn {

Given Given::of_lengths(const at::Tensor& lengths, int64_t positions) {
  constexpr const char* kOrigin = "lengths";
  require(positions >= 0, kOrigin, "expected a number of positions, got ", positions, ".");
  require(lengths.defined() && lengths.dim() == 1 && lengths.scalar_type() == at::kLong, kOrigin,
          "expected one length (int64) for each sample, (B), got ", lengths.defined() ? lengths.toString() : "an undefined tensor", " ",
          lengths.defined() ? lengths.sizes() : at::IntArrayRef{}, ".");
  if (lengths.numel() > 0) {
    const auto [least, most] = at::aminmax(lengths);
    require(least.item<int64_t>() >= 0 && most.item<int64_t>() <= positions, kOrigin, "expected lengths from 0 to the ", positions,
            " positions there are, got ", least.item<int64_t>(), " to ", most.item<int64_t>(), ". Correct them, or pad to more positions.");
  }
  return {at::arange(positions, lengths.options()).unsqueeze(0) < lengths.unsqueeze(1)};
}

void Given::check(const at::Tensor& x, const char* origin) const {
  if (!mask.defined()) return;
  require(x.dim() == 3, origin, "expected sequences (B, N, C) with a mask, got ", x.sizes(),
          ". Leave the mask out, or flatten an image's "
          "positions: x.flatten(2).transpose(1, 2).");
  require(mask.scalar_type() == at::kBool, origin, "expected a mask of bool, true where a position is real, got ", mask.scalar_type(),
          ". Convert it with .to(at::kBool), or give lengths.");
  require(mask.dim() == 2 && mask.size(0) == x.size(0) && mask.size(1) == x.size(1), origin, "expected a mask (B, N), [", x.size(0), ", ",
          x.size(1), "], for x of shape ", x.sizes(), ", got ", mask.sizes(), ".");
}

void Given::refuse(const char* origin, const char* reason) const {
  require(!mask.defined(), origin, "expected no mask, got one of shape ", mask.defined() ? mask.sizes() : at::IntArrayRef{}, ": ", reason,
          ". Leave it out.");
}

Given Given::select(const at::Tensor& samples) const {
  return {mask.defined() ? mask.index_select(0, samples.to(mask.device())) : at::Tensor()};
}

}  // namespace invattn

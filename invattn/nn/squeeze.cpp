#include "invattn/nn/squeeze.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <ostream>
#include <tuple>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/io/json_fields.h"

namespace invattn {
namespace {

constexpr const char* kReason = "it makes channels of the pixels of images";

}  // namespace

SqueezeImpl::SqueezeImpl(SqueezeOptions options) : options_(options) {
  require(options_.factor > 0, "Squeeze", "expected a positive factor, got ", options_.factor, ".");
  require_range("Squeeze", "factor", options_.factor, int64_t{1}, kLargestSide);
}

at::Tensor SqueezeImpl::forward(const at::Tensor& x, const Given& given) {
  given.refuse("Squeeze", kReason);
  require_images(x, "Squeeze");
  require(x.size(2) % options_.factor == 0 && x.size(3) % options_.factor == 0, "Squeeze", "expected height and width divisible by ",
          options_.factor, ", got ", x.size(2), " x ", x.size(3), ". Crop or pad the images.");
  // Written out, because at::pixel_unshuffle returns an empty batch as it is.
  const auto f = options_.factor;
  const auto [batch, channels, height, width] = std::tuple(x.size(0), x.size(1), x.size(2) / f, x.size(3) / f);
  if (x.suggest_memory_format() == at::MemoryFormat::ChannelsLast) {  // stays so: the same, with the channels behind
    const auto behind = x.permute({0, 2, 3, 1}).reshape({batch, height, f, width, f, channels}).permute({0, 1, 3, 5, 2, 4});
    return behind.reshape({batch, height, width, channels * f * f}).permute({0, 3, 1, 2});
  }
  return x.reshape({batch, channels, height, f, width, f}).permute({0, 1, 3, 5, 2, 4}).reshape({batch, channels * f * f, height, width});
}

std::pair<at::Tensor, LogDet> SqueezeImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given) {
  auto y = forward(x, given);
  return {y, exact_log_det(at::zeros({x.size(0)}, x.options()), options)};
}

Solution SqueezeImpl::inverse(const at::Tensor& y, const SolverOptions& /*options*/, const Given& given) {
  given.refuse("Squeeze", kReason);
  require_images(y, "Squeeze");
  const auto block = options_.factor * options_.factor;
  require(y.size(1) % block == 0, "Squeeze", "expected a number of channels divisible by ", block, ", got ", y.size(1), ".");
  const auto f = options_.factor;
  const auto [batch, channels, height, width] = std::tuple(y.size(0), y.size(1) / block, y.size(2), y.size(3));
  const auto x =
      y.reshape({batch, channels, f, f, height, width}).permute({0, 1, 4, 2, 5, 3}).reshape({batch, channels, height * f, width * f});
  return {x, InverseReport::exact(y.size(0), "squeeze")};
}

std::string SqueezeImpl::describe() const { return nlohmann::json{{"type", "squeeze"}, {"options", fields_to_json(options_)}}.dump(); }

void SqueezeImpl::pretty_print(std::ostream& stream) const { stream << "Squeeze(" << print_fields(options_) << ")"; }

}  // namespace invattn

#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/names.h"
#include "invattn/nn/attention.h"
#include "invattn/ops/kernels.h"

namespace invattn::tool {

/// What is measured.
enum class Work {
  kInverse,  ///< x from y: the reference takes the paper's 100 fixed-point steps, the fast path Anderson's to 1e-6
  kForward,  ///< y = x + g(x) without gradients
  kTrain,    ///< forward, squared loss, gradients of all weights, one step of Adam
};

/// The log-determinant in the loss of a training step.
enum class LogDetTerm { kNone, kSeries, kRoulette };

}  // namespace invattn::tool

template <>
struct invattn::EnumNames<invattn::tool::Work> {
  static constexpr std::string_view kWhat = "the work";
  static constexpr std::array<std::pair<tool::Work, std::string_view>, 3> kNames{
      {{tool::Work::kInverse, "inverse"}, {tool::Work::kForward, "forward"}, {tool::Work::kTrain, "train"}}};
};

template <>
struct invattn::EnumNames<invattn::tool::LogDetTerm> {
  static constexpr std::string_view kWhat = "a log-determinant";
  static constexpr std::array<std::pair<tool::LogDetTerm, std::string_view>, 3> kNames{
      {{tool::LogDetTerm::kNone, "none"}, {tool::LogDetTerm::kSeries, "series"}, {tool::LogDetTerm::kRoulette, "roulette"}}};
};

namespace invattn::tool {

struct BenchCase {
  Work work = Work::kForward;
  AttentionKind kind = AttentionKind::kGaussian;
  Normalization normalization = Normalization::kColumns;
  std::vector<int64_t> shape{};  // B, C, H, W
  at::Device device = at::kCPU;
  Kernels kernels = Kernels::kAuto;        ///< of the fast path
  LogDetTerm log_det = LogDetTerm::kNone;  ///< of a training step
  bool guard = false;                      ///< a training step with the guard's penalty
  int64_t repeats = 0;                     ///< timed runs of both; 0: by how long they take

  int64_t positions() const { return shape[2] * shape[3]; }
};

/// The shape as users write it: "64x12x16x16".
std::string shape_text(const std::vector<int64_t>& shape);
std::vector<int64_t> parse_shape(const std::string& text, std::string_view origin);

/// How well an inverse did.
struct InverseFigures {
  int64_t iterations = 0;
  double residual = 0;    ///< rms(x + g(x) - y) / (1 + rms(y)), largest over the samples
  double round_trip = 0;  ///< largest |x - the x that y was made from|
  bool converged = true;
};

/// One of the two that are compared.
struct BenchSide {
  double milliseconds = 0;  ///< median
  int64_t runs = 0;
  std::optional<double> memory{};  ///< MiB at most beyond what was there before; of a training step forward and gradient
  std::optional<InverseFigures> inverse{};
};

struct BenchRow {
  BenchCase what;
  double constant = 0;  ///< the largest local Lipschitz constant of g on the input
  BenchSide reference;
  BenchSide fast;
  double difference = 0;  ///< largest, between the entries of both results (outputs, x, or gradients of weights)
  double largest = 0;     ///< entry of the reference's result
  std::string obstacle;   ///< as obstacle_of says

  double ratio() const { return reference.milliseconds / fast.milliseconds; }
  /// Relative to the largest entry.
  double relative_difference() const { return largest > 0 ? difference / largest : difference; }
};

/// Why the fast path of this case is the reference after all, or nothing where it is not.
std::string obstacle_of(const BenchCase& what);

/// Both side by side: the same weights, the same input, in turn.
BenchRow run_case(const BenchCase& what);

/// Until everything that was asked of it is done.
void wait_for(at::Device device);

double median_milliseconds(std::vector<double> seconds);

/// Memory of the first run, then the median time of `repeats` more; 0: by how long they take.
BenchSide measure(const std::function<void()>& work, at::Device device, int64_t repeats);

/// Forward and gradient by the chosen kernels alone.
BenchSide run_gradient(const BenchCase& what);

}  // namespace invattn::tool

#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/core/names.h"

namespace invattn {

/// The distribution of the random vectors v of Hutchinson's trace estimate tr(A) = E[v'Av]; both have mean 0 and covariance I.
enum class Probe {
  kRademacher,  ///< entries -1 and 1: the smallest variance, exact on diagonal matrices
  kGaussian,    ///< standard normal entries: the variance depends on the eigenvalues of (A + A')/2 only, not on the basis
};

template <>
struct EnumNames<Probe> {
  static constexpr std::string_view kWhat = "the probe";
  static constexpr std::array<std::pair<Probe, std::string_view>, 2> kNames{{
      {Probe::kRademacher, "rademacher"},
      {Probe::kGaussian, "gaussian"},
  }};
};

/// How an estimator's value is differentiated. Both gradients have the same expectation (see SeriesLogDet and RouletteLogDet).
enum class LogDetGradient {
  kNeumann,  ///< v'(I + J)^-1 dJ v, the inverse as a series of graph-free products: the graph of one vjp per probe. First derivatives only
  kSeries,   ///< through every term: the graphs of all vjps stay in memory, any order of derivative
};

template <>
struct EnumNames<LogDetGradient> {
  static constexpr std::string_view kWhat = "the gradient";
  static constexpr std::array<std::pair<LogDetGradient, std::string_view>, 2> kNames{{
      {LogDetGradient::kNeumann, "neumann"},
      {LogDetGradient::kSeries, "series"},
  }};
};

/// One probe per sample and the weights of its series.
struct ProbeDraw {
  at::Tensor probe;    ///< v, (B, ...): type, device and shape of x
  at::Tensor weights;  ///< (terms, B), or (terms, 1) where all samples have the same; on the CPU
};

/// What was drawn for an estimate, so that it can be computed a second time: from `next` on it is given again, behind its end new draws are
/// kept.
struct LogDetDraws {
  std::vector<ProbeDraw> kept;
  std::size_t next = 0;
};

/// The truncated power series sum_{k=1..n} (-1)^(k+1) v'J^k v / k, averaged over probes.
///
/// Its expectation is sum_{k=1..n} (-1)^(k+1) tr(J^k) / k: biased by at most `series_remainder`. The gradient's expectation is, for
/// both ways of making it, the exact gradient of that truncated sum, tr(sum_{k=0..n-1} (-J)^k dJ).
struct SeriesLogDet {
  /// n, the number of powers of J. With the Lipschitz constant c of the branch the bias shrinks as c^(n+1).
  int64_t terms = 10;
  /// As of RouletteLogDet.
  int64_t guarded_terms = 0;
  /// Independent probes per sample; the cost is proportional. The standard error needs at least two.
  int64_t probes = 1;
  Probe probe = Probe::kRademacher;
  LogDetGradient gradient = LogDetGradient::kNeumann;
  /// -1 draws from torch's default generator of the device of x. Another seed starts a private generator on the CPU at every call: the same
  /// call then gives the same numbers, which suits evaluation and not training, where each step wants new probes.
  int64_t seed = -1;
  /// Where the same estimate is computed twice (nn/recompute.h): keeps what is drawn. No option of a configuration.
  std::shared_ptr<LogDetDraws> draws = nullptr;
  /// Leaves standard error and sign undefined: a training step reads neither, and on a GPU each part of a chain would launch kernels for them.
  /// No option of a configuration.
  bool value_only = false;

  /// Throws a usage error that names the first field out of range.
  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("terms", self.terms, "number of powers of the Jacobian");
    field("guarded_terms", self.guarded_terms, "further terms of branches whose constant is measured");
    field("probes", self.probes, "independent random vectors per sample");
    field("probe", self.probe, "their distribution");
    field("gradient", self.gradient, "how the value is differentiated");
    field("seed", self.seed, "seed of the probes; -1: the default generator");
  }
};

/// The unbiased series: every sample (and every probe) draws its own number of terms N, and term k is divided by P(N >= k).
///
/// Its expectation is log det(I + J), and that of its gradient, for both ways of making it, is the gradient of log det(I + J). The
/// same N cuts the value's series and the Neumann series of the gradient.
///
/// The price is variance: it is sure to be finite where (spectral radius of J)^2 < `continuation`. The default covers branches held under 0.9; nearer to 1,
/// raise `continuation`, or `minimum_terms` to shrink what the rare long draws contribute.
struct RouletteLogDet {
  /// Terms that are always computed, with weight 1.
  int64_t minimum_terms = 2;
  /// The probability p of going on after each later term: P(N >= k) = p^(k - minimum_terms), p / (1 - p) further terms on average.
  /// With gradients a batch costs as much as its longest draw, without them about two mean ones.
  double continuation = 0.85;
  /// Terms beyond the minimum come in groups of so many: a group is computed as a whole, with the probability continuation^stride of going on to
  /// it. Fewer numbers of terms are then possible, each of which a captured training step needs a graph for.
  int64_t stride = 1;
  /// Further terms that are always computed in branches whose constant is measured and not known (policies guarded and paper): attention blocks
  /// of a flow are few and cheap, and now and then a sample has a constant far above those of most.
  int64_t guarded_terms = 0;
  /// N of all samples and probes, drawn by the caller (draw_terms); 0: each draws its own. A loss over many samples and blocks stays
  /// unbiased if they share one draw per step, and the step is then one of a few that can be captured (train/captured_step.h).
  int64_t terms = 0;
  /// Independent probes per sample, each with its own N; the cost is proportional. The standard error needs at least two.
  int64_t probes = 1;
  Probe probe = Probe::kRademacher;
  LogDetGradient gradient = LogDetGradient::kNeumann;
  /// As in SeriesLogDet; the draws of N come from the CPU's generator in any case.
  int64_t seed = -1;
  /// As in SeriesLogDet.
  std::shared_ptr<LogDetDraws> draws = nullptr;
  bool value_only = false;

  /// Throws a usage error that names the first field out of range.
  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("minimum_terms", self.minimum_terms, "terms that are always computed");
    field("continuation", self.continuation, "probability of going on after each later term");
    field("stride", self.stride, "later terms come in groups of so many");
    field("guarded_terms", self.guarded_terms, "further terms of branches whose constant is measured, always computed");
    field("terms", self.terms, "number of terms of all samples, drawn by the caller; 0: each draws its own");
    field("probes", self.probes, "independent random vectors per sample");
    field("probe", self.probe, "their distribution");
    field("gradient", self.gradient, "how the value is differentiated");
    field("seed", self.seed, "seed of the probes and of the numbers of terms; -1: the default generator");
  }
};

/// The full Jacobian, d products and an LU factorisation per sample: for small sizes and for checking the estimators.
///
/// The Jacobian has the type of x; the factorisation runs in float64. Differentiable to any order, with d graphs in memory.
struct ExactLogDet {
  /// Samples with more entries are refused: the Jacobian alone holds dimension^2 numbers per sample.
  int64_t max_dimension = 4096;

  /// Throws a usage error that names the first field out of range.
  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("max_dimension", self.max_dimension, "largest number of entries per sample that is accepted");
  }
};

/// A number of terms for RouletteLogDet::terms.
int64_t draw_terms(const RouletteLogDet& options, at::Generator generator);

using LogDetOptions = std::variant<SeriesLogDet, RouletteLogDet, ExactLogDet>;

/// For a branch whose constant is measured: with the `guarded_terms` among those that are always computed.
LogDetOptions with_guarded_terms(LogDetOptions options);

/// Whether standard errors and signs are to stay undefined.
bool value_only(const LogDetOptions& options);

/// "series(terms=10, probes=1, …)", "roulette(…)" or "exact(…)".
std::string describe(const LogDetOptions& options);

/// The bound c^(n+1) / ((n+1) (1-c)) * d on what the series leaves out after n terms, where `lipschitz` = c < 1 bounds the spectral
/// norm of J and `dimension` = d is the number of entries per sample. A bound on the bias; the probes' noise comes on top.
double series_remainder(double lipschitz, int64_t terms, int64_t dimension);

}  // namespace invattn

#include "invattn/logdet/options.h"

#include <cmath>
#include <limits>
#include <utility>

#include "invattn/core/field_error.h"

namespace invattn {
namespace {

/// The fields that both estimators have.
template <class Options>
void validate_sampling(const Options& options, std::string_view origin) {
  require_field(options.guarded_terms >= 0, origin, "guarded_terms", "expected guarded_terms >= 0, got ", options.guarded_terms, ".");
  require_field(options.probes >= 1, origin, "probes", "expected probes >= 1, got ", options.probes, ". One probe is enough for training.");
  require_field(options.seed >= -1, origin, "seed", "expected a seed >= 0, or -1 for the default generator, got ", options.seed,
                ". Pass -1 and call torch::manual_seed to reproduce a whole run.");
}

}  // namespace

void SeriesLogDet::validate() const {
  require_field(terms >= 1, "SeriesLogDet", "terms", "expected terms >= 1, got ", terms,
                ". Ten terms suit a branch with constant 0.9 in training.");
  validate_sampling(*this, "SeriesLogDet");
}

void RouletteLogDet::validate() const {
  require_field(minimum_terms >= 1, "RouletteLogDet", "minimum_terms", "expected minimum_terms >= 1, got ", minimum_terms,
                ". The first term has the largest variance: always compute it.");
  require_field(continuation > 0 && continuation < 1, "RouletteLogDet", "continuation", "expected 0 < continuation < 1, got ", continuation,
                ". Use SeriesLogDet for a fixed number of terms.");
  require_field(stride >= 1, "RouletteLogDet", "stride", "expected stride >= 1, got ", stride,
                ". With 1 any number of terms may be drawn.");
  const double goes_on = std::pow(continuation, static_cast<double>(stride));
  require_fields(goes_on < 1 && goes_on > std::numeric_limits<double>::epsilon(), "RouletteLogDet", {"continuation", "stride"},
                 "expected a continuation to the power of the stride between 2e-16 and 1, got ", goes_on,
                 ". Use SeriesLogDet for a fixed number of terms.");
  require_field(terms == 0 || (terms >= minimum_terms && (terms - minimum_terms) % stride == 0), "RouletteLogDet", "terms",
                "expected terms = minimum_terms, ", minimum_terms, ", or that and a multiple of the stride, ", stride,
                ", or 0 for draws of its own, got ", terms, ". Draw it with draw_terms.");
  validate_sampling(*this, "RouletteLogDet");
}

void ExactLogDet::validate() const {
  require_field(max_dimension >= 1, "ExactLogDet", "max_dimension", "expected max_dimension >= 1, got ", max_dimension,
                ". Give the number of entries per sample.");
}

LogDetOptions with_guarded_terms(LogDetOptions options) {
  if (auto* series = std::get_if<SeriesLogDet>(&options)) series->terms += std::exchange(series->guarded_terms, 0);
  if (auto* roulette = std::get_if<RouletteLogDet>(&options)) {
    const auto more = std::exchange(roulette->guarded_terms, 0);
    roulette->minimum_terms += more;
    if (roulette->terms > 0) roulette->terms += more;
  }
  return options;
}

bool value_only(const LogDetOptions& options) {
  return std::visit(
      [](const auto& chosen) {
        if constexpr (requires { chosen.value_only; }) return chosen.value_only;
        return false;
      },
      options);
}

std::string describe(const LogDetOptions& options) {
  constexpr std::array<std::string_view, 3> kMethods{"series", "roulette", "exact"};
  return std::visit([&](const auto& chosen) { return std::string(kMethods.at(options.index())) + "(" + print_fields(chosen) + ")"; },
                    options);
}

double series_remainder(double lipschitz, int64_t terms, int64_t dimension) {
  require(lipschitz >= 0 && lipschitz < 1, "series_remainder", "expected a Lipschitz constant in [0, 1), got ", lipschitz,
          ". The series converges only where the branch is a contraction.");
  require(terms >= 0, "series_remainder", "expected terms >= 0, got ", terms, ". Give the number of terms that are summed.");
  require(dimension >= 0, "series_remainder", "expected dimension >= 0, got ", dimension, ". Give the number of entries per sample.");
  const auto next = static_cast<double>(terms + 1);
  return std::pow(lipschitz, next) / (next * (1 - lipschitz)) * static_cast<double>(dimension);
}

}  // namespace invattn

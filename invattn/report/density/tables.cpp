#include "invattn/report/density/tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>

#include "invattn/report/frame.h"
#include "invattn/report/naming.h"

namespace invattn::reporting {
namespace {

std::string milliseconds_per_step(const DensityRecord& record) {
  return record.steps > 0 ? short_number(1000 * record.seconds / static_cast<double>(record.steps)) : "";
}

/// The last value at or before `limit` along the list that `axis` chooses.
double value_at(const DensityCurve& curve, std::vector<double> DensityCurve::*axis, double limit) {
  double value = kNotFinite;
  for (std::size_t i = 0; i < curve.bits.size(); ++i) {
    if ((curve.*axis)[i] <= limit) value = curve.bits[i];
  }
  return value;
}

/// Where the shortest of the trainings ends.
double common_end(const std::vector<DensityRecord>& records, std::vector<double> DensityCurve::*axis) {
  double end = std::numeric_limits<double>::infinity();
  for (const DensityRecord& record : records) end = std::min(end, (record.training.*axis).empty() ? 0 : (record.training.*axis).back());
  return end;
}

std::string error_text(const DensityResult& result) { return result.inverse_images > 0 ? short_number(result.inverse_error) : ""; }

}  // namespace

std::string with_error(const DensityResult& result) {
  if (!std::isfinite(result.bits)) return "not finite";
  return decimals(4, result.bits) + " ± " + decimals(4, result.standard_error);
}

std::string inverses_text(const DensityResult& result) {
  if (result.inverse_images == 0) return "not looked at";
  return with_commas(result.inverse_images - result.inverse_failures) + " of " + with_commas(result.inverse_images);
}

std::string density_headline(const std::vector<DensityRecord>& records) {
  const DensityRecord& first = records.front();
  if (records.size() == 1) {
    const DensityResult& result = first.best();
    std::string text = first.title() + ": " + with_error(result) + " " + first.unit() + " on " + with_commas(result.images) + " " +
                       result.split + " " + first.things() + (result.unbiased() ? "" : ", by a biased estimator");
    if (result.inverse_images == 0) return text + ".";
    return text +
           (result.inverted() ? "; all of " + with_commas(result.inverse_images) + " undone" : "; undone: " + inverses_text(result)) +
           ", largest error " + short_number(result.inverse_error) + ".";
  }
  const auto better = [](const DensityRecord& a, const DensityRecord& b) {
    return std::isfinite(a.best().bits) && !(a.best().bits >= b.best().bits);
  };
  const auto [best, worst] = std::minmax_element(records.begin(), records.end(), better);
  const auto inverted = std::count_if(records.begin(), records.end(), [](const DensityRecord& record) { return record.best().inverted(); });
  const auto count = static_cast<std::ptrdiff_t>(records.size());
  return first.title() + ", " + plural(records.size(), "flow") + ": from " + with_error(best->best()) + " (" + best->label + ") to " +
         with_error(worst->best()) + " (" + worst->label + ") " + first.unit() + "; " +
         (inverted == count ? "every one was undone wherever it was tried."
                            : std::to_string(inverted) + " of " + std::to_string(count) + " were undone wherever it was tried.");
}

Table density_results(const std::vector<DensityRecord>& records) {
  const DensityRecord& first = records.front();
  Table table{
      .name = "results",
      .title = "The flows.",
      .note = std::string("In ") + first.unit() + " ± standard error, the noise of the estimator included; inverse: of how many " +
              first.things() + " the inverse converged and gave the same again, and the largest |x - inverse(forward(x))|" +
              (first.plane ? "" : " as a part of the pixels' range") + "; training loss: of augmented training " + first.things() +
              ", by the training's estimator, mean over the steps that the weights come from; time: of the training, evaluations included.",
      .labels = 1,
      .header = {"flow", first.plane ? "nats" : "bits/dim", first.things(), "estimator", "training loss", "inverse", "largest error",
                 "weights", "steps", "batch", "seconds", "ms a step"}};
  for (const DensityRecord& record : records) {
    const DensityResult& result = record.best();
    table.rows.push_back({record.label, with_error(result), with_commas(result.images) + ", " + result.split, result.method(),
                          std::isfinite(record.training_loss.value_or(kNotFinite)) ? decimals(4, *record.training_loss) : "",
                          inverses_text(result), error_text(result), with_commas(record.parameters), with_commas(record.steps),
                          with_commas(record.batch), short_number(record.seconds), milliseconds_per_step(record)});
  }
  return table;
}

Table density_evaluations(const std::vector<DensityRecord>& records) {
  const DensityRecord& first = records.front();
  Table table{.name = "evaluations",
              .title = "Every evaluation.",
              .note = "Roulette and exact are unbiased. A series of few terms, as the published code reports it, is too optimistic.",
              .labels = 3,
              .header = {"flow", first.things(), "estimator", first.plane ? "nats" : "bits/dim", "count", "inverse", "largest error",
                         "iterations"}};
  for (const DensityRecord& record : records) {
    for (const DensityResult& result : record.results) {
      table.rows.push_back({record.label, result.split, result.estimator, with_error(result), with_commas(result.images),
                            inverses_text(result), error_text(result), result.inverse_images > 0 ? with_commas(result.iterations) : ""});
    }
  }
  return table;
}

Table density_at_equal_cost(const std::vector<DensityRecord>& records) {
  const double steps = common_end(records, &DensityCurve::steps);
  const double seconds = common_end(records, &DensityCurve::seconds);
  Table table{
      .name = "equal_cost",
      .title = "At equal steps and at equal time.",
      .note = std::string("Training loss in ") + records.front().unit() +
              " there, the mean of the last line of metrics.jsonl before it: as far as the shortest training goes.",
      .labels = 1,
      .header = {"flow", "after " + with_commas(static_cast<std::int64_t>(steps)) + " steps", "after " + short_number(seconds) + " s"}};
  for (const DensityRecord& record : records) {
    table.rows.push_back({record.label, decimals(4, value_at(record.training, &DensityCurve::steps, steps)),
                          decimals(4, value_at(record.training, &DensityCurve::seconds, seconds))});
  }
  return table;
}

bool paper_has_density(const DensityRecord& record) { return record.dataset == "cifar10" && record.height == 32 && record.width == 32; }

Table density_against_paper(const std::vector<DensityRecord>& records) {
  // Zha et al., "Invertible Attention", the table of section 4.2.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kPrinted{{{"MADE", "5.67"},
                                                                                   {"MAF", "4.31"},
                                                                                   {"RealNVP", "3.49"},
                                                                                   {"Glow", "3.35"},
                                                                                   {"FFJORD", "3.40"},
                                                                                   {"i-ResNet", "3.45"},
                                                                                   {"i-ResNet + dot-product", "3.65"},
                                                                                   {"i-ResNet + concatenation", "3.39"}}};
  Table table{.name = "against_paper",
              .title = "Flow models on CIFAR-10, in bits per dimension.",
              .note = "Printed: as in the table of the paper's section 4.2. These runs: as above, with their standard error.",
              .labels = 2,
              .header = {"model", "figure", "bits/dim"}};
  for (const auto& [model, bits] : kPrinted) table.rows.push_back({std::string(model), "printed in the paper", std::string(bits)});
  for (const DensityRecord& record : records) {
    const DensityResult& result = record.best();
    table.rows.push_back({"this run, " + record.label,
                          std::string(result.unbiased() ? "unbiased" : "biased") + ", " + with_commas(result.images) + " " + result.split +
                              ", " + with_commas(record.steps) + " steps",
                          with_error(result)});
  }
  return table;
}

Table density_certificates(const std::vector<DensityRecord>& records) {
  Table table{.name = "certificates",
              .title = "Certificates of the attention blocks.",
              .note = "What is promised of the branch g of each block. Convolutions are held by their spectral norms.",
              .labels = 2,
              .header = {"flow", "certificate"}};
  for (const DensityRecord& record : records) {
    if (record.certificates.empty()) table.rows.push_back({record.label, "no attention block, nothing to certify"});
    for (const std::string& certificate : record.certificates) table.rows.push_back({record.label, certificate});
  }
  return table;
}

std::vector<Table> density_tables(const std::vector<DensityRecord>& records) {
  std::vector<Table> tables = {density_results(records)};
  const bool lines = std::all_of(records.begin(), records.end(), [](const auto& record) { return !record.training.steps.empty(); });
  if (records.size() > 1 && lines) tables.push_back(density_at_equal_cost(records));
  if (paper_has_density(records.front())) tables.push_back(density_against_paper(records));
  tables.push_back(density_evaluations(records));
  return tables;
}

}  // namespace invattn::reporting

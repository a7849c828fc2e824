#include "invattn/report/reconstruction/tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "invattn/report/reconstruction/grouping.h"
#include "invattn/report/reconstruction/printed.h"

namespace invattn::reporting {
namespace {

/// The same network over its seeds.
class Seeds {
 public:
  explicit Seeds(std::vector<ResultRow> rows) : rows_(std::move(rows)) {}

  bool empty() const { return rows_.empty(); }

  std::string mean(double ResultRow::*field, std::string (*print)(double)) const {
    double sum = 0;
    for (const ResultRow& row : rows_) sum += row.*field;
    const double mean = sum / static_cast<double>(rows_.size());
    if (rows_.size() < 2 || !std::isfinite(mean)) return print(mean);
    double squares = 0;
    for (const ResultRow& row : rows_) squares += (row.*field - mean) * (row.*field - mean);
    const std::string spread = print(std::sqrt(squares / static_cast<double>(rows_.size() - 1)));
    return spread.find_first_of("123456789") == std::string::npos ? print(mean) : print(mean) + " ± " + spread;
  }

  /// One that is not finite is larger than all.
  double largest(double ResultRow::*field) const {
    double result = rows_.front().*field;
    for (const ResultRow& row : rows_)
      result = std::isfinite(row.*field) && std::isfinite(result) ? std::max(result, row.*field) : kNotFinite;
    return result;
  }

  std::int64_t largest(std::int64_t ResultRow::*field) const {
    std::int64_t result = 0;
    for (const ResultRow& row : rows_) result = std::max(result, row.*field);
    return result;
  }

  std::int64_t sum(std::int64_t ResultRow::*field) const {
    std::int64_t result = 0;
    for (const ResultRow& row : rows_) result += row.*field;
    return result;
  }

 private:
  std::vector<ResultRow> rows_;
};

std::string decimals(int digits, double value) {
  if (!std::isfinite(value)) return "not finite";
  std::array<char, 64> text{};
  const bool readable = std::abs(value) < 1e5;
  std::snprintf(text.data(), text.size(), readable ? "%.*f" : "%.*e", readable ? digits : 1, value);
  return text.data();
}

std::string one_decimal(double value) { return decimals(1, value); }
std::string two_decimals(double value) { return decimals(2, value); }
std::string three_decimals(double value) { return decimals(3, value); }
std::string four_decimals(double value) { return decimals(4, value); }

constexpr const char* kOverSeeds = "mean ± standard deviation over the seeds, which is left out where it rounds to 0";

bool any_printed(const std::vector<ResultRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const ResultRow& row) { return printed_figures(view_of(row), row.kind) != nullptr; });
}

}  // namespace

Table every_network(const std::vector<ResultRow>& rows) {
  const bool printed = any_printed(rows);
  Table table{
      .name = "results",
      .title = "Every network.",
      .note = std::string("MSE on the scale 0 to 255; V-score: percent of the test images with MSE under 10; identity: the loss of doing "
                          "nothing; constant: largest local Lipschitz constant of g. Figures are ") +
              kOverSeeds + "; for constant and iterations the largest, for failures the sum." +
              (printed ? " In the column paper: the V-score printed in the paper." : ""),
      .labels = 3};
  table.header = {"data", "variant", "kind", "MSE", "SSIM", "V-score", "loss", "identity", "constant", "iterations", "failures", "seconds"};
  if (printed) table.header.insert(table.header.begin() + 6, "paper");
  for (const View& view : views_of(rows)) {
    for (const std::string& variant : variants_of(rows)) {
      for (const std::string& kind : kinds_of(rows)) {
        const Seeds seeds(seeds_of(rows, view, variant, kind));
        if (seeds.empty()) continue;
        std::vector<TableCell> line = {view.title(),
                                       variant,
                                       kind,
                                       seeds.mean(&ResultRow::mse, short_number),
                                       seeds.mean(&ResultRow::ssim, four_decimals),
                                       seeds.mean(&ResultRow::v_score, two_decimals)};
        if (printed) {
          const PrintedFigures* figures = printed_figures(view, kind);
          line.emplace_back(figures == nullptr ? "" : std::string(figures->v_score));
        }
        line.emplace_back(seeds.mean(&ResultRow::loss, four_decimals));
        line.emplace_back(seeds.mean(&ResultRow::identity_loss, four_decimals));
        line.emplace_back(three_decimals(seeds.largest(&ResultRow::lipschitz_max)));
        line.emplace_back(with_commas(seeds.largest(&ResultRow::iterations_max)));
        line.emplace_back(with_commas(seeds.sum(&ResultRow::failures)));
        line.emplace_back(seeds.mean(&ResultRow::seconds, one_decimal));
        table.rows.push_back(std::move(line));
      }
    }
  }
  return table;
}

std::vector<Table> paper_layout(const std::vector<ResultRow>& rows) {
  std::vector<Table> tables;
  for (const std::string& variant : variants_of(rows)) {
    std::vector<ResultRow> of_variant;
    for (const ResultRow& row : rows) {
      if (row.variant == variant) of_variant.push_back(row);
    }
    Table table{.name = "reconstruction_" + slug(variant),
                .title = "Reconstruction, " + variant + ".",
                .note = std::string("MSE on the scale 0 to 255, SSIM, V-score in percent; ") + kOverSeeds + "." +
                        (any_printed(of_variant) ? " Beside ours, muted or in brackets: the paper's." : ""),
                .labels = 1,
                .header = {"kind"}};
    for (const View& view : views_of(of_variant)) {
      table.groups.push_back({view.title(), 3});
      table.header.insert(table.header.end(), {"MSE", "SSIM", "V-score"});
    }
    for (const std::string& kind : kinds_of(of_variant)) {
      std::vector<TableCell> line = {kind};
      for (const View& view : views_of(of_variant)) {
        const Seeds seeds(seeds_of(of_variant, view, variant, kind));
        const PrintedFigures* printed = printed_figures(view, kind);
        const auto put = [&](double ResultRow::*field, std::string (*print)(double), std::string_view PrintedFigures::*paper) {
          line.emplace_back(seeds.empty() ? "" : seeds.mean(field, print),
                            printed == nullptr || seeds.empty() ? std::string() : std::string(printed->*paper));
        };
        put(&ResultRow::mse, short_number, &PrintedFigures::mse);
        put(&ResultRow::ssim, four_decimals, &PrintedFigures::ssim);
        put(&ResultRow::v_score, two_decimals, &PrintedFigures::v_score);
      }
      table.rows.push_back(std::move(line));
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

std::vector<Table> variants_compared(const std::vector<ResultRow>& rows) {
  std::vector<Table> tables;
  for (const View& view : views_of(rows)) {
    std::vector<ResultRow> of_view;
    for (const ResultRow& row : rows) {
      if (view_of(row) == view) of_view.push_back(row);
    }
    const std::vector<std::string> variants = variants_of(of_view);
    if (variants.size() < 2) continue;
    Table table{.name = "variants_" + view.slug(),
                .title = "Variants, " + view.title() + ".",
                .note = std::string("Training loss; constant: largest local Lipschitz constant of g over the seeds; V-score in percent; ") +
                        kOverSeeds + ".",
                .labels = 1,
                .header = {"variant"}};
    for (const std::string& kind : kinds_of(of_view)) {
      table.groups.push_back({kind, 3});
      table.header.insert(table.header.end(), {"loss", "constant", "V-score"});
    }
    for (const std::string& variant : variants) {
      std::vector<TableCell> line = {variant};
      for (const std::string& kind : kinds_of(of_view)) {
        const Seeds seeds(seeds_of(of_view, view, variant, kind));
        line.emplace_back(seeds.empty() ? "" : seeds.mean(&ResultRow::loss, four_decimals));
        line.emplace_back(seeds.empty() ? "" : three_decimals(seeds.largest(&ResultRow::lipschitz_max)));
        line.emplace_back(seeds.empty() ? "" : seeds.mean(&ResultRow::v_score, two_decimals));
      }
      table.rows.push_back(std::move(line));
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace invattn::reporting

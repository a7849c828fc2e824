#include "invattn/report/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "invattn/io/printable.h"
#include "invattn/report/grouping.h"
#include "invattn/report/printed.h"

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

/// Letters on the screen: bytes of UTF-8 that begin one.
std::size_t letters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

std::string markdown_text(const TableCell& cell) {
  std::string line = cell.text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::string text;
  for (const char letter : printable(line, line.size())) {
    if (letter == '|') text += '\\';
    text += letter;
  }
  return cell.printed.empty() ? text : text + " (" + cell.printed + ")";
}

}  // namespace

std::string short_number(double value) {
  if (!std::isfinite(value)) return "not finite";
  const double size = std::abs(value);
  std::array<char, 64> text{};
  const char* format = size == 0 ? "%.0f" : size < 1e-3 || size >= 1e5 ? "%.1e" : size < 1 ? "%.3f" : size < 100 ? "%.2f" : "%.1f";
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string decimals(int digits, double value) {
  if (!std::isfinite(value)) return "not finite";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string escape_html(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

std::string to_markdown(const Table& table) {
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string> header = table.header;
  std::size_t column = table.labels;
  for (const ColumnGroup& group : table.groups) {
    for (std::size_t i = 0; i < group.columns; ++i, ++column) header[column] = group.heading + " " + header[column];
  }
  for (std::string& heading : header) heading = markdown_text({.text = heading});
  lines.push_back(std::move(header));
  for (const auto& row : table.rows) {
    auto& line = lines.emplace_back();
    for (const TableCell& cell : row) line.push_back(markdown_text(cell));
  }
  std::vector<std::size_t> widths(lines.front().size(), 4);
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], letters(line[i]));
  }
  std::string text;
  for (std::size_t l = 0; l < lines.size(); ++l) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string padding(widths[i] - letters(lines[l][i]), ' ');
      text.append("| ").append(i < table.labels ? lines[l][i] + padding : padding + lines[l][i]).append(" ");
    }
    text += "|\n";
    if (l > 0) continue;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const bool label = i < table.labels;
      text.append("|").append(widths[i] + (label ? 2 : 1), '-').append(label ? "" : ":");
    }
    text += "|\n";
  }
  return text;
}

std::string to_html(const Table& table) {
  std::string html = "<figure class=\"table\">\n<figcaption><strong>" + escape_html(table.title) + "</strong> " + escape_html(table.note) +
                     "</figcaption>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + escape_html(table.title) +
                     "\">\n<table>\n<thead>\n";
  const auto label_class = [&table](std::size_t column) { return column < table.labels ? " class=\"label\"" : ""; };
  if (!table.groups.empty()) {
    html += "<tr>";
    for (std::size_t i = 0; i < table.labels; ++i)
      html += "<th scope=\"col\" rowspan=\"2\" class=\"label\">" + escape_html(table.header[i]) + "</th>";
    for (const ColumnGroup& group : table.groups) {
      html += "<th scope=\"colgroup\" class=\"group\" colspan=\"" + std::to_string(group.columns) + "\">" + escape_html(group.heading) +
              "</th>";
    }
    html += "</tr>\n";
  }
  html += "<tr>";
  for (std::size_t i = table.groups.empty() ? 0 : table.labels; i < table.header.size(); ++i) {
    html += std::string("<th scope=\"col\"") + label_class(i) + ">" + escape_html(table.header[i]) + "</th>";
  }
  html += "</tr>\n</thead>\n<tbody>\n";
  const std::vector<TableCell>* above = nullptr;
  for (const auto& row : table.rows) {
    html += "<tr>";
    bool same = above != nullptr;  // a label that repeats the one above it is muted
    for (std::size_t i = 0; i < row.size(); ++i) {
      same = same && i + 1 < table.labels && row[i].text == (*above)[i].text;
      const std::string text = escape_html(row[i].text);
      if (i < table.labels) {
        html += std::string("<th scope=\"row\" class=\"label") + (same ? " again" : "") + "\">" + text + "</th>";
      } else {
        html +=
            "<td>" + text + (row[i].printed.empty() ? "" : "<span class=\"printed\">" + escape_html(row[i].printed) + "</span>") + "</td>";
      }
    }
    html += "</tr>\n";
    above = &row;
  }
  return html + "</tbody>\n</table>\n</div>\n</figure>\n";
}

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
        std::vector<TableCell> line = {{view.title()},
                                       {variant},
                                       {kind},
                                       {seeds.mean(&ResultRow::mse, short_number)},
                                       {seeds.mean(&ResultRow::ssim, four_decimals)},
                                       {seeds.mean(&ResultRow::v_score, two_decimals)}};
        if (printed) {
          const PrintedFigures* figures = printed_figures(view, kind);
          line.push_back({figures == nullptr ? "" : std::string(figures->v_score)});
        }
        line.push_back({seeds.mean(&ResultRow::loss, four_decimals)});
        line.push_back({seeds.mean(&ResultRow::identity_loss, four_decimals)});
        line.push_back({three_decimals(seeds.largest(&ResultRow::lipschitz_max))});
        line.push_back({with_commas(seeds.largest(&ResultRow::iterations_max))});
        line.push_back({with_commas(seeds.sum(&ResultRow::failures))});
        line.push_back({seeds.mean(&ResultRow::seconds, one_decimal)});
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
      std::vector<TableCell> line = {{kind}};
      for (const View& view : views_of(of_variant)) {
        const Seeds seeds(seeds_of(of_variant, view, variant, kind));
        const PrintedFigures* printed = printed_figures(view, kind);
        const auto put = [&](double ResultRow::*field, std::string (*print)(double), std::string_view PrintedFigures::*paper) {
          line.push_back({.text = seeds.empty() ? "" : seeds.mean(field, print),
                          .printed = printed == nullptr || seeds.empty() ? "" : std::string(printed->*paper)});
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
      std::vector<TableCell> line = {{variant}};
      for (const std::string& kind : kinds_of(of_view)) {
        const Seeds seeds(seeds_of(of_view, view, variant, kind));
        line.push_back({seeds.empty() ? "" : seeds.mean(&ResultRow::loss, four_decimals)});
        line.push_back({seeds.empty() ? "" : three_decimals(seeds.largest(&ResultRow::lipschitz_max))});
        line.push_back({seeds.empty() ? "" : seeds.mean(&ResultRow::v_score, two_decimals)});
      }
      table.rows.push_back(std::move(line));
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace invattn::reporting

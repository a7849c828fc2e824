#include "invattn/report/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "invattn/io/printable.h"

namespace invattn::reporting {
namespace {

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
  for (std::string& heading : header) heading = markdown_text(heading);
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

}  // namespace invattn::reporting

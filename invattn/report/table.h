#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace invattn::reporting {

struct TableCell {
  TableCell(std::string words, std::string of_paper = {}) : text(std::move(words)), printed(std::move(of_paper)) {}
  TableCell(const char* words) : text(words) {}

  std::string text{};
  std::string printed{};  ///< the paper's figure beside ours
};

/// Columns that belong together under one heading.
struct ColumnGroup {
  std::string heading;
  std::size_t columns = 0;
};

/// One table, for Markdown and for the page alike.
struct Table {
  std::string name;                   ///< of its file, without .md
  std::string title;                  ///< may hold names from a configuration: escaped where it is printed
  std::string note;                   ///< what the columns mean
  std::size_t labels = 1;             ///< the first columns are words, set to the left; the others are numbers
  std::vector<ColumnGroup> groups{};  ///< of the columns after the labels; empty: none
  std::vector<std::string> header{};
  std::vector<std::vector<TableCell>> rows{};
};

std::string to_markdown(const Table& table);  ///< the bars and dashes alone, without title and note
std::string to_html(const Table& table);      ///< a figure with caption

/// Text as it may stand in HTML, in attributes, too.
std::string escape_html(std::string_view text);

/// "84.87", "4.1e-09", "not finite".
std::string short_number(double value);

/// "4.0553" with 4 digits; "not finite".
std::string decimals(int digits, double value);

}  // namespace invattn::reporting

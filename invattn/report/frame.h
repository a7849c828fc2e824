#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/report/figure.h"
#include "invattn/report/run_record.h"
#include "invattn/report/table.h"

// What the pages of all experiments have in common.
namespace invattn::reporting {

/// A page is smaller than this many bytes, whatever the runs hold.
inline constexpr std::size_t kLargestPage = 6'000'000;

/// What is made of one run or of several; figures and page when they are asked for.
struct Report {
  std::vector<Table> tables{};  ///< the first is the one to print
  std::function<std::vector<Figure>()> figures{};
  std::function<std::string()> page{};
};

/// One page. Texts are escaped where they are put in; what is HTML already is named so.
struct PageContent {
  std::string experiment{};  ///< "Reconstruction by invertible attention"
  std::string title{};
  std::string headline{};
  std::string summary{};
  std::string notices_html{};
  std::string main_html{};
  std::string tables_html{};        ///< below, where there is any
  std::string certificates_html{};  ///< below that, where there is any
  std::string made_html{};
  std::string data{};         ///< JSON for the script
  std::string_view script{};  ///< after shared.js
};

/// The whole page in one file that asks for no other.
std::string render_frame(const PageContent& content);

/// Replaces each {{name}} of the template; what is put in is not looked at again.
std::string fill(std::string_view text, const std::map<std::string, std::string, std::less<>>& values);

std::string notice_html(const std::string& text);

/// Figures in large print: what each is, and its value.
std::string readings_html(const std::vector<std::pair<std::string, std::string>>& readings);

/// That so many images did not find room; empty where all did.
std::string left_out_html(std::int64_t images);

/// A long table that opens when asked.
std::string folded(const std::string& summary, const Table& table);

/// Date, versions, command and configuration of each run.
std::string made_html(const std::vector<RunRecord>& runs);

/// "1 run", "2 runs".
std::string plural(std::size_t count, const std::string& noun);

/// At most a hundred places of a list, its first and last among them: enough for a curve.
std::vector<std::size_t> places(std::size_t size);

/// With so many significant digits, to keep a page small.
double rounded(double value, int digits);

/// Names that differ, whatever the names they come from have in common.
class Names {
 public:
  std::string take(const std::string& name);

 private:
  std::set<std::string> taken_;
};

}  // namespace invattn::reporting

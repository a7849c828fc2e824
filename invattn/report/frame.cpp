#include "invattn/report/frame.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "invattn/report/assets.h"
#include "invattn/report/naming.h"

namespace invattn::reporting {
namespace {

/// JSON that may stand inside a script element: no '<' can end it.
std::string safe_in_script(const std::string& text) {
  std::string result;
  result.reserve(text.size());
  for (const char letter : text) {
    if (letter == '<') {
      result += "\\u003c";
    } else {
      result += letter;
    }
  }
  return result;
}

std::string section(const std::string& id, const std::string& title, const std::string& html) {
  if (html.empty()) return "";
  return "<section aria-labelledby=\"" + id + "\">\n  <h2 id=\"" + id + "\">" + title + "</h2>\n  " + html + "\n</section>\n";
}

}  // namespace

std::string render_frame(const PageContent& content) {
  return fill(frame_template(), {{"experiment", escape_html(content.experiment)},
                                 {"title", escape_html(content.title)},
                                 {"headline", escape_html(content.headline)},
                                 {"summary", escape_html(content.summary)},
                                 {"notices", content.notices_html},
                                 {"main", content.main_html},
                                 {"sections", section("tables-title", "Tables", content.tables_html) +
                                                  section("certificates-title", "What is promised", content.certificates_html) +
                                                  section("made-title", "How this was made", content.made_html)},
                                 {"data", safe_in_script(content.data)},
                                 {"style", std::string(page_style())},
                                 {"chart", std::string(chart_script())},
                                 {"shared", std::string(shared_script())},
                                 {"script", std::string(content.script)}});
}

std::string fill(std::string_view text, const std::map<std::string, std::string, std::less<>>& values) {
  std::string result;
  while (true) {
    const std::size_t open = text.find("{{");
    const std::size_t close = text.find("}}", open);
    if (open == std::string_view::npos || close == std::string_view::npos) break;
    result += text.substr(0, open);
    result += values.find(text.substr(open + 2, close - open - 2))->second;
    text.remove_prefix(close + 2);
  }
  return result.append(text);
}

std::string notice_html(const std::string& text) { return "<p class=\"notice\">" + escape_html(text) + "</p>\n"; }

std::string readings_html(const std::vector<std::pair<std::string, std::string>>& readings) {
  std::string html = "<dl class=\"readings wide\">\n";
  for (const auto& [name, value] : readings) html += "<div><dt>" + escape_html(name) + "</dt><dd>" + escape_html(value) + "</dd></div>\n";
  return html + "</dl>\n";
}

std::string left_out_html(std::int64_t images) {
  if (images <= 0) return "";
  return "<p class=\"explain\">To keep this file small, " + plural(static_cast<std::size_t>(images), "more image") + " of each network " +
         (images == 1 ? "is" : "are") + " in the run's figures only.</p>";
}

std::string folded(const std::string& summary, const Table& table) {
  return "<details>\n<summary>" + escape_html(summary) + "</summary>\n" + to_html(table) + "</details>\n";
}

std::string made_html(const std::vector<RunRecord>& runs) {
  std::string html;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    const auto block = [&html, i](const std::string& heading, const char* id, const std::string& text) {
      const std::string name = id + std::to_string(i);
      html += "<div class=\"code\"><div class=\"code-head\"><span>" + heading +
              "</span><button type=\"button\" class=\"copy\" data-copy=\"" + name + "\">Copy</button></div><pre id=\"" + name +
              "\" tabindex=\"0\">" + escape_html(text) + "</pre></div>\n";
    };
    html += "<p>" + (runs.size() > 1 ? "<strong>" + escape_html(run.name) + "</strong>: " : std::string()) +
            escape_html(run.made_with.date) + ", " + escape_html(run.made_with.text()) + ".</p>\n";
    block("Command", "command", run.made_with.command);
    if (!run.config.empty()) block("Configuration (config.toml)", "config", run.config);
  }
  return html;
}

std::string plural(std::size_t count, const std::string& noun) {
  return with_commas(static_cast<std::int64_t>(count)) + " " + noun + (count == 1 ? "" : "s");
}

std::vector<std::size_t> places(std::size_t size) {
  constexpr std::size_t kMost = 100;
  std::vector<std::size_t> result;
  const std::size_t count = std::min(size, kMost);
  for (std::size_t i = 0; i < count; ++i) result.push_back(count < 2 ? 0 : i * (size - 1) / (count - 1));
  return result;
}

double rounded(double value, int digits) {
  if (!std::isfinite(value)) return value;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return std::strtod(text.data(), nullptr);
}

std::string Names::take(const std::string& name) {
  std::string free = name;
  for (int i = 2; !taken_.insert(free).second; ++i) free = name + "-" + std::to_string(i);
  return free;
}

}  // namespace invattn::reporting

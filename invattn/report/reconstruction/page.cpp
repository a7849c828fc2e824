#include "invattn/report/reconstruction/page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>
#include <nlohmann/json.hpp>

#include "invattn/io/json_fields.h"
#include "invattn/report/assets.h"
#include "invattn/report/frame.h"
#include "invattn/report/reconstruction/album.h"
#include "invattn/report/reconstruction/charts.h"
#include "invattn/report/reconstruction/grouping.h"
#include "invattn/report/reconstruction/headline.h"
#include "invattn/report/reconstruction/printed.h"
#include "invattn/report/reconstruction/tables.h"

namespace invattn::reporting {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kReserve = 60'000;  // bytes for what is counted only roughly

ordered_json brief_list(const std::vector<double>& values, int digits) {
  ordered_json list = ordered_json::array();
  for (const double value : values) list.push_back(brief(value, digits));
  return list;
}

ordered_json pictures_json(const PackedPictures& pictures) {
  ordered_json solvers = ordered_json::array();
  for (const PackedFrames& frames : pictures.solvers) {
    ordered_json residuals = ordered_json::array();
    ordered_json errors = ordered_json::array();
    for (const auto& list : frames.residuals) residuals.push_back(brief_list(list, 2));
    for (const auto& list : frames.errors) errors.push_back(brief_list(list, 3));
    solvers.push_back({{"solver", frames.solver},
                       {"iterations", frames.iterations},
                       {"residuals", std::move(residuals)},
                       {"errors", std::move(errors)},
                       {"shared", frames.shares_start}});
  }
  return {{"originals", pictures.originals},    {"solvers", std::move(solvers)},
          {"factors", pictures.factors},        {"images", pictures.images},
          {"response", pictures.response.maps}, {"grid", {pictures.response.rows, pictures.response.columns}},
          {"stride", pictures.response.stride}};
}

/// Everything the script needs. Without an album the pictures are left out.
ordered_json page_data(const std::vector<ResultRow>& rows, const std::vector<Network>& networks, const Album* album) {
  ordered_json data;
  data["views"] = ordered_json::array();
  for (const View& view : views_of(rows)) data["views"].push_back(view.title());
  data["variants"] = variants_of(rows);
  data["kinds"] = kinds_of(rows);
  data["differences"] = difference_levels();
  data["response_levels"] = kResponseLevels;
  data["error_levels"] = kErrorLevels;
  data["originals"] = ordered_json::array();
  data["networks"] = ordered_json::array();
  for (std::size_t i = 0; i < networks.size(); ++i) {
    const Network& network = networks[i];
    const ResultRow& row = network.cell->row;
    ordered_json entry = {{"view", network.view},
                          {"variant", network.variant},
                          {"kind", network.kind},
                          {"seed", row.seed},
                          {"solver", row.solver},
                          {"charts", network.cell->details ? charts_json({convergence_chart(*network.cell), constants_chart(*network.cell)})
                                                           : ordered_json()},
                          {"pictures", nullptr}};
    if (album != nullptr && !album->networks[i].images.empty()) entry["pictures"] = pictures_json(album->networks[i]);
    data["networks"].push_back(std::move(entry));
  }
  data["training"] = ordered_json::array();
  for (auto first = networks.begin(); first != networks.end();) {
    const auto end = std::find_if(first, networks.end(), [&](const Network& other) {
      return std::pair(other.view, other.variant) != std::pair(first->view, first->variant);
    });
    data["training"].push_back(
        {{"view", first->view}, {"variant", first->variant}, {"charts", charts_json(training_charts({first, end}))}});
    first = end;
  }
  if (album != nullptr) {
    for (const PackedOriginals& originals : album->originals) {
      data["originals"].push_back({{"height", originals.height}, {"width", originals.width}, {"images", originals.images}});
    }
  }
  return data;
}

/// How good a V-score is, as the name of a colour.
std::string grade(double v_score) {
  if (!(v_score >= 0)) return "g0";
  return v_score >= 100 ? "g4" : v_score >= 95 ? "g3" : v_score >= 75 ? "g2" : v_score >= 40 ? "g1" : "g0";
}

/// V-scores at a glance, which also choose what the page shows: data sets and kinds down, variants across.
std::string matrix(const std::vector<ResultRow>& rows, const std::vector<Network>& networks) {
  const std::vector<View> views = views_of(rows);
  const std::vector<std::string> variants = variants_of(rows);
  const std::vector<std::string> kinds = kinds_of(rows);
  const bool printed = std::any_of(networks.begin(), networks.end(),
                                   [&](const Network& n) { return printed_figures(views[n.view], kinds[n.kind]) != nullptr; });
  std::string html = "<table class=\"matrix\">\n<thead><tr><td></td>";
  for (const std::string& variant : variants) html += "<th scope=\"col\">" + escape_html(variant) + "</th>";
  if (printed) html += "<th scope=\"col\" class=\"quiet\">printed in the paper</th>";
  html += "</tr></thead>\n";
  for (std::size_t view = 0; view < views.size(); ++view) {
    html += "<tbody>\n<tr><th scope=\"rowgroup\" class=\"label group\" colspan=\"" + std::to_string(variants.size() + (printed ? 2 : 1)) +
            "\">" + escape_html(views[view].title()) + "</th></tr>\n";
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      std::string line;
      bool any = false;
      for (std::size_t variant = 0; variant < variants.size(); ++variant) {
        const auto found = std::find_if(networks.begin(), networks.end(),
                                        [&](const Network& n) { return n.view == view && n.kind == kind && n.variant == variant; });
        if (found == networks.end()) {
          line += "<td></td>";
          continue;
        }
        any = true;
        double worst = 100;
        for (const ResultRow& row : seeds_of(rows, views[view], variants[variant], kinds[kind])) {
          worst = std::isfinite(row.v_score) ? std::min(worst, row.v_score) : 0;
        }
        const std::string score = score_text(worst);
        line +=
            "<td><button type=\"button\" class=\"score " + grade(worst) + "\" data-network=\"" + std::to_string(found - networks.begin()) +
            "\" aria-label=\"" +
            escape_html(views[view].title() + ", " + kinds[kind] + ", " + variants[variant] + ": " + score + " percent undone. Show it.") +
            "\">" + score + "</button></td>";
      }
      if (!any) continue;
      html += "<tr><th scope=\"row\" class=\"label\">" + escape_html(kinds[kind]) + "</th>" + line;
      if (printed) {
        const PrintedFigures* figures = printed_figures(views[view], kinds[kind]);
        html += "<td class=\"quiet\">" + (figures == nullptr ? std::string() : score_text(std::atof(figures->v_score.data()))) + "</td>";
      }
      html += "</tr>\n";
    }
    html += "</tbody>\n";
  }
  return html + "</table>\n";
}

/// What the certificates of each variant come to.
Table promises(const std::vector<ResultRow>& rows) {
  Table table{
      .name = "promises",
      .title = "Certificates.",
      .note =
          "Rests on: measured on training images, or proved for every input of a stated domain; constant: the largest certified; seen: "
          "the largest local constant of g on any image.",
      .labels = 2,
      .header = {"variant", "rests on", "networks", "constant", "seen"}};
  for (const std::string& variant : variants_of(rows)) {
    std::map<std::string, std::vector<ResultRow>> by_basis;
    for (const ResultRow& row : rows) {
      if (row.variant == variant) by_basis[row.certificate.basis].push_back(row);
    }
    for (const auto& [basis, group] : by_basis) {
      double certified = 0;
      double seen = 0;
      for (const ResultRow& row : group) {
        certified = std::max(certified, row.certificate.constant);
        seen = std::isfinite(row.lipschitz_max) ? std::max(seen, row.lipschitz_max) : kNotFinite;
      }
      table.rows.push_back({variant, basis, with_commas(static_cast<std::int64_t>(group.size())),
                            basis == "nothing" ? "none" : short_number(certified), short_number(seen)});
    }
  }
  return table;
}

Table certificates(const std::vector<ResultRow>& rows) {
  Table table{.name = "certificates",
              .title = "Certificates, each in full.",
              .note = "",
              .labels = 5,
              .header = {"data", "variant", "kind", "seed", "certificate"}};
  for (const View& view : views_of(rows)) {
    for (const std::string& variant : variants_of(rows)) {
      for (const std::string& kind : kinds_of(rows)) {
        for (const ResultRow& row : seeds_of(rows, view, variant, kind)) {
          table.rows.push_back({view.title(), variant, kind, std::to_string(row.seed), row.certificate_text});
        }
      }
    }
  }
  return table;
}

std::string tables_html(const std::vector<ResultRow>& rows) {
  std::string html;
  for (std::vector<Table>& tables : std::array{paper_layout(rows), variants_compared(rows)}) {
    for (std::size_t i = 0; i < tables.size(); ++i) {
      if (i > 0) tables[i].note.clear();  // the same as above
      html += to_html(tables[i]);
    }
  }
  return html + folded("Every network: MSE, SSIM, V-score, loss, constant, iterations, failures, seconds", every_network(rows));
}

/// "48 networks: 3 data sets, 4 kinds, 4 variants; 3 seeds each."
std::string summary(const std::vector<ResultRow>& rows) {
  std::vector<std::int64_t> seeds;
  for (const ResultRow& row : rows) {
    if (std::find(seeds.begin(), seeds.end(), row.seed) == seeds.end()) seeds.push_back(row.seed);
  }
  return plural(rows.size(), "network") + ": " + plural(views_of(rows).size(), "data set") + ", " + plural(kinds_of(rows).size(), "kind") +
         " of attention, " + plural(variants_of(rows).size(), "variant") + ", " + plural(seeds.size(), "seed") +
         ". An image is undone when it comes back with a mean squared error under 10 on the scale 0 to 255 (the V-score).";
}

std::string notices(const std::vector<Run>& runs) {
  std::string html;
  for (const Run& run : runs) {
    const std::string which = runs.size() > 1 ? "The run " + run.name : "This run";
    if (!run.finished) html += notice_html(which + " is not finished: " + plural(run.cells.size(), "network") + " so far.");
    if (run.without_details() > 0) {
      html += notice_html(which + " lacks the folders of " + plural(static_cast<std::size_t>(run.without_details()), "network") +
                          ": they are in the tables, but have no pictures and charts.");
    }
  }
  return html;
}

}  // namespace

std::vector<ResultRow> rows_of(const std::vector<Run>& runs) {
  std::vector<ResultRow> rows;
  for (const Run& run : runs) {
    for (const Cell& cell : run.cells) rows.push_back(cell.row);
  }
  return rows;
}

std::vector<Network> networks_of(const std::vector<Run>& runs) {
  const std::vector<ResultRow> rows = rows_of(runs);
  const std::vector<View> views = views_of(rows);
  const std::vector<std::string> variants = variants_of(rows);
  const std::vector<std::string> kinds = kinds_of(rows);
  const auto rank = [](const Cell& cell) { return cell.has_pictures ? 2 : cell.details ? 1 : 0; };
  std::map<std::array<std::size_t, 3>, const Cell*> best;
  for (const Run& run : runs) {
    for (const Cell& cell : run.cells) {
      const auto place = [](const auto& list, const auto& value) {
        return static_cast<std::size_t>(std::find(list.begin(), list.end(), value) - list.begin());
      };
      const Cell*& found = best[{place(views, view_of(cell.row)), place(variants, cell.row.variant), place(kinds, cell.row.kind)}];
      if (found == nullptr || rank(cell) > rank(*found)) found = &cell;
    }
  }
  std::vector<Network> networks;
  networks.reserve(best.size());
  for (const auto& [place, cell] : best) networks.push_back({.view = place[0], .variant = place[1], .kind = place[2], .cell = cell});
  return networks;
}

std::string render_page(const std::vector<Run>& runs) {
  const std::vector<ResultRow> rows = rows_of(runs);
  const std::vector<Network> networks = networks_of(runs);
  std::map<std::string, std::string, std::less<>> values = {{"left_out", ""}, {"matrix", matrix(rows, networks)}};
  PageContent content{.experiment = "Reconstruction by invertible attention",
                      .title = runs.size() == 1 ? runs.front().name : plural(runs.size(), "run"),
                      .headline = headline(rows),
                      .summary = summary(rows),
                      .notices_html = notices(runs),
                      .main_html = fill(reconstruction_template(), values),
                      .tables_html = tables_html(rows),
                      .certificates_html = to_html(promises(rows)) + folded("Every certificate in full", certificates(rows)),
                      .made_html = made_html({runs.begin(), runs.end()}),
                      .data = json_text(page_data(rows, networks, nullptr)),
                      .script = reconstruction_script()};
  const std::size_t used = render_frame(content).size() + kReserve;

  std::vector<const Cell*> cells;
  cells.reserve(networks.size());
  for (const Network& network : networks) cells.push_back(network.cell);
  const Album album = pack_pictures(cells, used < kLargestPage ? kLargestPage - used : 0);
  values["left_out"] = left_out_html(album.left_out);
  content.main_html = fill(reconstruction_template(), values);
  content.data = json_text(page_data(rows, networks, &album));
  return render_frame(content);
}

}  // namespace invattn::reporting

#include "invattn/report/detection.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/io/safetensors.h"
#include "invattn/report/assets.h"
#include "invattn/report/drawing.h"
#include "invattn/report/foreign_json.h"
#include "invattn/report/pictures.h"
#include "invattn/report/table.h"

namespace invattn::reporting {
namespace {

using nlohmann::json;
using std::filesystem::path;

/// What the paper calls a variant, and what it prints of it for CAMO: S, mean F, mean E, MAE.
struct Printed {
  std::string_view variant;
  const char* name;
  std::array<const char*, 4> figures;
};

/// In the order of the paper's table.
constexpr std::array<Printed, 9> kPrinted{{{"concatenation", "Concat", {"0.799", "0.762", "0.850", "0.076"}},
                                           {"invertible-concatenation", "InvConcat", {"0.799", "0.759", "0.853", "0.075"}},
                                           {"dot-product", "Dot", {"0.799", "0.760", "0.853", "0.076"}},
                                           {"invertible-dot-product", "InvDot", {"0.686", "0.538", "0.696", "0.147"}},
                                           {"gaussian", "Gaus", {"0.798", "0.761", "0.849", "0.076"}},
                                           {"invertible-gaussian", "InvGaus", {"0.801", "0.764", "0.852", "0.076"}},
                                           {"embedded-gaussian", "EGaus", {"0.792", "0.750", "0.842", "0.077"}},
                                           {"invertible-embedded-gaussian", "InvEGaus", {"0.793", "0.754", "0.843", "0.078"}},
                                           {"base", "Base", {"0.791", "0.758", "0.840", "0.078"}}}};

/// One finished run.
struct Trained {
  path folder;
  std::string data;         // "camo", "synthetic", or the name of a folder
  std::size_t variant = 0;  // in kPrinted
  std::int64_t images = 0;
  std::array<double, 4> measures{};  // S, mean F, mean E, MAE
  std::vector<double> f{}, e{};      // by threshold
  double constant = kNotFinite;      // largest over the levels; not finite: nothing to invert
  double residual = kNotFinite;
  std::int64_t failures = 0;
  double seconds_per_epoch = kNotFinite;
};

/// All runs of one variant on the same data.
struct Group {
  std::string data;
  std::size_t variant = 0;
  std::vector<const Trained*> runs;
};

std::string decimals(int digits, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

/// "camo:/some/where" -> "camo", "/data/COD10K" -> "COD10K".
std::string data_name(const std::string& data) {
  const std::size_t colon = data.find(':');
  if (colon != std::string::npos) return data.substr(0, colon);
  const std::string name = path(data).filename().string();
  return name.empty() ? data : name;
}

double number(const json& value) { return value.is_number() ? value.get<double>() : kNotFinite; }

/// Nothing where the run has not finished.
std::optional<Trained> read_trained(const ResultsFile& file) {
  const json& results = file.content;
  try {
    if (!results.at("finished").get<bool>() || !results.contains("test")) return std::nullopt;
    const std::string variant = results.at("variant").get<std::string>();
    const auto* const found =
        std::find_if(kPrinted.begin(), kPrinted.end(), [&](const Printed& known) { return known.variant == variant; });
    if (file.experiment != Experiment::kDetection || found == kPrinted.end()) throw std::invalid_argument("another experiment");
    const json& test = results.at("test");
    Trained run{.folder = file.folder, .data = data_name(results.at("data").get<std::string>())};
    run.variant = static_cast<std::size_t>(found - kPrinted.begin());
    run.images = test.at("images").get<std::int64_t>();
    run.measures = {number(test.at("s_measure")), number(test.at("f_measure").at("mean")), number(test.at("e_measure").at("mean")),
                    number(test.at("mae"))};
    run.f = test.at("curves").at("f_measure").get<std::vector<double>>();
    run.e = test.at("curves").at("e_measure").get<std::vector<double>>();
    if (run.f.size() != 256 || run.e.size() != 256) throw std::invalid_argument("curves of another length");
    run.seconds_per_epoch = number(results.at("seconds_per_epoch"));
    for (const json& inverse : results.at("inverses")) {
      const auto largest = [](double known, double next) { return std::isfinite(known) ? std::max(known, next) : next; };
      run.constant = largest(run.constant, number(inverse.at("constant")));
      run.residual = largest(run.residual, number(inverse.at("residual")));
      run.failures += inverse.at("failures").get<std::int64_t>();
    }
    return run;
  } catch (const std::exception&) {
    fail(ErrorKind::kData, kOrigin, file.path.string(), ": expected the results of `invattn detect train`, got something else. ",
         "Name folders of such runs.");
  }
}

std::vector<Trained> read_runs(const std::vector<ResultsFile>& files) {
  std::vector<Trained> runs;
  std::string names;
  for (const ResultsFile& file : files) {
    names += (names.empty() ? "" : ", ") + file.folder.string();
    if (auto run = read_trained(file)) runs.push_back(std::move(*run));
  }
  if (runs.empty()) {
    fail(ErrorKind::kData, kOrigin, "expected finished runs of `invattn detect train`, got ", names,
         ". Let one finish, or name its folder.");
  }
  return runs;
}

std::vector<Group> groups_of(const std::vector<Trained>& runs) {
  std::map<std::pair<std::string, std::size_t>, Group> found;
  for (const Trained& run : runs) {
    Group& group = found[{run.data, run.variant}];
    group.data = run.data;
    group.variant = run.variant;
    group.runs.push_back(&run);
  }
  std::vector<Group> groups;
  groups.reserve(found.size());
  for (auto& [key, group] : found) groups.push_back(std::move(group));
  return groups;
}

double mean_of(const Group& group, std::size_t measure) {
  double sum = 0;
  for (const Trained* run : group.runs) sum += run->measures[measure];
  return sum / static_cast<double>(group.runs.size());
}

std::string measure_text(const Group& group, std::size_t measure) {
  const double mean = mean_of(group, measure);
  if (group.runs.size() < 2) return decimals(3, mean);
  double squares = 0;
  for (const Trained* run : group.runs) squares += (run->measures[measure] - mean) * (run->measures[measure] - mean);
  return decimals(3, mean) + " ± " + decimals(3, std::sqrt(squares / static_cast<double>(group.runs.size() - 1)));
}

std::string title_of(const Group& group) { return group.data == "camo" ? "CAMO" : group.data; }

Table measures_table(const std::vector<Group>& groups) {
  Table table{.name = "detection",
              .title = "Detection of camouflaged objects.",
              .note =
                  "S-measure, mean F and mean E (higher is better) and mean absolute error (lower is better); in brackets what the paper "
                  "prints, which was trained on other images (COD10K). Several seeds: mean ± standard deviation.",
              .labels = 2,
              .header = {"data", "method", "S", "F", "E", "MAE"}};
  for (const Group& group : groups) {
    std::vector<TableCell> row = {{.text = title_of(group)}, {.text = kPrinted[group.variant].name}};
    for (std::size_t i = 0; i < 4; ++i) {
      row.push_back({.text = measure_text(group, i), .printed = group.data == "camo" ? kPrinted[group.variant].figures[i] : ""});
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table inverse_table(const std::vector<Group>& groups) {
  Table table{.name = "inverse",
              .title = "Invertibility and time.",
              .note =
                  "Largest local Lipschitz constant of the attention branches and largest residual of their inverses, on the features of "
                  "test images at all levels; failures: images that did not come back; time of a training epoch.",
              .labels = 2,
              .header = {"data", "method", "constant", "residual", "failures", "epoch, s"}};
  for (const Group& group : groups) {
    double constant = kNotFinite;
    double residual = kNotFinite;
    double seconds = 0;
    std::int64_t failures = 0;
    for (const Trained* run : group.runs) {
      constant = std::isfinite(constant) ? std::max(constant, run->constant) : run->constant;
      residual = std::isfinite(residual) ? std::max(residual, run->residual) : run->residual;
      failures += run->failures;
      seconds += run->seconds_per_epoch / static_cast<double>(group.runs.size());
    }
    const bool inverted = std::isfinite(constant);
    table.rows.push_back({{.text = title_of(group)},
                          {.text = kPrinted[group.variant].name},
                          {.text = inverted ? short_number(constant) : "-"},
                          {.text = inverted ? short_number(residual) : "-"},
                          {.text = inverted ? std::to_string(failures) : "-"},
                          {.text = short_number(seconds)}});
  }
  return table;
}

// ---- figures

Colour colour_of(std::size_t variant) {
  constexpr std::array<Colour, 4> kColours{kBlue, kVermilion, kGreen, kPurple};
  return variant == kPrinted.size() - 1 ? kInk : kColours[variant / 2];
}

/// F and E by threshold; invertible attention is dashed, its plain kind drawn through in the same colour.
std::string draw_curves(const std::vector<const Group*>& groups) {
  constexpr double kWidth = 360;
  constexpr double kHeight = 260;
  Drawing drawing(1000, 400);
  drawing.text(24, 28, "F-measure and E-measure by threshold, " + title_of(*groups.front()), {.size = 15, .bold = true});
  std::vector<double> thresholds(256);
  for (std::size_t i = 0; i < thresholds.size(); ++i) thresholds[i] = static_cast<double>(i);
  for (int panel = 0; panel < 2; ++panel) {
    std::vector<double> all = {0};
    std::vector<std::vector<double>> curves;
    for (const Group* group : groups) {
      std::vector<double> mean(256, 0);
      for (const Trained* run : group->runs) {
        const std::vector<double>& curve = panel == 0 ? run->f : run->e;
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += curve[i] / static_cast<double>(group->runs.size());
      }
      all.insert(all.end(), mean.begin(), mean.end());
      curves.push_back(std::move(mean));
    }
    const Axis levels{.low = 0, .high = 255, .ticks = {{0, "0"}, {64, "64"}, {128, "128"}, {192, "192"}, {255, "255"}}};
    Plot plot(drawing, 70 + panel * (kWidth + 70), 70, kWidth, kHeight, levels, axis_around(all, false));
    plot.labels(panel == 0 ? "F-measure" : "E-measure", "threshold", "");
    for (std::size_t i = 0; i < groups.size(); ++i) {
      plot.curve(thresholds, curves[i], {.colour = colour_of(groups[i]->variant), .width = 1.5, .dashed = groups[i]->variant % 2 == 1});
    }
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double y = 80 + 20 * static_cast<double>(i);
    const std::size_t variant = groups[i]->variant;
    drawing.line({{885, y - 4}, {910, y - 4}}, {.colour = colour_of(variant), .width = 1.5, .dashed = variant % 2 == 1});
    drawing.text(916, y, kPrinted[variant].name, {.size = 12});
  }
  return drawing.png();
}

/// One line of pictures per image, with a name over each column.
std::string draw_grid(const std::string& title, const std::vector<std::string>& names, const std::vector<std::vector<at::Tensor>>& lines) {
  constexpr double kSide = 88;
  constexpr double kGap = 4;
  Drawing drawing(static_cast<std::int64_t>(std::max(420.0, 48 + static_cast<double>(names.size()) * (kSide + kGap))),
                  static_cast<std::int64_t>(80 + static_cast<double>(lines.size()) * (kSide + kGap)));
  drawing.text(24, 28, title, {.size = 15, .bold = true});
  for (std::size_t column = 0; column < names.size(); ++column) {
    const double x = 24 + static_cast<double>(column) * (kSide + kGap);
    drawing.text(x + kSide / 2, 54, names[column], {.size = 11, .align = Align::kCentre});
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const at::Tensor& picture = lines[i][column];
      drawing.image(x, 62 + static_cast<double>(i) * (kSide + kGap), picture, kSide / static_cast<double>(picture.size(2)));
    }
  }
  return drawing.png();
}

/// (H, W) of any numbers, black at the least and white at the largest.
at::Tensor stretched(const at::Tensor& values) {
  const at::Tensor low = values.min();
  return (255 * (values - low) / (values.max() - low).clamp_min(1e-12)).round().to(at::kByte).unsqueeze(0);
}

using Tensors = std::map<std::string, at::Tensor>;

/// The pictures of a run, or nothing where it has none.
Tensors read_pictures(const Trained& run) {
  const path file = run.folder / "pictures.safetensors";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  Tensors tensors = read_safetensors(file).tensors;
  const auto wrong = [&file](const char* name) {
    fail(ErrorKind::kData, kOrigin, file.string(), ": expected a tensor '", name, "' of some pictures, got none or another shape. ",
         "Run `invattn detect train` again.");
  };
  const auto fits = [&tensors](const char* name, int64_t dimensions) {
    const auto found = tensors.find(name);
    return found != tensors.end() && found->second.dim() == dimensions && found->second.numel() > 0 &&
           found->second.size(0) == tensors.at("images").size(0);
  };
  if (!tensors.contains("images") || tensors["images"].dim() != 4 || tensors["images"].size(1) != 3 ||
      tensors["images"].scalar_type() != at::kByte || tensors["images"].size(0) == 0) {
    wrong("images");
  }
  for (const char* name : {"truth", "map"}) {
    if (!fits(name, 3) || tensors[name].scalar_type() != at::kByte) wrong(name);
  }
  for (const char* name : {"attention1", "attention2", "attention3", "attention4"}) {
    if (tensors.contains("attention1") && !fits(name, 3)) wrong(name);
  }
  return tensors;
}

struct DrawnFigure {
  Figure figure;
  std::string caption;
};

std::vector<DrawnFigure> draw_figures_of(const std::string& data, const std::vector<const Group*>& groups) {
  std::vector<DrawnFigure> figures = {{{"curves-" + data, draw_curves(groups)}, "F and E by threshold. Invertible attention is dashed."}};
  std::vector<std::string> names = {"image", "truth"};
  std::vector<std::vector<at::Tensor>> lines;
  at::Tensor shared;  // the images of the first: the others show the same, or are left out
  for (const Group* group : groups) {
    const Tensors pictures = read_pictures(*group->runs.front());
    if (pictures.empty()) continue;
    const at::Tensor& images = pictures.at("images");
    if (!shared.defined()) {
      shared = images;
      for (int64_t i = 0; i < images.size(0); ++i) lines.push_back({images[i], pictures.at("truth")[i].unsqueeze(0)});
    }
    if (!at::equal(shared, images)) continue;
    names.emplace_back(kPrinted[group->variant].name);
    for (int64_t i = 0; i < images.size(0); ++i) lines[static_cast<std::size_t>(i)].push_back(pictures.at("map")[i].unsqueeze(0));
    if (!pictures.contains("attention1")) continue;
    std::vector<std::vector<at::Tensor>> looks;
    for (int64_t i = 0; i < images.size(0); ++i) {
      auto& line = looks.emplace_back(std::vector<at::Tensor>{images[i]});
      for (int level = 1; level <= 4; ++level) line.push_back(stretched(pictures.at("attention" + std::to_string(level))[i]));
    }
    const std::string name = kPrinted[group->variant].name;
    figures.push_back(
        {{"attention-" + data + "-" + std::string(kPrinted[group->variant].variant),
          draw_grid("Where the object's middle attends: " + name, {"image", "level 1", "level 2", "level 3", "level 4"}, looks)},
         name + ": what the middle of the object takes from each part of the image, level by level."});
  }
  if (!lines.empty()) {
    figures.insert(figures.begin() + 1, {{"maps-" + data, draw_grid("Maps, " + title_of(*groups.front()), names, lines)},
                                         "Images, truths and what each network found."});
  }
  return figures;
}

}  // namespace

std::vector<ResultsFile> find_detection_runs(const std::vector<path>& folders) {
  std::vector<ResultsFile> runs;
  for (const path& folder : folders) {
    std::error_code ignored;
    std::vector<path> inside;
    if (!std::filesystem::exists(folder / "results.json", ignored)) {
      for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        if (std::filesystem::exists(entry.path() / "results.json", ignored)) inside.push_back(entry.path());
      }
    }
    if (inside.empty()) inside.push_back(folder);
    std::sort(inside.begin(), inside.end());
    for (const path& run : inside) runs.push_back(read_results(run));
  }
  return runs;
}

Table detection_results(const std::vector<ResultsFile>& runs) {
  const std::vector<Trained> trained = read_runs(runs);
  return measures_table(groups_of(trained));
}

Report detection_report(const std::vector<ResultsFile>& runs) {
  const std::vector<Trained> trained = read_runs(runs);
  const std::vector<Group> groups = groups_of(trained);
  Report report{.tables = {measures_table(groups), inverse_table(groups)}};
  std::string body = "<h2>Results</h2>\n";
  for (const Table& table : report.tables) body += to_html(table);
  std::map<std::string, std::vector<const Group*>> by_data;
  for (const Group& group : groups) by_data[group.data].push_back(&group);
  for (const auto& [data, some] : by_data) {
    for (DrawnFigure& drawn : draw_figures_of(data, some)) {
      body += "<figure><img style=\"max-width: 100%\" alt=\"" + escape_html(drawn.caption) + "\" src=\"data:image/png;base64," +
              base64(drawn.figure.png) + "\"><figcaption>" + escape_html(drawn.caption) + "</figcaption></figure>\n";
      report.figures.push_back(std::move(drawn.figure));
    }
  }
  report.page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>Detection of camouflaged objects</title><style>" +
      std::string(page_style()) +
      "</style></head><body>\n<header class=\"top\"><h1>Camouflaged objects, with attention that can be undone</h1></header>\n<main>\n" +
      body + "</main></body></html>\n";
  return report;
}

}  // namespace invattn::reporting

#include "invattn/report/density_page.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <nlohmann/json.hpp>

#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/report/assets.h"
#include "invattn/report/density_tables.h"
#include "invattn/report/foreign_json.h"
#include "invattn/report/frame.h"
#include "invattn/report/grouping.h"
#include "invattn/report/pictures.h"
#include "invattn/report/table.h"

namespace invattn::reporting {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostSamples = 12;  // of one run

ordered_json list(const std::vector<double>& values, int digits) {
  ordered_json result = ordered_json::array();
  for (const std::size_t place : places(values.size())) result.push_back(json_number(rounded(values[place], digits)));
  return result;
}

ordered_json curve_json(const DensityCurve& curve) {
  return {{"steps", list(curve.steps, 9)},
          {"seconds", list(curve.seconds, 6)},
          {"bits", list(curve.bits, 6)},
          {"gradient_norm", list(curve.gradient_norm, 4)},
          {"largest", list(curve.largest, 4)}};
}

ordered_json page_data(const std::vector<DensityRecord>& records) {
  ordered_json runs = ordered_json::array();
  for (const DensityRecord& record : records) {
    runs.push_back({{"label", record.label}, {"training", curve_json(record.training)}, {"looks", curve_json(record.looks)}});
  }
  return {{"unit", records.front().unit()}, {"printed", paper_has_density(records.front())}, {"runs", std::move(runs)}};
}

std::string summary(const std::vector<DensityRecord>& records) {
  const DensityRecord& first = records.front();
  std::string text = plural(records.size(), "flow") + " trained by maximum likelihood on " + first.title() + ". ";
  if (first.plane) return text + "Nats per point count what a point costs under the model: lower is better.";
  return text + "Bits per dimension count what an image costs under the model, noise of the dequantisation included: lower is better.";
}

std::string notices(const std::vector<DensityRecord>& records) {
  std::string html;
  for (const DensityRecord& record : records) {
    const std::string which = records.size() > 1 ? "The run " + record.label : "This run";
    const DensityResult& result = record.best();
    if (result.inverse_failures > 0) {
      html += notice_html(which + " cannot be undone everywhere: " + inverses_text(result) + " " + record.things() + " were.");
    }
    if (!record.warning.empty())
      html += notice_html((records.size() > 1 ? "The run " + record.label + ": " : std::string()) + record.warning);
    if (!record.training.steps.empty() && record.training.steps.back() > static_cast<double>(record.steps)) {
      html += notice_html(which + " has gone on since its results were written, after " + with_commas(record.steps) +
                          " steps: the figures are of then.");
    }
  }
  return html;
}

/// The figures of one run in large print.
std::string readings(const DensityRecord& record) {
  const DensityResult& result = record.best();
  std::string html = "<dl class=\"readings wide\">\n";
  const auto reading = [&html](const std::string& name, const std::string& value) {
    html += "<div><dt>" + escape_html(name) + "</dt><dd>" + escape_html(value) + "</dd></div>\n";
  };
  reading(std::string(record.unit()) + (result.unbiased() ? ", unbiased" : ", biased") + ", " + with_commas(result.images) + " " +
              result.split + " " + record.things(),
          with_error(result));
  if (std::isfinite(record.training_loss)) {
    reading("training loss, beside " + decimals(4, record.results.front().bits) + " held out", decimals(4, record.training_loss));
  }
  reading(std::string(record.things()) + " undone", inverses_text(result));
  if (result.inverse_images > 0)
    reading(record.plane ? "largest error of the inverse" : "largest error of the inverse, of the pixels' range",
            short_number(result.inverse_error));
  reading("weights", with_commas(record.parameters));
  reading("steps of " + with_commas(record.batch) + " " + record.things(), with_commas(record.steps));
  reading("seconds of training", short_number(record.seconds));
  return html + "</dl>\n";
}

struct Samples {
  std::string html{};
  std::set<std::int64_t> steps{};
};

/// All pictures of all runs, of each run at most `most`; the script shows those of one step, and without it the last ones are seen.
Samples samples_html(const std::vector<DensityRecord>& records, std::size_t most) {
  Samples result;
  for (const DensityRecord& record : records) {
    if (record.samples.empty()) continue;
    result.html += "<figure class=\"sample\">\n";
    const std::size_t count = std::min(most, record.samples.size());
    for (std::size_t i = 0; i < count; ++i) {
      const DensitySample& sample = record.samples[count < 2 ? record.samples.size() - 1 : i * (record.samples.size() - 1) / (count - 1)];
      read_image(sample.path);  // what is damaged is an error here, not a hole in the page
      const std::string what = record.plane ? "Samples of the data, and beside them the learned density" : "Samples";
      result.html += "<img data-step=\"" + std::to_string(sample.step) + "\" alt=\"" +
                     escape_html(what + ", " + record.label + ", after " + with_commas(sample.step) + " steps") + "\"" +
                     (i + 1 < count ? " hidden" : "") + " src=\"data:image/png;base64," + base64(read_text(sample.path)) + "\">\n";
      result.steps.insert(sample.step);
    }
    result.html += "<figcaption>" + escape_html(record.label) + "</figcaption>\n</figure>\n";
  }
  return result;
}

}  // namespace

std::string render_density_page(const std::vector<DensityRecord>& records) {
  std::string tables;
  std::vector<Table> all = density_tables(records);
  for (std::size_t i = 1; i + 1 < all.size(); ++i) tables += to_html(all[i]);
  tables += folded("Every evaluation, with its estimator in full", all.back());
  const bool plane = records.front().plane;
  std::map<std::string, std::string, std::less<>> values = {
      {"readings", records.size() == 1 ? readings(records.front()) : std::string()},
      {"results", to_html(all.front())},
      {"samples", ""},
      {"samples_title", plane ? "The density it learned" : "Samples"},
      {"samples_explain", plane ? "Left: points of the data. Right: the density of the flow, darker where it is higher."
                                : "Images out of noise, each from the same latents throughout."},
      {"sample_steps", ""},
      {"samples_empty", ""},
      {"tables", tables},
      {"certificates", to_html(density_certificates(records))}};
  PageContent content{.experiment = "Density estimation by invertible attention",
                      .title = records.size() == 1 ? records.front().name : plural(records.size(), "run"),
                      .headline = density_headline(records),
                      .summary = summary(records),
                      .notices_html = notices(records),
                      .made_html = made_html({records.begin(), records.end()}),
                      .data = page_data(records).dump(-1, ' ', false, ordered_json::error_handler_t::replace),
                      .script = density_script()};
  const std::size_t used = render_frame(content).size() + tables.size();
  Samples samples;
  for (std::size_t most = kMostSamples; most > 0; --most) {
    samples = samples_html(records, most);
    if (used + samples.html.size() < kLargestPage) break;
    samples = {};
  }
  std::string steps;
  for (const std::int64_t step : samples.steps) steps += (steps.empty() ? "" : ",") + std::to_string(step);
  values["samples"] = samples.html;
  values["sample_steps"] = steps;
  if (samples.html.empty())
    values["samples_empty"] = "<p class=\"empty\">No pictures of samples are stored in the run, or they are too large for this page.</p>";
  content.main_html = fill(density_template(), values);
  return render_frame(content);
}

}  // namespace invattn::reporting

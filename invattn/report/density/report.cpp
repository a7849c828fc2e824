#include "invattn/report/density/report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <nlohmann/json.hpp>

#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/report/assets.h"
#include "invattn/report/density/charts.h"
#include "invattn/report/density/tables.h"
#include "invattn/report/frame.h"
#include "invattn/report/naming.h"
#include "invattn/report/packing.h"
#include "invattn/report/run_files.h"
#include "invattn/report/table.h"

namespace invattn::reporting {
namespace {

constexpr std::size_t kMostSamples = 12;  // of one run

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
    if (const std::string warning = record.warning.value_or(""); !warning.empty())
      html += notice_html((records.size() > 1 ? "The run " + record.label + ": " : std::string()) + warning);
    if (!record.training.steps.empty() && record.training.steps.back() > static_cast<double>(record.steps)) {
      html += notice_html(which + " has gone on since its results were written, after " + with_commas(record.steps) +
                          " steps: the figures are of then.");
    }
  }
  return html;
}

/// The figures of one run.
std::string readings(const DensityRecord& record) {
  const DensityResult& result = record.best();
  const std::string things = record.things();
  std::vector<std::pair<std::string, std::string>> readings = {{std::string(record.unit()) +
                                                                    (result.unbiased() ? ", unbiased" : ", biased") + ", " +
                                                                    with_commas(result.images) + " " + result.split + " " + things,
                                                                with_error(result)}};
  if (const double loss = record.training_loss.value_or(kNotFinite); std::isfinite(loss)) {
    readings.emplace_back("training loss, beside " + decimals(4, record.validation.bits) + " held out", decimals(4, loss));
  }
  readings.emplace_back(things + " undone", inverses_text(result));
  if (result.inverse_images > 0)
    readings.emplace_back(record.plane ? "largest error of the inverse" : "largest error of the inverse, of the pixels' range",
                          short_number(result.inverse_error));
  readings.emplace_back("weights", with_commas(record.parameters));
  readings.emplace_back("steps of " + with_commas(record.batch) + " " + things, with_commas(record.steps));
  readings.emplace_back("seconds of training", short_number(record.seconds));
  return readings_html(readings);
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
      {"samples_empty", ""}};
  PageContent content{.experiment = "Density estimation by invertible attention",
                      .title = records.size() == 1 ? records.front().name : plural(records.size(), "run"),
                      .headline = density_headline(records),
                      .summary = summary(records),
                      .notices_html = notices(records),
                      .tables_html = tables,
                      .certificates_html = to_html(density_certificates(records)),
                      .made_html = made_html({records.begin(), records.end()}),
                      .data = json_text(nlohmann::ordered_json{{"charts", charts_json(density_charts(records))}}),
                      .script = density_script()};
  const std::size_t used = render_frame(content).size();
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

}  // namespace

Report density_report(const std::vector<ResultsFile>& results) {
  std::vector<DensityRecord> read;
  read.reserve(results.size());
  for (const ResultsFile& file : results) read.push_back(read_density_record(file));
  name_apart(read);
  const auto records = std::make_shared<const std::vector<DensityRecord>>(std::move(read));
  Report report{.tables = density_tables(*records),
                .figures = [records] { return draw_density_figures(records->front()); },
                .page = [records] { return render_density_page(*records); }};
  report.tables.push_back(density_certificates(*records));
  return report;
}

}  // namespace invattn::reporting

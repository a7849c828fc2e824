#include "invattn/report/detection/page.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <nlohmann/json.hpp>

#include "invattn/io/json_fields.h"
#include "invattn/report/assets.h"
#include "invattn/report/detection/charts.h"
#include "invattn/report/frame.h"
#include "invattn/report/naming.h"
#include "invattn/report/packing.h"

namespace invattn::reporting {
namespace {

using nlohmann::ordered_json;

/// How much of the pictures the page carries.
struct Plan {
  std::int64_t images;
  std::int64_t side;       // longest, in pixels
  std::int64_t positions;  // of an image, whose attention can be asked for
};

/// From the richest to the poorest; the first that fits is taken.
constexpr std::array<Plan, 6> kPlans{{{6, 176, 256}, {6, 118, 256}, {6, 118, 64}, {4, 88, 64}, {2, 88, 64}, {1, 64, 16}}};
constexpr std::int64_t kFeatureSide = 44;
constexpr std::size_t kReserve = 60'000;  // bytes for what is counted only roughly

/// Everything the script needs but the pictures.
ordered_json page_data(const std::vector<DetectionGroup>& groups) {
  const std::vector<std::string> labels = labels_of(groups);
  ordered_json networks = ordered_json::array();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    networks.push_back({{"label", labels[i]}, {"inverses", record_to_json(groups[i].first().inverses)}, {"pictures", nullptr}});
  }
  return {{"response_levels", kResponseLevels},
          {"training", charts_json(training_charts(groups))},
          {"thresholds", charts_json(threshold_charts(groups))},
          {"originals", ordered_json::array()},
          {"networks", std::move(networks)}};
}

/// (K, r, c) of any numbers as a response of one query: how strongly, largest 255.
at::Tensor as_response(const at::Tensor& attention) {
  const at::Tensor strength = attention.abs().flatten(1).unsqueeze(1);
  return (strength / strength.amax(2, /*keepdim=*/true).clamp_min(1e-30) * 255).round().to(at::kByte);
}

/// Which cell of a grid lies on the object, most of it.
std::int64_t middle_of(const at::Tensor& truth, std::int64_t rows, std::int64_t columns) {
  const at::Tensor cover = at::adaptive_avg_pool2d(truth.to(at::kFloat).unsqueeze(0), {rows, columns});
  return cover.flatten().argmax().item<std::int64_t>();
}

ordered_json level_json(const LevelPictures& level, const at::Tensor& truth, const Plan& plan) {
  const std::int64_t count = truth.size(0);
  const bool asked = level.response.defined();
  const PackedResponse packed =
      asked ? pack_response(level.response.narrow(0, 0, count), level.rows, level.columns, plan.positions)
            : pack_response(as_response(level.attention.narrow(0, 0, count)), level.attention.size(1), level.attention.size(2), 1);
  ordered_json middles = ordered_json::array();
  for (std::int64_t k = 0; k < count; ++k) middles.push_back(middle_of(truth[k], packed.rows, packed.columns));
  ordered_json result = {{"grid", {packed.rows, packed.columns}},
                         {"stride", packed.stride},
                         {"maps", packed.maps},
                         {"middles", std::move(middles)},
                         {"features", nullptr}};
  if (!level.features.defined()) return result;
  const at::Tensor features = shrink(level.features.narrow(0, 0, count), kFeatureSide);
  ordered_json pictures = ordered_json::array();
  ordered_json largest = ordered_json::array();
  for (std::int64_t k = 0; k < count; ++k) {
    const at::Tensor error = level.error[k];
    const double most = error.max().item<double>();
    const at::Tensor shown = (error / std::max(most, 1e-30) * 255).nan_to_num(255, 255, 255).clamp(0, 255).round().to(at::kByte);
    pictures.push_back(pack_picture(at::cat({features[k].flatten(0, 1), shrink(shown, kFeatureSide).unsqueeze(0)})));
    largest.push_back(json_number(rounded(most, 3)));
  }
  result["features"] = {{"size", {features.size(3), features.size(4)}}, {"pictures", std::move(pictures)}, {"largest", std::move(largest)}};
  return result;
}

/// The pictures of each network into its place in `data`, of the first of its runs that has some. How many images are left out.
std::int64_t add_pictures(ordered_json& data, const std::vector<std::optional<DetectionPictures>>& all, const Plan& plan) {
  std::int64_t left_out = 0;
  std::vector<at::Tensor> seen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) continue;
    const DetectionPictures& pictures = *all[i];
    const std::int64_t count = std::min(pictures.count(), plan.images);
    left_out = std::max(left_out, pictures.count() - count);
    const at::Tensor truth = pictures.truth.narrow(0, 0, count);
    const at::Tensor map = pictures.map.narrow(0, 0, count);
    const auto packed = [&](const at::Tensor& images) {
      const at::Tensor small = shrink(images.narrow(0, 0, count), plan.side);
      ordered_json texts = ordered_json::array();
      for (std::int64_t k = 0; k < count; ++k) texts.push_back(pack_picture(small[k]));
      return texts;
    };
    // The networks of a data set are shown the same images; they are stored once.
    auto same = std::find_if(seen.begin(), seen.end(), [&](const at::Tensor& other) { return other.equal(pictures.images); });
    if (same == seen.end()) {
      const at::Tensor small = shrink(pictures.images.narrow(0, 0, count), plan.side);
      data["originals"].push_back(
          {{"height", small.size(2)}, {"width", small.size(3)}, {"images", packed(pictures.images)}, {"truths", packed(pictures.truth)}});
      seen.push_back(pictures.images);
      same = seen.end() - 1;
    }
    ordered_json levels = ordered_json::array();
    for (const LevelPictures& level : pictures.levels) levels.push_back(level_json(level, truth, plan));
    ordered_json errors = ordered_json::array();
    const at::Tensor apart = (map.to(at::kDouble) - truth.to(at::kDouble)).abs().mean(at::IntArrayRef{1, 2}) / 255;
    for (std::int64_t k = 0; k < count; ++k) errors.push_back(rounded(apart[k].item<double>(), 3));
    data["networks"][i]["pictures"] = {
        {"originals", same - seen.begin()}, {"maps", packed(pictures.map)}, {"errors", std::move(errors)}, {"levels", std::move(levels)}};
  }
  return left_out;
}

struct Undone {
  std::int64_t failures = 0;
  std::int64_t tried = 0;
  double error = 0;
};

/// Over all levels.
Undone undone(const DetectionRecord& record) {
  Undone result;
  for (const BlockInverse& inverse : record.inverses) {
    result.failures += inverse.failures;
    result.tried += inverse.images;
    result.error = std::isfinite(inverse.error) ? std::max(result.error, inverse.error) : kNotFinite;
  }
  return result;
}

std::string undone_text(const Undone& inverse) {
  return with_commas(inverse.tried - inverse.failures) + " of " + with_commas(inverse.tried);
}

std::string notices(const std::vector<DetectionRecord>& records) {
  std::string html;
  for (const DetectionRecord& record : records) {
    const Undone inverse = undone(record);
    if (inverse.failures == 0) continue;
    html += notice_html((records.size() > 1 ? "The run " + record.name : "This run") +
                        " cannot be undone everywhere: " + undone_text(inverse) + " features of images were.");
  }
  return html;
}

/// The figures of one run.
std::string readings(const DetectionRecord& record) {
  std::vector<std::pair<std::string, std::string>> result;
  constexpr std::array<const char*, 4> kNames{"S-measure", "mean F", "mean E", "mean absolute error"};
  for (std::size_t i = 0; i < kNames.size(); ++i) result.emplace_back(kNames[i], decimals(3, record.measures[i]));
  if (const Undone inverse = undone(record); inverse.tried > 0) {
    result.emplace_back("features undone, all levels", undone_text(inverse));
    result.emplace_back("largest error of an inverse", short_number(inverse.error));
  }
  result.emplace_back("weights", with_commas(record.parameters));
  result.emplace_back("seconds for " + plural(static_cast<std::size_t>(std::max<std::int64_t>(record.epochs, 0)), "epoch"),
                      short_number(record.seconds));
  return readings_html(result);
}

Table levels_table(const std::vector<DetectionRecord>& records) {
  Table table{.name = "levels",
              .title = "Inverses, level by level.",
              .note = "On the features of test images that each block is given; level 1 is the finest.",
              .labels = 2,
              .header = {"run", "network", "level", "positions", "undone", "residual", "largest error", "iterations", "constant"}};
  for (const DetectionRecord& record : records) {
    for (const BlockInverse& inverse : record.inverses) {
      table.rows.push_back({record.name, record.title(), std::to_string(inverse.level), with_commas(inverse.positions),
                            with_commas(inverse.images - inverse.failures) + " of " + with_commas(inverse.images),
                            short_number(inverse.residual), short_number(inverse.error), with_commas(inverse.iterations),
                            short_number(inverse.constant)});
    }
  }
  return table;
}

Table certificates(const std::vector<DetectionRecord>& records) {
  Table table{.name = "certificates",
              .title = "Certificates.",
              .note = "One per attention block, finest level first.",
              .labels = 3,
              .header = {"run", "network", "certificate"}};
  for (const DetectionRecord& record : records) {
    for (const std::string& text : record.certificates) table.rows.push_back({record.name, record.title(), text});
    if (record.certificates.empty()) table.rows.push_back({record.name, record.title(), "nothing is promised"});
  }
  return table;
}

}  // namespace

std::string detection_headline(const std::vector<DetectionGroup>& groups) {
  Undone all{};
  for (const DetectionGroup& group : groups) {
    for (const DetectionRecord* run : group.runs) {
      const Undone one = undone(*run);
      all.failures += one.failures;
      all.tried += one.tried;
      all.error = std::isfinite(one.error) ? std::max(all.error, one.error) : kNotFinite;
    }
  }
  const std::string inverse =
      all.tried == 0 ? "" : "; its attention undone " + undone_text(all) + " times, largest error " + short_number(all.error);
  const DetectionRecord& first = groups.front().first();
  if (groups.size() == 1 && groups.front().runs.size() == 1) {
    return first.data_title() + ", " + first.title() + ": S " + decimals(3, first.measures[0]) + ", mean F " +
           decimals(3, first.measures[1]) + ", mean E " + decimals(3, first.measures[2]) + ", MAE " + decimals(3, first.measures[3]) +
           " on " + plural(static_cast<std::size_t>(std::max<std::int64_t>(first.test->images, 0)), "test image") + inverse + ".";
  }
  const auto less = [](const DetectionGroup& a, const DetectionGroup& b) { return a.measure(0) < b.measure(0); };
  const auto [worst, best] = std::minmax_element(groups.begin(), groups.end(), less);
  std::set<std::string> data;
  for (const DetectionGroup& group : groups) data.insert(group.first().data_title());
  std::string text;
  for (const std::string& name : data) text += (text.empty() ? "" : " and ") + name;
  return text + ", " + plural(groups.size(), "network") + ": S from " + decimals(3, worst->measure(0)) + " (" + worst->first().title() +
         ") to " + decimals(3, best->measure(0)) + " (" + best->first().title() + ")" +
         (all.tried == 0 ? "" : "; invertible attention undone " + undone_text(all) + " times") + ".";
}

std::string render_detection_page(const std::vector<DetectionRecord>& records, const std::vector<DetectionGroup>& groups,
                                  const std::vector<Table>& tables) {
  std::string more;
  for (std::size_t i = 1; i < tables.size(); ++i) more += to_html(tables[i]);
  const Table levels = levels_table(records);
  if (!levels.rows.empty()) more += folded("Every level of every network", levels);
  std::map<std::string, std::string, std::less<>> values = {{"readings", records.size() == 1 ? readings(records.front()) : std::string()},
                                                            {"results", to_html(tables.front())},
                                                            {"left_out", ""}};
  ordered_json data = page_data(groups);
  PageContent content{.experiment = kDetectionTitle,
                      .title = records.size() == 1 ? records.front().name : plural(records.size(), "run"),
                      .headline = detection_headline(groups),
                      .summary = plural(records.size(), "detector") +
                                 " trained to find objects that look like what is around them, without attention or with it at each of " +
                                 "four levels, plain or invertible. S, F and E: higher is better; MAE, the mean absolute error: lower.",
                      .notices_html = notices(records),
                      .main_html = fill(detection_template(), values),
                      .tables_html = more,
                      .certificates_html = to_html(certificates(records)),
                      .made_html = made_html({records.begin(), records.end()}),
                      .data = json_text(data),
                      .script = detection_script()};
  const std::size_t used = render_frame(content).size() + kReserve;

  std::vector<std::optional<DetectionPictures>> pictures;
  for (const DetectionGroup& group : groups) {
    std::optional<DetectionPictures> found;
    for (const DetectionRecord* run : group.runs) {
      if (!found) found = read_detection_pictures(*run);
    }
    pictures.push_back(std::move(found));
  }
  for (const Plan& plan : kPlans) {
    ordered_json with = data;
    const std::int64_t left_out = add_pictures(with, pictures, plan);
    std::string text = json_text(with);
    if (used + text.size() >= kLargestPage) continue;
    content.data = std::move(text);
    values["left_out"] = left_out_html(left_out);
    content.main_html = fill(detection_template(), values);
    break;
  }
  return render_frame(content);
}

}  // namespace invattn::reporting

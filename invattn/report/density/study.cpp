#include "invattn/report/density/study.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <numbers>
#include <set>
#include <type_traits>
#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/report/assets.h"
#include "invattn/report/chart.h"
#include "invattn/report/frame.h"
#include "invattn/report/naming.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {
namespace {

constexpr double kErrors = 2;  // standard errors over seeds that a claim has to pass

std::string decimals(double value, const char* pattern = "%.4f") {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

/// "-0.0123 ± 0.0030", with U+2212 for the minus.
std::string signed_text(double value, const std::optional<double>& error) {
  const std::string number = (value < 0 ? "−" : "+") + decimals(std::abs(value));
  return error ? number + " ± " + decimals(*error) : number;
}

std::string seeds_text(std::size_t count) { return plural(count, "seed"); }

std::string title_of(const DensityStudy& study) {
  return study.plane ? study.dataset : View{.dataset = study.dataset, .height = study.height, .width = study.width}.title();
}

std::vector<const StudyRun*> runs_of(const DensityStudy& study, const std::string& arm) {
  std::vector<const StudyRun*> runs;
  for (const StudyRun& run : study.runs) {
    if (run.arm == arm) runs.push_back(&run);
  }
  return runs;
}

bool attends(const DensityStudy& study, const std::string& arm) {
  const auto runs = runs_of(study, arm);
  return !runs.empty() && runs.front()->attention != "none";
}

/// Mean, and the standard error where there are several.
std::pair<double, std::optional<double>> mean_of(const std::vector<double>& values) {
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  if (values.size() < 2) return {mean, std::nullopt};
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(values.size());
  return {mean, std::sqrt(squares / (count - 1) / count)};
}

template <class Field>
std::vector<double> figures_of(const std::vector<const StudyRun*>& runs, Field&& field) {
  std::vector<double> values;
  for (const StudyRun* run : runs) {
    if (const std::optional<double> value = field(*run)) values.push_back(*value);
  }
  return values;
}

std::string mean_text(const std::vector<double>& values, const char* pattern = "%.4f", double unit = 1) {
  if (values.empty()) return "";
  const auto [mean, error] = mean_of(values);
  return decimals(unit * mean, pattern) + (error ? " ± " + decimals(unit * *error, pattern) : "");
}

std::string blocks_text(const std::vector<int64_t>& blocks) {
  std::string text;
  for (const int64_t count : blocks) text.append(text.empty() ? "" : "-").append(std::to_string(count));
  return text;
}

std::string undone_text(int64_t failures, int64_t images) {
  return images == 0 ? "not looked at" : with_commas(images - failures) + " of " + with_commas(images);
}

/// "at equal steps" of the finished flows.
std::string when(const DensityStudy& study) { return study.match == StudyMatch::kSteps ? "at equal steps" : "at equal time"; }

std::string measure_text(const DensityStudy& study, StudyMeasure measure) {
  switch (measure) {
    case StudyMeasure::kTest:
      return "test " + std::string(study.things()) + ", " + when(study);
    case StudyMeasure::kHeldOut:
      return "held-out " + std::string(study.things()) + ", after " + short_number(study.seconds) + " s each";
    case StudyMeasure::kKnockOut:
      break;
  }
  return "test " + std::string(study.things()) + ", with its attention and without";
}

/// A flow that was trained with attention may need it without being the better for it.
std::string verdict_text(const StudyDifference& difference) {
  if (difference.measure != StudyMeasure::kKnockOut) return std::string(to_string(difference.verdict));
  if (difference.verdict == StudyVerdict::kGain) return "attention is used";
  return difference.verdict == StudyVerdict::kLoss ? "better without" : std::string(to_string(difference.verdict));
}

/// "gains 0.0123 ± 0.0030 over none".
std::string clause(const StudyDifference& difference) {
  const std::string size = decimals(std::abs(difference.mean)) + (difference.seed_error ? " ± " + decimals(*difference.seed_error) : "");
  switch (difference.verdict) {
    case StudyVerdict::kGain:
      return "gains " + size + " over " + difference.reference;
    case StudyVerdict::kLoss:
      return "loses " + size + " against " + difference.reference;
    case StudyVerdict::kNothing:
      return "shows no difference from " + difference.reference + " (" + signed_text(difference.mean, difference.seed_error) + ")";
    case StudyVerdict::kOneSeed:
      break;
  }
  return "differs from " + difference.reference + " by " + signed_text(difference.mean, {}) + " with one seed, which claims nothing";
}

std::string seeds_of(const DensityStudy& study) {
  std::set<int64_t> seeds;
  for (const StudyRun& run : study.runs) seeds.insert(run.seed);
  return seeds_text(seeds.size());
}

std::string summary(const DensityStudy& study) {
  return plural(study.runs.size(), "flow") + " in " + plural(study.arms.size(), "arm") + ", " + seeds_of(study) + ", judged on the same " +
         with_commas(study.images) + " test " + study.things() + (study.plane ? "" : " with the same noise") +
         ". Lower is better. A gain or a loss is claimed only where the mean over seeds passes twice its standard error over seeds.";
}

std::string notices(const DensityStudy& study) {
  std::string html;
  std::set<std::string> machines;
  std::set<std::string> estimated;
  for (const StudyRun& run : study.runs) {
    machines.insert(run.made_with);
    if (run.inverse_failures > 0) {
      html +=
          notice_html("The flow " + run.folder + " cannot be undone everywhere: " + undone_text(run.inverse_failures, run.inverse_images) +
                      " held-out " + study.things() + " were.");
    }
  }
  if (machines.size() > 1) {
    std::string names;
    for (const std::string& machine : machines) names += (names.empty() ? "" : "; ") + machine;
    html += notice_html("The runs were not all made alike, and their times cannot be compared: " + names + ".");
  }
  if (study.estimator.starts_with("series")) {
    html += notice_html("The figures are of a truncated series, which is biased, and by how much depends on the flow.");
  }
  const bool curves = std::any_of(study.differences.begin(), study.differences.end(),
                                  [](const StudyDifference& difference) { return difference.measure == StudyMeasure::kHeldOut; });
  if (!curves) {
    html += notice_html("There is no comparison at equal seconds: some runs have no look at the held-out " + std::string(study.things()) +
                        " so early. Train with evaluate_every above 0.");
  }
  return html;
}

/// Without the knock-outs, which are far away from the others.
std::vector<StudyDifference> arm_against_arm(const DensityStudy& study) {
  std::vector<StudyDifference> differences = study.differences;
  std::erase_if(differences, [](const StudyDifference& difference) { return difference.measure == StudyMeasure::kKnockOut; });
  return differences;
}

/// Each difference as an interval of two standard errors around its mean, with a dot for each seed.
Chart differences_chart(const DensityStudy& study) {
  Chart chart{.name = "differences",
              .below = std::string(study.unit()) + ": mean over seeds with two standard errors over seeds, a dot for each seed",
              .rulers = {{.value = 0, .label = "0"}}};
  std::vector<std::string> names;
  std::vector<std::string> verdicts;
  std::set<StudyMeasure> listed;
  for (const StudyDifference& difference : arm_against_arm(study)) {
    const auto row = static_cast<double>(names.size());
    const auto colour = static_cast<int>(difference.measure);
    const std::string measure(to_string(difference.measure));
    names.push_back(difference.arm + " − " + difference.reference + " (" + measure + ")");
    verdicts.push_back(verdict_text(difference));
    const double reach = kErrors * difference.seed_error.value_or(0);
    chart.series.push_back({.legend = listed.insert(difference.measure).second ? measure : "",
                            .x = {difference.mean - reach, difference.mean + reach},
                            .y = {row, row},
                            .colour = colour});
    chart.series.push_back({.x = {difference.mean}, .y = {row}, .colour = colour, .width = 0, .dots = 9});
    chart.series.push_back(
        {.x = difference.values, .y = std::vector<double>(difference.values.size(), row), .colour = colour, .width = 0, .dots = 5});
  }
  fit_axes(chart, {0});
  chart.y = axis_of_names(names, verdicts);
  return chart;
}

/// Held-out figures over steps, and over seconds of training steps: a colour per arm.
std::vector<Chart> look_charts(const DensityStudy& study) {
  if (std::none_of(study.runs.begin(), study.runs.end(), [](const StudyRun& run) { return run.look_steps.size() > 1; })) return {};
  std::vector<Chart> charts = {{.name = "by-steps", .below = "steps", .beside = study.unit()},
                               {.name = "by-time", .below = "seconds", .beside = study.unit()}};
  std::set<std::string> listed;
  for (const StudyRun& run : study.runs) {
    const auto arm = std::find(study.arms.begin(), study.arms.end(), run.arm) - study.arms.begin();
    Series series{.name = run.arm + ", seed " + std::to_string(run.seed),
                  .legend = listed.insert(run.arm).second ? run.arm : "",
                  .x = run.look_steps,
                  .y = run.look_bits,
                  .colour = static_cast<int>(arm),
                  .width = 1.5,
                  .dots = 5};
    charts[0].series.push_back(series);
    for (double& step : series.x) step *= run.step_seconds;
    charts[1].series.push_back(std::move(series));
  }
  for (Chart& chart : charts) fit_axes(chart);
  return charts;
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& what) {
  fail(ErrorKind::kData, kOrigin, path.string(), ": expected a study, got ", what, ". Make it again with `invattn density compare`.");
}

/// Flows without finite values are not compared.
template <class Record>
void require_finite(const Record& record, const std::string& name, const std::filesystem::path& path) {
  Record::visit(record, [&](const char* field, const auto& value, const char*) {
    using Value = std::remove_cvref_t<decltype(value)>;
    bool finite = true;
    if constexpr (std::same_as<Value, std::optional<double>>) finite = !value || std::isfinite(*value);
    if constexpr (std::same_as<Value, std::vector<double>>)
      finite = std::all_of(value.begin(), value.end(), [](double one) { return std::isfinite(one); });
    if (!finite) damaged(path, std::string("null for '") + field + "' of " + name);
  });
}

/// What the tables rely on.
void check(const DensityStudy& study, const std::filesystem::path& path) {
  if (study.runs.empty() || study.arms.empty()) damaged(path, "one without runs");
  const auto known = [&](const std::string& arm) { return std::find(study.arms.begin(), study.arms.end(), arm) != study.arms.end(); };
  if (!known(study.baseline)) damaged(path, "the baseline " + in_quotes(study.baseline) + ", which is no arm of it");
  for (const StudyRun& run : study.runs) {
    if (!known(run.arm)) damaged(path, "a run of the arm " + in_quotes(run.arm) + ", which is not listed");
    if (run.look_steps.size() != run.look_bits.size()) damaged(path, "lists of two lengths for the run " + in_quotes(run.folder));
    require_finite(run, "the run " + in_quotes(run.folder), path);
  }
  for (const StudyDifference& difference : study.differences) {
    const std::string name = in_quotes(difference.arm + " - " + difference.reference);
    if (!known(difference.arm) || !known(difference.reference)) damaged(path, "the difference " + name + " of arms that are not listed");
    const std::size_t seeds = difference.seeds.size();
    const std::size_t errors = difference.image_errors.size();
    if (seeds == 0 || difference.values.size() != seeds || (errors != 0 && errors != seeds)) {
      damaged(path, "lists of several lengths for the difference " + name);
    }
    require_finite(difference, "the difference " + name, path);
  }
}

}  // namespace

DensityStudy read_density_study(const ResultsFile& results) {
  auto study = results.read<DensityStudy>();
  check(study, results.path);
  return study;
}

double chance_of_a_claim(int64_t seeds) {
  // Student's t with n - 1 degrees of freedom beyond 2: P(|t| > 2) by Simpson's rule on the angle, t = sqrt(n - 1) tan(angle).
  if (seeds < 2) return 0;
  const auto freedom = static_cast<double>(seeds - 1);
  const double end = std::atan(kErrors / std::sqrt(freedom));
  constexpr int kParts = 200;
  double within = 0;
  double whole = 0;
  for (int i = 0; i <= kParts; ++i) {
    const double weight = i == 0 || i == kParts ? 1 : (i % 2 == 1 ? 4 : 2);
    const double share = static_cast<double>(i) / kParts;
    within += weight * end * std::pow(std::cos(end * share), freedom - 1);
    whole += weight * std::numbers::pi / 2 * std::pow(std::cos(std::numbers::pi / 2 * share), freedom - 1);
  }
  return 1 - within / whole;
}

std::string study_headline(const DensityStudy& study) {
  std::map<std::string, std::string> sentences;
  std::vector<std::string> order;
  for (const StudyDifference& difference : study.differences) {
    if (difference.measure != StudyMeasure::kTest || !attends(study, difference.arm)) continue;
    std::string& sentence = sentences[difference.arm];
    if (sentence.empty()) {
      order.push_back(difference.arm);
      sentence = difference.arm + " " + clause(difference);
    } else {
      sentence += " and " + clause(difference);
    }
  }
  std::string text = title_of(study) + ", " + when(study) + ", " + seeds_of(study) + ", in " + study.unit() + ": ";
  if (order.empty()) return text + "no arm with attention to judge.";
  for (std::size_t i = 0; i < order.size(); ++i) text += (i == 0 ? "" : "; ") + sentences[order[i]];
  return text + ".";
}

Table study_arms(const DensityStudy& study) {
  Table table{
      .name = "arms",
      .title = "The arms.",
      .note = std::string("Means over seeds ± standard error over seeds, in ") + study.unit() + ". Blocks: convolution blocks of each " +
              "scale. Held-out: after " + short_number(study.seconds) + " s of training steps, evaluations not counted, " +
              "interpolated along the looks; where steps are equal, an arm with slower steps has not cooled down by then. Undone: " +
              "held-out " + study.things() + " at the end of the trainings.",
      .labels = 1,
      .header = {"arm", "attention", "blocks", "weights", "seeds", "steps", "ms a step", "test", "test, attention off", "held-out",
                 "undone"}};
  for (const std::string& arm : study.arms) {
    const auto runs = runs_of(study, arm);
    if (runs.empty()) continue;
    int64_t images = 0;
    int64_t failures = 0;
    std::set<int64_t> steps;
    for (const StudyRun* run : runs) {
      images += run->inverse_images;
      failures += run->inverse_failures;
      steps.insert(run->steps);
    }
    const auto held_out = figures_of(runs, [](const StudyRun& run) { return run.held_out; });
    const StudyRun& first = *runs.front();
    table.rows.push_back({arm, first.attention, blocks_text(first.blocks), with_commas(first.parameters), std::to_string(runs.size()),
                          with_commas(*steps.begin()) + (steps.size() > 1 ? " to " + with_commas(*steps.rbegin()) : ""),
                          mean_text(figures_of(runs, [](const StudyRun& run) { return std::optional(run.step_seconds); }), "%.2f", 1000),
                          mean_text(figures_of(runs, [](const StudyRun& run) { return std::optional(run.bits); })),
                          mean_text(figures_of(runs, [](const StudyRun& run) { return run.without; })),
                          held_out.size() == runs.size() ? mean_text(held_out) : "not known", undone_text(failures, images)});
  }
  return table;
}

Table study_differences(const DensityStudy& study) {
  std::size_t most = 0;
  for (const StudyDifference& difference : study.differences) most = std::max(most, difference.seeds.size());
  const std::string chance = most > 1
                                 ? " With " + seeds_text(most) + " chance alone passes it in " +
                                       decimals(100 * chance_of_a_claim(static_cast<int64_t>(most)), "%.0f") + " % of such comparisons."
                                 : "";
  Table table{.name = "differences",
              .title = "Differences.",
              .note = std::string("In ") + study.unit() + ", below 0 is better; each of the same seed, the test " + study.things() +
                      " one by one. The verdict is by the standard error over seeds: gain or loss where the mean passes twice it." +
                      chance +
                      " Over images: of the mean over seeds, as if the flows were given. Attention on − off: the same flow with W_L of its "
                      "attention blocks set to 0; below 0, the flow uses its attention.",
              .labels = 2,
              .header = {"difference", "of", "mean", "± over seeds", "verdict", "± over images", "seeds", "each seed"}};
  for (const StudyDifference& difference : study.differences) {
    std::string each;
    for (const double value : difference.values) each += (each.empty() ? "" : ", ") + signed_text(value, {});
    table.rows.push_back({difference.measure == StudyMeasure::kKnockOut ? difference.arm + ", attention on − off"
                                                                        : difference.arm + " − " + difference.reference,
                          measure_text(study, difference.measure), signed_text(difference.mean, {}),
                          difference.seed_error ? decimals(*difference.seed_error) : "not known", verdict_text(difference),
                          difference.image_error ? decimals(*difference.image_error) : "", std::to_string(difference.seeds.size()), each});
  }
  return table;
}

Table study_runs(const DensityStudy& study) {
  Table table{.name = "runs",
              .title = "The trainings.",
              .note = std::string("Test: ± standard error over images, nearly all of which is common to the flows. Estimator: ") +
                      study.estimator +
                      ". Seconds: as recorded, evaluations on the way included; ms a step: the median over the lines of "
                      "metrics.jsonl.",
              .labels = 2,
              .header = {"arm", "run", "seed", "steps", "seconds", "ms a step", "weights", "test", "attention off", "held-out", "undone"}};
  for (const StudyRun& run : study.runs) {
    table.rows.push_back({run.arm, run.folder, std::to_string(run.seed), with_commas(run.steps), short_number(run.seconds),
                          decimals(1000 * run.step_seconds, "%.2f"), with_commas(run.parameters),
                          decimals(run.bits) + " ± " + decimals(run.standard_error), run.without ? decimals(*run.without) : "",
                          run.held_out ? decimals(*run.held_out) : "not known", undone_text(run.inverse_failures, run.inverse_images)});
  }
  return table;
}

Report density_study_report(const std::vector<ResultsFile>& results) {
  require(results.size() == 1, kOrigin, "expected one study, got ", results.size(), ". Make a page of each.");
  const auto read = std::make_shared<const DensityStudy>(read_density_study(results.front()));
  const std::vector<Table> tables = {study_differences(*read), study_arms(*read), study_runs(*read)};
  return {.tables = tables,
          .figures =
              [read] {
                std::vector<Figure> figures;
                const std::string title = title_of(*read) + ": differences in " + read->unit() + ", lower is better";
                if (!arm_against_arm(*read).empty()) figures.push_back(draw_sheet("differences", title, {differences_chart(*read)}));
                return figures;
              },
          .page =
              [read, tables] {
                std::vector<Chart> charts = look_charts(*read);
                if (!arm_against_arm(*read).empty()) charts.push_back(differences_chart(*read));
                return render_frame({.experiment = "Does attention help a flow?",
                                     .title = read->name,
                                     .headline = study_headline(*read),
                                     .summary = summary(*read),
                                     .notices_html = notices(*read),
                                     .main_html = fill(study_template(), {{"differences", to_html(tables[0])},
                                                                          {"arms", to_html(tables[1])},
                                                                          {"runs", folded("Every training", tables[2])}}),
                                     .made_html = made_html({static_cast<const RunRecord&>(*read)}),
                                     .data = json_text(nlohmann::ordered_json{{"charts", charts_json(charts)}}),
                                     .script = study_script()});
              }};
}

}  // namespace invattn::reporting

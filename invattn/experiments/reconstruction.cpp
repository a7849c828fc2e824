#include "invattn/experiments/reconstruction.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/data/image_set.h"
#include "invattn/experiments/reconstruction_cell.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/io/regular_file.h"
#include "invattn/report/reconstruction/record.h"
#include "invattn/report/report.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/metrics_log.h"
#include "invattn/train/progress.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "reconstruct";
constexpr double kSmallestSsim = 0.9999;  // of an inverse that is promised

std::string format(const char* pattern, double value) { return std::isfinite(value) ? number_text(pattern, value) : "not finite"; }

/// The images of a cell as bytes, and those of a batch as numbers: before, behind and inside the block.
void require_room(const ReconstructionOptions& options) {
  const double numbers = 3 * static_cast<double>(options.height) * static_cast<double>(options.width);
  const auto images = static_cast<double>(options.train_images + options.test_images);
  const auto together = static_cast<double>(std::min(options.batch, options.train_images));
  const std::string size = " images of " + std::to_string(options.height) + " x " + std::to_string(options.width) + " pixels";
  require_memory(images * numbers, kOrigin, number_text("%.0f", images) + size);
  require_memory(4 * sizeof(float) * together * numbers, kOrigin, "a batch of " + number_text("%.0f", together) + size);
}

/// What the second data set lacks is said before a network is trained on the first; what the first lacks its own cell says.
void require_data(const ReconstructionOptions& options) {
  for (const std::string& data : options.data) {
    if (data == options.data.front() || parse_data_source(data, kOrigin).set == DataSet::kSynthetic) continue;
    for (const Split split : {Split::kTrain, Split::kTest}) reconstruction_images(options, data, split, options.seeds.front());
  }
}

std::string summary(const ReconstructionCell& cell, const NetworkFigures& row) {
  return cell.title() + ": loss " + format("%.4f", row.loss) + ", largest local constant " + format("%.3g", row.lipschitz_max) +
         ", V-score " + format("%.2f %%", row.v_score) + ", MSE " + format("%.1e", row.mse) + ", " + std::to_string(row.iterations_max) +
         " iterations, " + duration_text(row.seconds);
}

/// Why an inverse that was promised did not come true, or nothing.
std::string broken_promise(const NetworkFigures& row) {
  if (!row.promised()) return "";
  if (row.failures > 0) return std::to_string(row.failures) + " of " + std::to_string(row.test_images) + " images did not converge";
  if (!(row.v_score >= 100)) return "V-score " + format("%.2f %%", row.v_score);
  if (!(row.ssim >= kSmallestSsim)) return "SSIM " + format("%.5f", row.ssim);
  return "";
}

/// The folder of a run, which holds all there is to know about it.
class RunFolder {
 public:
  RunFolder(const ReconstructionOptions& options, const RunSettings& settings)
      : options_(options), settings_(settings), opened_(settings, kOrigin) {
    const std::filesystem::path config = settings.folder / "config.toml";
    const std::string text = write_toml(options);
    if (settings.resume) {
      require(read_regular_file(config, {.origin = kOrigin, .what = "a file of a run"}) == text, kOrigin,
              "expected the configuration of the run in '", settings.folder.string(),
              "', got another. Leave out --config and --set to resume with its own, or name another folder by --out.");
    } else {
      write_file_atomically(config, text, kOrigin);
    }
    metrics_.emplace();
    for (const ReconstructionCell& cell : cells_of(options)) {
      if (finished(cell)) *metrics_ += read_finished(cell);
    }
    if (!settings.resume) write_results(false);
  }

  std::filesystem::path cell_folder(const ReconstructionCell& cell) const { return settings_.folder / "cells" / cell.id(options_); }
  bool finished(const ReconstructionCell& cell) const { return std::filesystem::exists(cell_folder(cell) / "cell.json"); }
  const std::vector<CellRecord>& rows() const { return rows_; }

  /// Reads what the cell left and takes it into results.json.
  const CellRecord& add(const ReconstructionCell& cell) {
    read_finished(cell);
    write_results(false);
    return rows_.back();
  }

  void add_metrics(const ReconstructionCell& cell, const EpochReport& report) {
    write_metrics();
    append_metrics(settings_.folder, line_of(cell, report), kOrigin);
  }

  /// Once nothing of the start can fail any more: until then the lines of the process before stay.
  void write_metrics() {
    if (metrics_) write_file_atomically(settings_.folder / "metrics.jsonl", *metrics_, kOrigin);
    metrics_.reset();
  }

  /// After a start that failed: the folder is no run, so that the command can be given again, corrected. Not where a training has begun.
  void take_back() const {
    std::error_code ignored;
    for (const ReconstructionCell& cell : cells_of(options_)) {
      if (std::filesystem::exists(cell_folder(cell) / "checkpoint.safetensors", ignored)) return;
    }
    for (const ReconstructionCell& cell : cells_of(options_)) std::filesystem::remove(cell_folder(cell), ignored);  // empty ones alone
    for (const char* name : {"cells", "metrics.jsonl", "results.json", "config.toml"}) {
      std::filesystem::remove(settings_.folder / name, ignored);
    }
  }

  void write_results(bool complete) const {
    ReconstructionResults results;
    results.finished = complete;
    results.made_with = made_with(settings_);
    for (const CellRecord& cell : rows_) results.rows.push_back(cell.row());
    write_file_atomically(settings_.folder / "results.json", json_text(record_to_json(results), 1) + "\n", kOrigin);
  }

 private:
  std::string line_of(const ReconstructionCell& cell, const EpochReport& report) const {
    return nlohmann::ordered_json{{"cell", cell.id(options_)},
                                  {"epoch", report.epoch},
                                  {"loss", json_number(report.loss)},
                                  {"penalty", json_number(report.penalty)},
                                  {"largest", json_number(report.largest)}}
        .dump();
  }

  /// Adds what the cell left to the rows, and gives its lines of metrics.jsonl.
  std::string read_finished(const ReconstructionCell& cell) {
    constexpr std::string_view kAgain = "Remove the file to train this cell again.";
    const std::filesystem::path path = cell_folder(cell) / "cell.json";
    auto row = record_from_json<CellRecord>(
        parse_json(read_regular_file(path, {.origin = kOrigin, .what = "a file of a run"}), path.string()), path.string(), kAgain);
    if (row.id != cell.id(options_)) {
      fail(ErrorKind::kData, path.string(), "expected the cell '", cell.id(options_), "', got ", in_quotes(row.id), ". ", kAgain);
    }
    const auto& [loss, penalty, largest] = row.curve;
    if (penalty.size() != loss.size() || largest.size() != loss.size()) {
      fail(ErrorKind::kData, path.string(), "expected lists of one length for 'curve', got others. ", kAgain);
    }
    std::string lines;
    for (std::size_t i = 0; i < loss.size(); ++i) {
      lines += line_of(cell, {.epoch = static_cast<int64_t>(i) + 1, .loss = loss[i], .penalty = penalty[i], .largest = largest[i]}) + "\n";
    }
    rows_.push_back(std::move(row));
    return lines;
  }

  const ReconstructionOptions& options_;
  const RunSettings& settings_;
  OpenRunFolder opened_;
  std::vector<CellRecord> rows_;
  std::optional<std::string> metrics_;  // anew, from what the cells remember, while not yet written
};

}  // namespace

ReconstructionOutcome run_reconstruction(const ReconstructionOptions& options, const RunSettings& settings) {
  options.validate();
  require_room(options);
  if (!settings.resume) require_data(options);
  RunFolder folder(options, settings);
  const std::vector<ReconstructionCell> cells = cells_of(options);
  const auto skipped = static_cast<double>(folder.rows().size());
  Progress progress;
  if (skipped > 0) progress.keep(std::to_string(folder.rows().size()) + " of " + std::to_string(cells.size()) + " cells are done already.");
  const InterruptWatch watch;
  const TimeLeft time(static_cast<double>(cells.size()));
  double done = 0;
  try {
    for (const ReconstructionCell& cell : cells) {
      if (folder.finished(cell)) continue;
      make_folder(folder.cell_folder(cell), kOrigin);
      const std::string place =
          cell.title() + " (cell " + std::to_string(folder.rows().size() + 1) + " of " + std::to_string(cells.size()) + ")";
      const CellObserver observer{.progress =
                                      [&](double fraction, const std::string& doing) {
                                        const std::string left = time.text(done + fraction, skipped);
                                        progress.show(place + ": " + doing + (left.empty() ? "" : ", " + left));
                                      },
                                  .epoch = [&](const EpochReport& report) { folder.add_metrics(cell, report); }};
      run_cell(cell, options, settings.device, folder.cell_folder(cell), observer);
      progress.keep(summary(cell, folder.add(cell)));
      ++done;
    }
  } catch (const Interrupted&) {
    if (!folder.rows().empty()) write_report(settings.folder);
    throw;
  } catch (...) {
    if (!settings.resume && folder.rows().empty()) folder.take_back();
    throw;
  }
  folder.write_metrics();
  folder.write_results(true);
  const ReportSummary report = write_report(settings.folder);
  ReconstructionOutcome outcome{.report = report.html, .table = results_table(settings.folder)};
  for (const CellRecord& row : folder.rows()) {
    const std::string reason = broken_promise(row);
    if (!reason.empty()) outcome.unfulfilled.push_back(row.id + ": " + reason);
  }
  return outcome;
}

}  // namespace invattn

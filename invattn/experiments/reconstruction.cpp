#include "invattn/experiments/reconstruction.h"

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/version.h"
#include "invattn/data/image_set.h"
#include "invattn/dist/work_queue.h"
#include "invattn/dist/world.h"
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
constexpr double kSmallestSsim = 0.9999;    // of an inverse that is promised
constexpr std::chrono::seconds kSoon{5};    // until a new file is seen by all machines
constexpr std::chrono::seconds kLate{120};  // and one that was looked for before, beyond what NFS remembers that there was none

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

/// Where a cell leaves what it comes to.
std::filesystem::path cell_folder(const ReconstructionCell& cell, const ReconstructionOptions& options, const RunSettings& settings) {
  return settings.folder / "cells" / cell.id(options);
}

/// A file of another process: a network's file system may show it later than it is there.
bool appears(const std::filesystem::path& file, std::chrono::seconds patience) {
  const auto start = Progress::Clock::now();
  while (!std::filesystem::exists(file)) {
    if (Progress::Clock::now() - start > patience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

/// Each process leaves its cells in the folder, and another may go on with them: all have to see the same one.
void require_shared_folder(const RunSettings& settings) {
  const World& world = settings.world;
  if (world.alone()) return;
  const std::string name = world.broadcast(".invattn-" + std::to_string(std::random_device()()) + ".tmp");
  world.first([&] {
    make_folder(settings.folder, kOrigin);
    write_file_atomically(settings.folder / name, "", kOrigin);
  });
  const at::Tensor sees = world.gather(at::full({1}, appears(settings.folder / name, kSoon) ? 1 : 0, at::kLong));
  world.first([&] {
    std::filesystem::remove(settings.folder / name);
    const auto blind = sees.argmin().item<int64_t>();
    require(sees[blind].item<int64_t>() == 1, kOrigin, "expected all processes to see the folder of the run, got '",
            settings.folder.string(), "', where process ", blind,
            " does not find what process 0 writes. Name a folder that all machines share, by --out.");
  });
}

/// The folder of a run, which holds all there is to know about it: of rank 0.
class RunFolder {
 public:
  RunFolder(const ReconstructionOptions& options, const RunSettings& settings)
      : options_(options), settings_(settings), cells_(cells_of(options)), opened_(settings, kOrigin) {
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
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (finished(i)) *metrics_ += read_finished(i);
    }
    std::error_code ignored;
    for (const auto& [number, row] : rows_) {  // left by a process that was killed just before it removed them
      std::filesystem::remove(result_of(number).parent_path() / "checkpoint.safetensors", ignored);
    }
    if (!settings.resume) write_results(false);
  }

  /// The cells that are done, by their number.
  const std::map<std::size_t, CellRecord>& rows() const { return rows_; }

  /// Takes the cells among these that were finished, by any process, into results.json, and calls `added` with each.
  void collect(const std::vector<std::size_t>& cells, const std::function<void(const ReconstructionCell&, const CellRecord&)>& added) {
    for (const std::size_t i : cells) {
      if (rows_.contains(i) || !finished(i)) continue;
      const std::string lines = read_finished(i);
      if (own_lines_ != i && !lines.empty()) {  // another process's
        write_metrics();
        append_metrics(settings_.folder, lines.substr(0, lines.size() - 1), kOrigin);
        in_order_ = false;
      }
      write_results(false);
      added(cells_[i], rows_.at(i));
    }
  }

  /// When all processes are done.
  void require_all(const std::vector<std::size_t>& cells) const {
    for (const std::size_t i : cells) {
      if (rows_.contains(i)) continue;
      const std::filesystem::path file = result_of(i);
      if (appears(file, kLate)) continue;
      fail(ErrorKind::kData, kOrigin, "expected '", file.string(), "' of another process, got no such file for ", kLate.count(),
           " s. Look for what keeps the machines from sharing the folder, then --resume.");
    }
  }

  void add_metrics(const ReconstructionCell& cell, const EpochReport& report) {
    write_metrics();
    append_metrics(settings_.folder, line_of(cell, report), kOrigin);
  }
  /// The cell whose lines are written one by one as it goes.
  void begin(std::size_t cell) {
    own_lines_ = cell;
    in_order_ = in_order_ && (rows_.empty() || rows_.rbegin()->first < cell);
  }

  /// Once nothing of the start can fail any more: until then the lines of the process before stay.
  void write_metrics() {
    if (metrics_) write_file_atomically(settings_.folder / "metrics.jsonl", *metrics_, kOrigin);
    metrics_.reset();
  }

  /// After a start that failed: the folder is no run, so that the command can be given again, corrected. Not where a training has begun.
  void take_back() const {
    std::error_code ignored;
    for (const ReconstructionCell& cell : cells_) {
      if (std::filesystem::exists(cell_folder(cell, options_, settings_) / "checkpoint.safetensors", ignored)) return;
    }
    for (const ReconstructionCell& cell : cells_) std::filesystem::remove(cell_folder(cell, options_, settings_), ignored);  // empty alone
    for (const char* name : {"cells", "metrics.jsonl", "results.json", "config.toml"}) {
      std::filesystem::remove(settings_.folder / name, ignored);
    }
  }

  void write_results(bool complete) const {
    ReconstructionResults results;
    results.finished = complete;
    results.made_with = made_with(settings_);
    for (const auto& [number, cell] : rows_) results.rows.push_back(cell.row());
    write_file_atomically(settings_.folder / "results.json", json_text(record_to_json(results), 1) + "\n", kOrigin);
  }

  /// The lines of metrics.jsonl in the order of the cells, whoever was first.
  void order_metrics() {
    write_metrics();
    if (in_order_) return;
    std::string all;
    for (const auto& [number, row] : rows_) all += lines_of(cells_[number], row);
    write_file_atomically(settings_.folder / "metrics.jsonl", all, kOrigin);
  }

 private:
  std::filesystem::path result_of(std::size_t cell) const { return cell_folder(cells_[cell], options_, settings_) / "cell.json"; }
  bool finished(std::size_t cell) const { return std::filesystem::exists(result_of(cell)); }

  std::string line_of(const ReconstructionCell& cell, const EpochReport& report) const {
    return nlohmann::ordered_json{{"cell", cell.id(options_)},
                                  {"epoch", report.epoch},
                                  {"loss", json_number(report.loss)},
                                  {"penalty", json_number(report.penalty)},
                                  {"largest", json_number(report.largest)}}
        .dump();
  }

  std::string lines_of(const ReconstructionCell& cell, const CellRecord& row) const {
    const auto& [loss, penalty, largest] = row.curve;
    std::string lines;
    for (std::size_t i = 0; i < loss.size(); ++i) {
      lines += line_of(cell, {.epoch = static_cast<int64_t>(i) + 1, .loss = loss[i], .penalty = penalty[i], .largest = largest[i]}) + "\n";
    }
    return lines;
  }

  /// Adds what the cell left to the rows, and gives its lines of metrics.jsonl.
  std::string read_finished(std::size_t number) {
    constexpr std::string_view kAgain = "Remove the file to train this cell again.";
    const ReconstructionCell& cell = cells_[number];
    const std::filesystem::path path = result_of(number);
    auto row = record_from_json<CellRecord>(
        parse_json(read_regular_file(path, {.origin = kOrigin, .what = "a file of a run"}), path.string()), path.string(), kAgain);
    if (row.id != cell.id(options_)) {
      fail(ErrorKind::kData, path.string(), "expected the cell '", cell.id(options_), "', got ", in_quotes(row.id), ". ", kAgain);
    }
    if (row.curve.penalty.size() != row.curve.loss.size() || row.curve.largest.size() != row.curve.loss.size()) {
      fail(ErrorKind::kData, path.string(), "expected lists of one length for 'curve', got others. ", kAgain);
    }
    std::string lines = lines_of(cell, row);
    rows_.emplace(number, std::move(row));
    return lines;
  }

  const ReconstructionOptions& options_;
  const RunSettings& settings_;
  std::vector<ReconstructionCell> cells_;
  OpenRunFolder opened_;
  std::map<std::size_t, CellRecord> rows_;
  std::optional<std::size_t> own_lines_;
  bool in_order_ = true;                // the lines of metrics.jsonl: cell after cell
  std::optional<std::string> metrics_;  // anew, from what the cells remember, while not yet written
};

}  // namespace

ReconstructionOutcome run_reconstruction(const ReconstructionOptions& options, const RunSettings& settings) {
  options.validate();
  require_room(options);
  const World& world = settings.world;
  world.agree(kOrigin, {{"the version", std::string(kVersion) + " with torch " + kTorchVersion},
                        {"the configuration", write_toml(options)},
                        {"the device", settings.device.is_cuda() ? "cuda" : settings.device.str()}});
  require_shared_folder(settings);
  std::optional<RunFolder> folder;
  std::string done;  // a letter for each cell
  const std::vector<ReconstructionCell> cells = cells_of(options);
  world.first([&] {
    if (!settings.resume) require_data(options);
    folder.emplace(options, settings);
    for (std::size_t i = 0; i < cells.size(); ++i) done += folder->rows().contains(i) ? 'x' : '-';
  });
  done = world.broadcast(done);
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (done[i] == '-') left.push_back(i);
  }
  const std::size_t skipped = cells.size() - left.size();
  Progress progress(!world.leads());
  if (skipped > 0) progress.keep(std::to_string(skipped) + " of " + std::to_string(cells.size()) + " cells are done already.");
  const InterruptWatch watch;
  const TimeLeft time(static_cast<double>(cells.size()));
  WorkQueue queue(world);
  auto collected = Progress::Clock::now();
  const auto collect = [&] {
    if (!folder) return;
    folder->collect(left, [&](const ReconstructionCell& cell, const CellRecord& row) { progress.keep(summary(cell, row)); });
    collected = Progress::Clock::now();
  };
  // The end of rank 0's work before that of all.
  const auto give_up = [&](bool failed) {
    if (!folder) return;
    const bool alone = queue.others_have_left();
    if (!failed) collect();
    if (failed && alone && !settings.resume && folder->rows().empty()) folder->take_back();
    if (!failed && !folder->rows().empty()) write_report(settings.folder);
  };
  try {
    for (;;) {
      const auto taken = static_cast<std::size_t>(queue.take());
      if (taken >= left.size()) break;
      const ReconstructionCell& cell = cells[left[taken]];
      const std::filesystem::path place = cell_folder(cell, options, settings);
      make_folder(place, kOrigin);
      if (folder) folder->begin(left[taken]);
      const std::string title =
          cell.title() + " (cell " + std::to_string(skipped + taken + 1) + " of " + std::to_string(cells.size()) + ")";
      const CellObserver observer{.progress =
                                      [&](double fraction, const std::string& doing) {
                                        if (queue.stopping()) InterruptWatch::request();
                                        if (!folder) return;
                                        if (!world.alone() && seconds_since(collected) > 1) collect();
                                        const double finished = static_cast<double>(folder->rows().size() - skipped) + fraction;
                                        const std::string rest = time.text(finished, static_cast<double>(skipped));
                                        progress.show(title + ": " + doing + (rest.empty() ? "" : ", " + rest));
                                      },
                                  .epoch =
                                      [&](const EpochReport& report) {
                                        if (folder) folder->add_metrics(cell, report);
                                      }};
      run_cell(cell, options, settings.device, place, observer);
      collect();
    }
    const bool all = queue.wait([&] {
      InterruptWatch::check();
      collect();
    });
    if (!all) throw Interrupted();
  } catch (const Interrupted&) {
    queue.stop(WorkQueue::kInterrupted);
    give_up(/*failed=*/false);
    queue.check();
    throw;
  } catch (const Error& error) {
    const bool first = queue.stop(error.exit_code());
    give_up(/*failed=*/true);
    if (!first) queue.check();
    throw;
  } catch (...) {
    queue.stop(1);
    give_up(/*failed=*/true);
    throw;
  }
  ReconstructionOutcome outcome;
  world.first([&] {
    folder->require_all(left);
    collect();
    folder->order_metrics();
    folder->write_results(true);
    outcome = {.report = write_report(settings.folder).html, .table = results_table(settings.folder)};
    for (const auto& [number, row] : folder->rows()) {
      const std::string reason = broken_promise(row);
      if (!reason.empty()) outcome.unfulfilled.push_back(row.id + ": " + reason);
    }
  });
  return outcome;
}

}  // namespace invattn

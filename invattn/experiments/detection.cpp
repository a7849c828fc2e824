#include "invattn/experiments/detection.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/io/image_file.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/evaluating.h"
#include "invattn/ops/full_precision.h"
#include "invattn/solver/report.h"
#include "invattn/train/progress.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "detection";
constexpr int64_t kMostCells = 22;          // along a side of a picture of attention
constexpr int64_t kMostResponseCells = 16;  // of those that each have one

/// Keeps the features that invertible blocks are given for a while.
class Recording {
 public:
  explicit Recording(DetectorImpl& detector) : detector_(detector) { set(true); }
  ~Recording() { set(false); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  void set(bool on) {
    for (const auto& block : detector_.invertible_blocks()) block->record(on);
  }
  DetectorImpl& detector_;
};

at::Device device_of(const DetectorImpl& detector) { return detector.parameters().front().device(); }

/// Positions per cell along a side, so that no side has more than `most` cells.
int64_t cell_size(const at::Tensor& x, int64_t most) { return (std::max(x.size(2), x.size(3)) + most - 1) / most; }

int64_t cells(int64_t positions, int64_t factor) { return (positions + factor - 1) / factor; }

/// (C, H, W) features as colours, (3, H, W) uint8: what lies along the three main directions of `base` over its positions, on its scale.
/// Colours that there are no directions for are grey.
at::Tensor colours_of(const at::Tensor& features, const at::Tensor& base) {
  const at::Tensor flat = base.flatten(1).nan_to_num(0, 0, 0);  // (C, N)
  const at::Tensor mean = flat.mean(1, /*keepdim=*/true);
  at::Tensor directions = std::get<0>(at::linalg_svd(flat - mean, /*full_matrices=*/false)).slice(1, 0, 3).t();  // (3 or fewer, C)
  directions = directions * at::where(directions.sum(1, /*keepdim=*/true) < 0, -1, 1);  // a sign of its own choice would turn the colours
  const at::Tensor scale = at::matmul(directions, flat - mean).abs().amax(1, /*keepdim=*/true).clamp_min(1e-12);
  const at::Tensor along = at::matmul(directions, features.flatten(1) - mean) / scale;
  const at::Tensor levels = (127.5 + 127.5 * along).nan_to_num(0, 255, 0).clamp(0, 255).round().to(at::kByte);
  const at::Tensor rest = at::full({3 - levels.size(0), levels.size(1)}, 128, levels.options());
  return at::cat({levels, rest}).view({3, features.size(1), features.size(2)});
}

/// Gives every process the scores that each has found, batch by batch in turn.
void share(std::vector<SegmentationScores>& scores, int64_t batch, const World& world) {
  if (world.alone()) return;
  static_assert(sizeof(SegmentationScores) % sizeof(double) == 0 && std::is_trivially_copyable_v<SegmentationScores>);
  constexpr auto kNumbers = static_cast<int64_t>(sizeof(SegmentationScores) / sizeof(double));
  const at::Tensor numbers = at::from_blob(scores.data(), {static_cast<int64_t>(scores.size()), kNumbers}, at::kDouble);
  const at::Tensor sums = at::zeros_like(numbers);
  for (int64_t i = 0; i < numbers.size(0); ++i) {
    if (i / batch % world.size() == world.rank()) sums[i].copy_(numbers[i]);
  }
  world.sum(sums);
  numbers.copy_(sums);
}

}  // namespace

DetectionFigures figures_of(const DetectionScore& score) {
  const SegmentationScores& s = score.scores;
  const auto list = [](const auto& curve) { return std::vector<double>(curve.begin(), curve.end()); };
  return {.images = score.images,
          .mae = s.mae,
          .s_measure = s.s_measure,
          .weighted_f = s.weighted_f,
          .f_measure = {.adaptive = s.adaptive_f, .mean = s.mean_f(), .max = s.max_f()},
          .e_measure = {.adaptive = s.adaptive_e, .mean = s.mean_e(), .max = s.max_e()},
          .curves = {.precision = list(s.precision), .recall = list(s.recall), .f_measure = list(s.f), .e_measure = list(s.e)}};
}

at::Tensor map_of(const at::Tensor& logits, int64_t height, int64_t width) {
  require(logits.dim() == 3 && logits.size(0) == 1, kOrigin, "expected the output of one image (1, h, w), got ", logits.sizes(), ".");
  const at::Tensor large = at::upsample_bilinear2d(logits.unsqueeze(0), {height, width}, /*align_corners=*/false);
  return (255 * at::sigmoid(large[0][0])).round_().to(at::kByte);
}

DetectionScore score_detection(DetectorImpl& detector, const MaskPairs& pairs, const DetectionEvaluation& options,
                               const std::filesystem::path& maps, const DetectionObserver& observer, const World& world) {
  options.validate();
  require(pairs.size() > 0, kOrigin, "expected images to judge by, got none.");
  const auto start = Progress::Clock::now();
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  const Evaluating evaluating(detector);
  if (device_of(detector).is_cpu()) {
    const int64_t together = std::min(options.batch, pairs.size());
    const double numbers = 3 * static_cast<double>(pairs.images.size(2)) * static_cast<double>(pairs.images.size(3));
    require_memory(sizeof(float) * numbers * static_cast<double>(together), kOrigin, std::to_string(together) + " images at a time");
  }
  std::vector<SegmentationScores> scores(static_cast<std::size_t>(pairs.size()));
  if (observer) observer(0, "evaluating");
  const int64_t together = options.batch * world.size();
  for (int64_t first = 0; first < pairs.size(); first += together) {
    // A batch for each process, as many as there are left; where none is left the last image again, so that all give something.
    const int64_t mine = first + world.rank() * options.batch;
    const at::Tensor numbers = at::arange(mine, mine + options.batch).clamp_max(pairs.size() - 1);
    const int64_t count = std::clamp<int64_t>(pairs.size() - mine, 0, options.batch);
    const at::Tensor own = world.alone() ? pairs.images.narrow(0, mine, count) : pairs.images.index_select(0, numbers);
    const at::Tensor logits = detector.forward(own.to(device_of(detector)).to(at::kFloat)).cpu();
    const at::Tensor all = maps.empty() ? logits : world.gather(logits);
    const auto each = [&](int64_t from, int64_t images, const auto& work) {
      at::parallel_for(0, images, 1, [&](int64_t begin, int64_t end) {
        const at::NoGradGuard quiet;
        for (int64_t i = begin; i < end; ++i) work(i, static_cast<std::size_t>(from + i));
      });
    };
    each(mine, count, [&](int64_t i, std::size_t place) {
      const at::Tensor& mask = pairs.masks[place];
      scores[place] = segmentation_scores(map_of(logits[i], mask.size(0), mask.size(1)), mask);
    });
    const int64_t done = std::min(together, pairs.size() - first);
    if (!maps.empty()) {
      world.first([&] {
        each(first, done, [&](int64_t i, std::size_t place) {
          const at::Tensor& mask = pairs.masks[place];
          write_png(maps / (pairs.names[place] + ".png"), map_of(all[i], mask.size(0), mask.size(1)));
        });
      });
    }
    if (observer) observer(static_cast<double>(first + done) / static_cast<double>(pairs.size()), "evaluating");
  }
  share(scores, options.batch, world);
  return {.scores = mean_scores(scores), .images = pairs.size(), .seconds = seconds_since(start)};
}

std::string text_of(const BlockInverse& inverse) {
  return "level " + std::to_string(inverse.level) + ", " + std::to_string(inverse.positions) +
         " positions: " + std::to_string(inverse.images - inverse.failures) + " of " + std::to_string(inverse.images) +
         " images undone, residual " + number_text("%.1e", inverse.residual) + ", largest error " + number_text("%.1e", inverse.error) +
         ", at most " + std::to_string(inverse.iterations) + " iterations, local constant " + number_text("%.3f", inverse.constant);
}

std::vector<BlockInverse> check_inverses(DetectorImpl& detector, const at::Tensor& images, const DetectionEvaluation& options,
                                         const DetectionObserver& observer) {
  options.validate();
  const auto& blocks = detector.invertible_blocks();
  require(!blocks.empty(), kOrigin, "expected a variant with invertible attention to undo, got ", detector.options().variant, ".");
  require(images.dim() == 4 && images.size(0) > 0, kOrigin, "expected images whose features are undone, got ", images.sizes(), ".");
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  const Evaluating evaluating(detector);
  const Recording recording(detector);
  std::vector<BlockInverse> result(blocks.size(), {.residual = 0, .error = 0, .constant = 0});
  const auto larger = [](double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); };
  if (observer) observer(0, "undoing the attention");
  for (int64_t first = 0; first < images.size(0); first += options.batch) {
    const int64_t count = std::min(options.batch, images.size(0) - first);
    detector.forward(images.narrow(0, first, count).to(device_of(detector)).to(at::kFloat));
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const at::Tensor x = blocks[i]->recorded().contiguous();
      const Solution back = blocks[i]->inverse(blocks[i]->forward(x), AndersonOptions{.tolerance = options.tolerance});
      const auto linearization = blocks[i]->branch().freeze(x).linearize(x);
      BlockInverse& inverse = result[i];
      inverse.level = static_cast<int64_t>(i) + 1;
      inverse.positions = x.size(2) * x.size(3);
      inverse.images += count;
      inverse.failures += back.report.batch() - back.report.converged_count();
      inverse.residual = larger(inverse.residual, back.report.largest_residual());
      inverse.error = larger(inverse.error, (back.x - x).abs().max().item<double>());
      inverse.constant = larger(inverse.constant, local_constants(*linearization, x).largest());
      inverse.iterations = std::max(inverse.iterations, back.report.most_iterations());
    }
    if (observer) observer(static_cast<double>(first + count) / static_cast<double>(images.size(0)), "undoing the attention");
  }
  return result;
}

void require_inverted(const std::vector<BlockInverse>& inverses) {
  for (const BlockInverse& inverse : inverses) {
    if (inverse.failures == 0) continue;
    fail(ErrorKind::kNotConverged, kOrigin, "expected every image's features to be undone, got ", text_of(inverse),
         ". Was the network trained under the guard? `invattn info MODEL` shows its certificates.");
  }
}

std::map<std::string, at::Tensor> detection_pictures(DetectorImpl& detector, const MaskPairs& pairs, int64_t count,
                                                     const DetectionEvaluation& options) {
  require(pairs.size() > 0 && count > 0, kOrigin, "expected pictures to show, got none.");
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  const Evaluating evaluating(detector);
  const int64_t size = pairs.images.size(2);
  const auto& blocks = detector.invertible_blocks();
  std::map<std::string, std::vector<at::Tensor>> lists;
  std::map<std::string, at::Tensor> result;
  const int64_t shown = std::min(count, pairs.size());
  for (int64_t i = 0; i < shown; ++i) {
    const int64_t place = i * pairs.size() / shown;
    const at::Tensor pixels = pairs.images.narrow(0, place, 1).to(device_of(detector)).to(at::kFloat);
    const at::Tensor truth = resized(pairs.masks[static_cast<std::size_t>(place)].unsqueeze(0), size, size, /*antialias=*/true)[0];
    lists["images"].push_back(pairs.images[place]);
    lists["truth"].push_back(truth);
    lists["map"].push_back(map_of(detector.forward(pixels)[0].cpu(), size, size));
    if (detector.attention().empty()) continue;
    const auto features = detector.features(pixels);
    for (std::size_t level = 0; level < features.size(); ++level) {
      const std::string number = std::to_string(level + 1);
      const at::Tensor x = features[level].contiguous();
      AttentionImpl& attention = *detector.attention()[level];
      const int64_t factor = cell_size(x, kMostCells);
      const int64_t rows = cells(x.size(2), factor);
      const int64_t columns = cells(x.size(3), factor);
      const at::Tensor cover = at::adaptive_avg_pool2d(truth.to(at::kFloat).view({1, 1, size, size}), {rows, columns});
      const auto centre = cover.flatten().argmax().item<int64_t>();
      lists["attention" + number].push_back(attention.response(x, factor)[0][centre].view({rows, columns}).cpu());

      const int64_t coarse = cell_size(x, kMostResponseCells);
      const at::Tensor response = attention.response(x, coarse)[0].abs();
      lists["response" + number].push_back(
          (response / response.amax(1, /*keepdim=*/true).clamp_min(1e-30) * 255).round().nan_to_num(0).to(at::kByte).cpu());
      result["response" + number + ".grid"] = at::tensor({cells(x.size(2), coarse), cells(x.size(3), coarse)}, at::kLong);
      if (blocks.empty() || options.inverse_images == 0) continue;

      const at::Tensor y = blocks[level]->forward(x);
      const at::Tensor back = blocks[level]->inverse(y, AndersonOptions{.tolerance = options.tolerance}).x;
      std::vector<at::Tensor> stages;
      for (const at::Tensor& stage : {x, y, back}) stages.push_back(colours_of(stage[0].cpu(), x[0].cpu()));
      lists["features" + number].push_back(at::stack(stages));
      lists["features" + number + ".error"].push_back((back - x)[0].abs().amax(0).cpu());
    }
  }
  for (const auto& [name, list] : lists) result[name] = at::stack(list);
  return result;
}

}  // namespace invattn

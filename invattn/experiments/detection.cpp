#include "invattn/experiments/detection.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/evaluating.h"
#include "invattn/ops/full_precision.h"
#include "invattn/solver/report.h"
#include "invattn/train/progress.h"

namespace invattn {
namespace {

using nlohmann::ordered_json;

constexpr const char* kOrigin = "detection";
constexpr int64_t kMostCells = 22;  // along a side of a picture of attention

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

}  // namespace

std::string to_json(const DetectionScore& score) {
  const SegmentationScores& s = score.scores;
  return ordered_json{{"images", score.images},
                      {"mae", json_number(s.mae)},
                      {"s_measure", json_number(s.s_measure)},
                      {"weighted_f", json_number(s.weighted_f)},
                      {"f_measure", {{"adaptive", s.adaptive_f}, {"mean", s.mean_f()}, {"max", s.max_f()}}},
                      {"e_measure", {{"adaptive", s.adaptive_e}, {"mean", s.mean_e()}, {"max", s.max_e()}}},
                      {"curves", {{"precision", s.precision}, {"recall", s.recall}, {"f_measure", s.f}, {"e_measure", s.e}}}}
      .dump();
}

at::Tensor map_of(const at::Tensor& logits, int64_t height, int64_t width) {
  require(logits.dim() == 3 && logits.size(0) == 1, kOrigin, "expected the output of one image (1, h, w), got ", logits.sizes(), ".");
  const at::Tensor large = at::upsample_bilinear2d(logits.unsqueeze(0), {height, width}, /*align_corners=*/false);
  return (255 * at::sigmoid(large[0][0])).round_().to(at::kByte);
}

DetectionScore score_detection(DetectorImpl& detector, const MaskPairs& pairs, const DetectionEvaluation& options,
                               const std::filesystem::path& maps, const DetectionObserver& observer) {
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
  for (int64_t first = 0; first < pairs.size(); first += options.batch) {
    const int64_t count = std::min(options.batch, pairs.size() - first);
    const at::Tensor images = pairs.images.narrow(0, first, count).to(device_of(detector)).to(at::kFloat);
    const at::Tensor logits = detector.forward(images).cpu();
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard quiet;
      for (int64_t i = begin; i < end; ++i) {
        const auto place = static_cast<std::size_t>(first + i);
        const at::Tensor& mask = pairs.masks[place];
        const at::Tensor map = map_of(logits[i], mask.size(0), mask.size(1));
        scores[place] = segmentation_scores(map, mask);
        if (!maps.empty()) write_png(maps / (pairs.names[place] + ".png"), map);
      }
    });
    if (observer) observer(static_cast<double>(first + count) / static_cast<double>(pairs.size()), "evaluating");
  }
  return {.scores = mean_scores(scores), .images = pairs.size(), .seconds = seconds_since(start)};
}

std::string BlockInverse::text() const {
  return "level " + std::to_string(level) + ", " + std::to_string(positions) + " positions: " + std::to_string(images - failures) + " of " +
         std::to_string(images) + " images undone, residual " + number_text("%.1e", residual) + ", largest error " +
         number_text("%.1e", error) + ", at most " + std::to_string(iterations) + " iterations, local constant " +
         number_text("%.3f", constant);
}

std::string to_json(const std::vector<BlockInverse>& inverses) {
  auto list = ordered_json::array();
  for (const BlockInverse& inverse : inverses) {
    list.push_back({{"level", inverse.level},
                    {"positions", inverse.positions},
                    {"images", inverse.images},
                    {"failures", inverse.failures},
                    {"residual", json_number(inverse.residual)},
                    {"error", json_number(inverse.error)},
                    {"constant", json_number(inverse.constant)},
                    {"iterations", inverse.iterations}});
  }
  return list.dump();
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
  std::vector<BlockInverse> result(blocks.size());
  const auto larger = [](double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); };
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
    fail(ErrorKind::kNotConverged, kOrigin, "expected every image's features to be undone, got ", inverse.text(),
         ". Was the network trained under the guard? `invattn info MODEL` shows its certificates.");
  }
}

std::map<std::string, at::Tensor> detection_pictures(DetectorImpl& detector, const MaskPairs& pairs, int64_t count) {
  require(pairs.size() > 0 && count > 0, kOrigin, "expected pictures to show, got none.");
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  const Evaluating evaluating(detector);
  const int64_t size = pairs.images.size(2);
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> truths;
  std::vector<at::Tensor> maps;
  std::array<std::vector<at::Tensor>, 4> taken;
  const int64_t shown = std::min(count, pairs.size());
  for (int64_t i = 0; i < shown; ++i) {
    const int64_t place = i * pairs.size() / shown;
    const at::Tensor pixels = pairs.images.narrow(0, place, 1).to(device_of(detector)).to(at::kFloat);
    images.push_back(pairs.images[place]);
    truths.push_back(resized(pairs.masks[static_cast<std::size_t>(place)].unsqueeze(0), size, size, /*antialias=*/true)[0]);
    maps.push_back(map_of(detector.forward(pixels)[0].cpu(), size, size));
    if (detector.attention().empty()) continue;
    const auto features = detector.features(pixels);
    for (std::size_t level = 0; level < features.size(); ++level) {
      const at::Tensor x = features[level].contiguous();
      const int64_t factor = (std::max(x.size(2), x.size(3)) + kMostCells - 1) / kMostCells;
      const int64_t rows = (x.size(2) + factor - 1) / factor;
      const int64_t columns = (x.size(3) + factor - 1) / factor;
      const at::Tensor cover = at::adaptive_avg_pool2d(truths.back().to(at::kFloat).view({1, 1, size, size}), {rows, columns});
      const auto centre = cover.flatten().argmax().item<int64_t>();
      taken[level].push_back(detector.attention()[level]->response(x, factor)[0][centre].view({rows, columns}).cpu());
    }
  }
  std::map<std::string, at::Tensor> result{{"images", at::stack(images)}, {"truth", at::stack(truths)}, {"map", at::stack(maps)}};
  for (std::size_t level = 0; level < taken.size(); ++level) {
    if (!taken[level].empty()) result["attention" + std::to_string(level + 1)] = at::stack(taken[level]);
  }
  return result;
}

}  // namespace invattn

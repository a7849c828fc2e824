#include "invattn/experiments/reconstruction_cell.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/seed.h"
#include "invattn/data/image_set.h"
#include "invattn/data/pixels.h"
#include "invattn/experiments/training_parts.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/safetensors.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/metrics/image_quality.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "invattn/report/reconstruction/record.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"
#include "invattn/train/trainer.h"

namespace invattn {
namespace {

using Clock = Progress::Clock;

constexpr int64_t kChannels = 12;                     // of a squeezed colour image
constexpr int64_t kResidentBytes = int64_t{1} << 26;  // images as numbers are kept up to this, else made anew for each batch
constexpr double kSaveSeconds = 60;                   // within long epochs
constexpr const char* kCurve = "curve";               // in checkpoints: (epochs, 3) float64
constexpr const char* kAfresh = "Remove the file to train this cell from the start.";
constexpr int64_t kHistogramBins = 40;
constexpr int64_t kLargestGrid = 1024;  // positions of a response map that the report shows
// Steps after which the report shows the iterate: all of the first, then every quarter octave.
constexpr std::array<int64_t, 22> kFrameSteps = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 100};

at::Generator generator_of(int64_t seed, const std::string& stream) {
  return at::detail::createCPUGenerator(derive_seed(static_cast<std::uint64_t>(seed), stream));
}

/// Images as the network sees them, each with a noise of its own that depends on the seed, the stream and its number alone.
class Images {
 public:
  Images(at::Tensor pixels, int64_t seed, std::string stream, at::Device device)
      : pixels_(std::move(pixels)), seed_(seed), stream_(std::move(stream)), device_(device) {
    if (pixels_.numel() * static_cast<int64_t>(sizeof(float)) <= kResidentBytes) resident_ = make(0, size()).to(device_);
  }

  int64_t size() const { return pixels_.size(0); }
  const at::Tensor& pixels() const { return pixels_; }

  at::Tensor range(int64_t first, int64_t count) const {
    return resident_.defined() ? resident_.narrow(0, first, count) : make(first, count).to(device_);
  }

  at::Tensor batch(const at::Tensor& numbers) const {
    if (resident_.defined()) return resident_.index_select(0, numbers.to(device_));
    std::vector<at::Tensor> images;
    for (int64_t i = 0; i < numbers.size(0); ++i) images.push_back(make(numbers[i].item<int64_t>(), 1));
    return at::cat(images).to(device_);
  }

  /// The ranges of at most `batch` images that cover the first `count`.
  static std::vector<std::pair<int64_t, int64_t>> ranges(int64_t count, int64_t batch) {
    std::vector<std::pair<int64_t, int64_t>> result;
    for (int64_t first = 0; first < count; first += batch) result.emplace_back(first, std::min(batch, count - first));
    return result;
  }

 private:
  at::Tensor make(int64_t first, int64_t count) const {
    std::vector<at::Tensor> images;
    for (int64_t i = first; i < first + count; ++i) {
      images.push_back(dequantise(pixels_.narrow(0, i, 1), generator_of(seed_, stream_ + " noise " + std::to_string(i))));
    }
    return at::cat(images);
  }

  at::Tensor pixels_;  // (n, 3, H, W) uint8
  int64_t seed_;
  std::string stream_;
  at::Device device_;
  at::Tensor resident_;  // (n, 3, H, W) float32 on the device, where small
};

Histogram histogram_of(const at::Tensor& constants) {
  const double largest = constants.numel() > 0 ? constants.nan_to_num(0, 0, 0).max().item<double>() : 0;
  const double end = std::max(1.0, largest);
  Histogram result{.counts = std::vector<int64_t>(kHistogramBins)};
  for (int64_t i = 0; i < constants.numel(); ++i) {
    const double value = constants[i].item<double>();
    if (!std::isfinite(value)) continue;
    ++result.counts[static_cast<std::size_t>(std::min(kHistogramBins - 1, static_cast<int64_t>(value / end * kHistogramBins)))];
  }
  for (int64_t i = 0; i <= kHistogramBins; ++i) result.edges.push_back(end * static_cast<double>(i) / kHistogramBins);
  return result;
}

double largest_of(const at::Tensor& constants) { return constants.numel() > 0 ? constants.max().item<double>() : 0; }

class CellRun : public TrainingTask {
 public:
  CellRun(const ReconstructionCell& cell, const ReconstructionOptions& options, at::Device device, std::filesystem::path folder,
          const CellObserver& observer)
      : cell_(cell),
        options_(options),
        observer_(observer),
        device_(device),
        folder_(std::move(folder)),
        source_((observe(0, "reading images"), parse_data_source(cell.data, "reconstruct"))),
        train_(reconstruction_images(options, cell.data, Split::kTrain, cell.seed), cell.seed, "train", device),
        test_(reconstruction_images(options, cell.data, Split::kTest, cell.seed), cell.seed, "test", device),
        target_(at::randn({1, kChannels, options.height / 2, options.width / 2}, generator_of(cell.seed, "target")).to(device)),
        attention_(cell.variant.attention(cell.kind, kChannels)) {}

  void run() {
    train();
    measure();
    observe(1, "inverting");
    for (const std::string& solver : options_.inverse.solvers) inverses_.push_back(invert(solver));
    if (cell_.pictured && options_.pictures > 0) save_pictures();
    if (!diverged_) save(folder_ / "model.safetensors", *network_);
    write_file_atomically(folder_ / "cell.json", json_text(record_to_json(record()), 1) + "\n", "reconstruct");
    std::filesystem::remove(folder_ / "checkpoint.safetensors");
  }

 private:
  void observe(double fraction, const std::string& doing) const {
    if (observer_.progress) observer_.progress(fraction, doing);
  }

  at::Tensor loss_of(const at::Tensor& images) { return (network_->forward(images) - target_).square().mean(); }

  // ---- training

  void train() {
    at::manual_seed(derive_seed(static_cast<std::uint64_t>(cell_.seed), "weights"));
    block_ = InvertibleAttention(attention_);
    network_ = Sequential{Squeeze(), block_};
    network_->to(device_);
    trainer_.emplace(*this, *network_, Optimizer(*network_, {.learning_rate = learning_rate(0)}, AdamArithmetic::kByWeight),
                     TrainerOptions{.name = "reconstruction",
                                    .folder = folder_,
                                    .steps = options_.epochs * per_epoch(),
                                    .batch = options_.batch,
                                    .report_every = per_epoch(),
                                    .save_seconds = kSaveSeconds,
                                    .capture = false,
                                    .guard = options_.guard,
                                    .metrics = false,
                                    .save_reports = true,
                                    .may_diverge = true,
                                    .afresh = kAfresh},
                     progress_);
    trainer_->run();
    seconds_ = trainer_->seconds();
  }

  int64_t per_epoch() const { return (train_.size() + options_.batch - 1) / options_.batch; }

  double learning_rate(int64_t /*step*/) const override { return cell_.variant.learning_rate.value_or(options_.learning_rate); }

  StepKind prepare(int64_t step, bool guarded) override {
    const int64_t epoch = step / per_epoch();
    const int64_t place = step % per_epoch();
    observe(static_cast<double>(step) / static_cast<double>(options_.epochs * per_epoch()),
            "epoch " + std::to_string(epoch + 1) + " of " + std::to_string(options_.epochs) + ", step " + std::to_string(place + 1) +
                " of " + std::to_string(per_epoch()));
    if (place == 0 || !order_.defined()) order_ = at::randperm(train_.size(), generator_of(cell_.seed, "epoch " + std::to_string(epoch)));
    numbers_ = order_.slice(0, place * options_.batch, (place + 1) * options_.batch);
    return {.guarded = guarded};
  }

  at::Tensor loss(const StepKind& /*kind*/) override { return loss_of(train_.batch(numbers_)); }

  at::Tensor penalty(Guard& guard) override {
    // An image that is seen once only has no use for a vector of its own: the one of the image before is a better start than none.
    return options_.epochs > 1 ? guard.penalty(numbers_) : guard.penalty();
  }

  void updated(const StepKind& /*kind*/, const at::Tensor& /*loss*/) override { trainer_->guard().after_step(); }

  std::string report(const TrainingFigures& figures) override {
    curve_.push_back(
        {.epoch = trainer_->step() / per_epoch(), .loss = figures.loss, .penalty = figures.penalty, .largest = figures.largest});
    if (observer_.epoch) observer_.epoch(curve_.back());
    return "";
  }

  void add_to(Checkpoint& checkpoint) const override {
    std::vector<double> values;
    for (const EpochReport& epoch : curve_) values.insert(values.end(), {epoch.loss, epoch.penalty, epoch.largest});
    checkpoint.tensors.emplace(kCurve, at::tensor(values, at::kDouble).view({-1, 3}));
  }

  void restore_from(const Checkpoint& checkpoint, int64_t step, const std::string& origin) override {
    const auto found = checkpoint.tensors.find(kCurve);
    if (found == checkpoint.tensors.end() || found->second.dim() != 2 || found->second.size(1) != 3 ||
        found->second.size(0) != step / per_epoch() || step > options_.epochs * per_epoch() || found->second.scalar_type() != at::kDouble) {
      fail(ErrorKind::kData, origin, "expected three numbers for each epoch before step ", step, ", got others. ", kAfresh);
    }
    for (const at::Tensor& epoch : found->second.unbind(0)) {
      curve_.push_back({.epoch = static_cast<int64_t>(curve_.size()) + 1,
                        .loss = epoch[0].item<double>(),
                        .penalty = epoch[1].item<double>(),
                        .largest = epoch[2].item<double>()});
    }
    for (const EpochReport& epoch : curve_) {
      if (observer_.epoch) observer_.epoch(epoch);
    }
  }

  // ---- measuring

  int64_t measured(int64_t count) const { return chosen_count(options_.measured_images, count); }

  at::Tensor constants(const Images& images) {
    std::vector<at::Tensor> parts;
    for (const auto& [first, count] : Images::ranges(measured(images.size()), options_.batch)) {
      InterruptWatch::check();
      observe(1, "measuring local constants");
      const at::Tensor x = network_->parts().front()->forward(images.range(first, count));
      try {
        parts.push_back(local_constants(*block_->branch().freeze(x).linearize(x), x, options_.guard.measure).constants);
      } catch (const Error&) {  // derivatives that are not finite: the training has diverged, which is a result, too
        parts.push_back(at::full({count}, std::nan(""), at::kDouble));
      }
    }
    return at::cat(parts);
  }

  void measure() {
    const auto start = Clock::now();
    network_->eval();
    const at::NoGradGuard no_grad;
    diverged_ = std::ranges::any_of(curve_, [](const EpochReport& epoch) { return !std::isfinite(epoch.loss); });
    if (attention_.policy == Policy::kGuarded && !diverged_) {
      std::vector<at::Tensor> numbers;  // the guard is given the numbers of the images, so that only one batch of them is in memory
      for (const auto& [first, count] : Images::ranges(measured(train_.size()), options_.batch)) {
        numbers.push_back(at::arange(first, first + count));
      }
      trainer_->guard().finish(
          [this](const at::Tensor& range) {
            InterruptWatch::check();
            observe(1, "measuring local constants");
            network_->forward(train_.range(range[0].item<int64_t>(), range.size(0)));
          },
          numbers, std::string(to_string(source_.set)) + " training images");
      constants_train_ = trainer_->guard().constants().front();
    } else {
      constants_train_ = constants(train_);
    }
    trainer_.reset();  // its guard would go on recording
    constants_test_ = constants(test_);
    double loss = 0;
    double identity = 0;
    for (const auto& [first, count] : Images::ranges(train_.size(), options_.batch)) {
      const at::Tensor images = train_.range(first, count);
      const double share = static_cast<double>(count) / static_cast<double>(train_.size());
      loss += share * loss_of(images).item<double>();
      identity += share * (network_->parts().front()->forward(images) - target_).square().mean().item<double>();
    }
    loss_ = loss;
    identity_loss_ = identity;
    seconds_ += seconds_since(start);
  }

  // ---- inverting

  SolverResult invert(const std::string& solver) {
    const auto start = Clock::now();
    const at::NoGradGuard no_grad;
    const SolverOptions method = options_.inverse.options(solver, cell_.variant);
    SolverResult result;
    result.solver = solver;
    result.residual_max = 0;
    std::vector<at::Tensor> errors;
    std::vector<at::Tensor> similarities;
    std::vector<std::vector<at::Tensor>> traces;
    for (const auto& [first, count] : Images::ranges(test_.size(), options_.batch)) {
      InterruptWatch::check();
      observe(1, "inverting by " + solver + ", image " + std::to_string(first) + " of " + std::to_string(test_.size()));
      const at::Tensor images = test_.range(first, count);
      const auto [x, report] = network_->inverse(network_->forward(images), method);
      errors.push_back(mean_squared_errors(to_pixels(x), to_pixels(images)).cpu());
      similarities.push_back(structural_similarities(to_pixels(x), to_pixels(images)).cpu());
      const InverseReport& block = report.parts.front();
      result.options = block.options;
      result.converged += report.converged_count();
      result.iterations_max = std::max(result.iterations_max, report.most_iterations());
      result.evaluations = std::max(result.evaluations, report.evaluations);
      result.residual_max = std::max(result.residual_max, report.largest_residual());
      traces.push_back(block.trace);
    }
    const at::Tensor error = at::cat(errors);
    result.failures = test_.size() - result.converged;
    result.mse = error.mean().item<double>();
    result.ssim = at::cat(similarities).mean().item<double>();
    result.v_score = valid_score(error);
    result.seconds = seconds_since(start);
    const auto longest = std::max_element(traces.begin(), traces.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    for (std::size_t i = 0; i < longest->size(); ++i) {
      std::vector<at::Tensor> residuals;  // a batch that has stopped keeps its last value
      residuals.reserve(traces.size());
      for (const auto& trace : traces) residuals.push_back(trace[std::min(i, trace.size() - 1)]);
      const at::Tensor all = at::cat(residuals);
      result.residual_median.push_back(all.median().item<double>());
      result.residual_largest.push_back(all.max().item<double>());
    }
    seconds_ += result.seconds;
    return result;
  }

  // ---- pictures for the report

  static at::Tensor displayed(const at::Tensor& images) {
    return to_pixels(images).nan_to_num(0, 255, 0).clamp(0, 255).floor().to(at::kByte).cpu();
  }

  void save_pictures() {
    observe(1, "pictures");
    const at::NoGradGuard no_grad;
    const at::Tensor images = test_.range(0, options_.pictures);
    const at::Tensor z = network_->forward(images);
    const at::Tensor start = network_->parts().front()->inverse(z, AndersonOptions{}).x;  // z in the shape of an image
    std::map<std::string, at::Tensor> tensors = {
        {"originals", test_.pixels().narrow(0, 0, options_.pictures).clone()}, {"input", to_pixels(images)}, {"latent", start}};
    for (const std::string& solver : options_.inverse.solvers) {
      SolverOptions method = options_.inverse.options(solver, cell_.variant);
      const int64_t most = std::visit([](const auto& chosen) { return chosen.max_iterations; }, method);
      std::vector<at::Tensor> frames = {displayed(start)};
      std::vector<at::Tensor> residuals;
      std::vector<int64_t> steps = {0};
      for (const int64_t count : kFrameSteps) {
        if (count > most) break;
        InterruptWatch::check();
        std::visit([count](auto& chosen) { chosen.max_iterations = count; }, method);
        const auto [x, report] = network_->inverse(z, method);
        if (residuals.empty()) residuals.push_back(report.parts.front().trace.front());
        residuals.push_back(report.residual);
        frames.push_back(displayed(x));
        steps.push_back(count);
        if (report.usable()) break;
      }
      tensors["frames." + solver] = at::stack(frames);
      tensors["frames." + solver + ".iterations"] = at::tensor(steps, at::kLong);
      tensors["frames." + solver + ".residuals"] = at::stack(residuals).to(at::kDouble);
    }
    const SolverOptions method = options_.inverse.options(cell_.variant.solver_name(), cell_.variant);
    tensors["reconstruction"] = to_pixels(network_->inverse(z, method).x);
    const at::Tensor x = network_->parts().front()->forward(images);
    int64_t factor = 1;
    while (((x.size(2) + factor - 1) / factor) * ((x.size(3) + factor - 1) / factor) > kLargestGrid) ++factor;
    const at::Tensor response = block_->attention().response(x, factor).abs();
    tensors["response"] = (response / response.amax(2, /*keepdim=*/true).clamp_min(1e-30) * 255).round().nan_to_num(0).to(at::kByte);
    tensors["response.grid"] = at::tensor({(x.size(2) + factor - 1) / factor, (x.size(3) + factor - 1) / factor}, at::kLong);
    write_safetensors(folder_ / "pictures.safetensors", tensors, {{"format", "invattn-pictures-1"}});
  }

  CellRecord record() const {
    const SolverFigures& shown =
        *std::ranges::find_if(inverses_, [this](const SolverFigures& one) { return one.solver == cell_.variant.solver_name(); });
    const Certificate certificate = block_->certificate();
    CellRecord record;
    record.id = cell_.id(options_);
    record.dataset = to_string(source_.set);
    record.height = options_.height;
    record.width = options_.width;
    record.kind = to_string(cell_.kind);
    record.variant = cell_.variant.title();
    record.policy = cell_.variant.policy();
    record.normalization = to_string(attention_.normalization);
    record.seed = cell_.seed;
    record.loss = loss_;
    record.identity_loss = identity_loss_;
    record.mse = shown.mse;
    record.ssim = shown.ssim;
    record.v_score = shown.v_score;
    record.lipschitz_train = largest_of(constants_train_);
    record.lipschitz_test = largest_of(constants_test_);
    record.lipschitz_max = std::max(record.lipschitz_train, record.lipschitz_test);
    record.iterations_max = shown.iterations_max;
    record.failures = shown.failures;
    record.seconds = seconds_;
    record.solver = shown.solver;
    record.train_images = options_.train_images;
    record.test_images = options_.test_images;
    record.epochs = options_.epochs;
    record.parameters = parameter_count(*network_);
    record.certificate.whole = fields_to_json(certificate);
    record.certificate_text = certificate.text();
    record.options.whole = fields_to_json(attention_);
    record.inverses = inverses_;
    record.constants = {.train = histogram_of(constants_train_), .test = histogram_of(constants_test_)};
    for (const EpochReport& epoch : curve_) {
      record.curve.loss.push_back(epoch.loss);
      record.curve.penalty.push_back(epoch.penalty);
      record.curve.largest.push_back(epoch.largest);
    }
    return record;
  }

  const ReconstructionCell& cell_;
  const ReconstructionOptions& options_;
  const CellObserver& observer_;
  at::Device device_;
  std::filesystem::path folder_;
  DataSource source_;
  Images train_;
  Images test_;
  at::Tensor target_;  // (1, 12, H/2, W/2)
  AttentionOptions attention_;

  InvertibleAttention block_{nullptr};
  Sequential network_{nullptr};
  Progress progress_;  // shows nothing: the observer does
  std::optional<Trainer> trainer_;
  at::Tensor order_;    // of the images in the epoch under way
  at::Tensor numbers_;  // of the step's images
  std::vector<EpochReport> curve_;
  double seconds_ = 0;
  bool diverged_ = false;                        // the loss is not a number: there is no model to keep
  at::Tensor constants_train_, constants_test_;  // (n) float64
  double loss_ = 0;
  double identity_loss_ = 0;
  std::vector<SolverResult> inverses_;
};

}  // namespace

at::Tensor reconstruction_images(const ReconstructionOptions& options, const std::string& data, Split split, int64_t seed) {
  const bool train = split == Split::kTrain;
  return load_images(parse_data_source(data, "reconstruct"),
                     {.split = split,
                      .count = train ? options.train_images : options.test_images,
                      .height = options.height,
                      .width = options.width,
                      .seed = derive_seed(static_cast<std::uint64_t>(seed), train ? "train images" : "test images")});
}

void run_cell(const ReconstructionCell& cell, const ReconstructionOptions& options, at::Device device, const std::filesystem::path& folder,
              const CellObserver& observer) {
  CellRun(cell, options, device, folder, observer).run();
}

}  // namespace invattn

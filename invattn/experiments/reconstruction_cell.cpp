#include "invattn/experiments/reconstruction_cell.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adam.h>

#include <algorithm>
#include <chrono>
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
#include "invattn/train/checkpoint.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"

namespace invattn {
namespace {

using nlohmann::ordered_json;
using Clock = Progress::Clock;

constexpr int64_t kChannels = 12;                        // of a squeezed colour image
constexpr int64_t kResidentBytes = int64_t{1} << 26;     // images as numbers are kept up to this, else made anew for each batch
constexpr std::chrono::seconds kCheckpointInterval{60};  // within long epochs
constexpr int64_t kHistogramBins = 40;
constexpr int64_t kLargestGrid = 1024;  // positions of a response map that the report shows
// Steps after which the report shows the iterate: all of the first, then every quarter octave.
constexpr std::array<int64_t, 22> kFrameSteps = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 100};

ordered_json numbers(const std::vector<double>& values) {
  ordered_json list = ordered_json::array();
  for (const double value : values) list.push_back(json_number(value));
  return list;
}

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

/// What the experiment measures of one method.
struct Inverse {
  std::string solver;
  std::string options{};
  int64_t converged = 0;
  int64_t failures = 0;
  double mse = 0;
  double ssim = 0;
  double v_score = 0;
  int64_t iterations_max = 0;
  int64_t evaluations = 0;
  double residual_max = 0;
  double seconds = 0;
  std::vector<double> residual_median{};  // per iteration, over the images
  std::vector<double> residual_largest{};

  ordered_json json() const {
    return {{"solver", solver},
            {"options", options},
            {"converged", converged},
            {"failures", failures},
            {"mse", json_number(mse)},
            {"ssim", json_number(ssim)},
            {"v_score", v_score},
            {"iterations_max", iterations_max},
            {"evaluations", evaluations},
            {"residual_max", json_number(residual_max)},
            {"seconds", seconds},
            {"residual_median", numbers(residual_median)},
            {"residual_largest", numbers(residual_largest)}};
  }
};

ordered_json histogram_json(const at::Tensor& constants) {
  const double largest = constants.numel() > 0 ? constants.nan_to_num(0, 0, 0).max().item<double>() : 0;
  const double end = std::max(1.0, largest);
  std::vector<int64_t> counts(kHistogramBins);
  for (int64_t i = 0; i < constants.numel(); ++i) {
    const double value = constants[i].item<double>();
    if (!std::isfinite(value)) continue;
    ++counts[static_cast<std::size_t>(std::min(kHistogramBins - 1, static_cast<int64_t>(value / end * kHistogramBins)))];
  }
  ordered_json edges = ordered_json::array();
  for (int64_t i = 0; i <= kHistogramBins; ++i) edges.push_back(end * static_cast<double>(i) / kHistogramBins);
  return {{"edges", edges}, {"counts", counts}};
}

double largest_of(const at::Tensor& constants) { return constants.numel() > 0 ? constants.max().item<double>() : 0; }

class CellRun {
 public:
  CellRun(const ReconstructionCell& cell, const ReconstructionOptions& options, at::Device device, std::filesystem::path folder,
          const CellObserver& observer)
      : cell_(cell),
        options_(options),
        observer_(observer),
        device_(device),
        folder_(std::move(folder)),
        source_((observe(0, "reading images"), parse_data_source(cell.data, "reconstruct"))),
        train_(load(Split::kTrain, options.train_images), cell.seed, "train", device),
        test_(load(Split::kTest, options.test_images), cell.seed, "test", device),
        target_(at::randn({1, kChannels, options.height / 2, options.width / 2}, generator_of(cell.seed, "target")).to(device)),
        attention_(cell.variant.attention(cell.kind, kChannels)) {}

  void run() {
    train();
    measure();
    observe(1, "inverting");
    for (const std::string& solver : options_.inverse.solvers) inverses_.push_back(invert(solver));
    if (cell_.pictured && options_.pictures > 0) save_pictures();
    if (!diverged_) save(folder_ / "model.safetensors", *network_);
    write_file_atomically(folder_ / "cell.json", json_text(json(), 1) + "\n", "reconstruct");
    std::filesystem::remove(folder_ / "checkpoint.safetensors");
  }

 private:
  at::Tensor load(Split split, int64_t count) const {
    const std::string stream = split == Split::kTrain ? "train images" : "test images";
    return load_images(source_, {.split = split,
                                 .count = count,
                                 .height = options_.height,
                                 .width = options_.width,
                                 .seed = derive_seed(static_cast<std::uint64_t>(cell_.seed), stream)});
  }

  void observe(double fraction, const std::string& doing) const {
    if (observer_.progress) observer_.progress(fraction, doing);
  }

  void observe_step(int64_t steps) const {
    observe((static_cast<double>(epoch_) + static_cast<double>(step_) / static_cast<double>(steps)) / static_cast<double>(options_.epochs),
            "epoch " + std::to_string(epoch_ + 1) + " of " + std::to_string(options_.epochs) + ", step " + std::to_string(step_ + 1) +
                " of " + std::to_string(steps));
  }

  at::Tensor loss_of(const at::Tensor& images) { return (network_->forward(images) - target_).square().mean(); }

  // ---- training

  void train() {
    const auto start = Clock::now();
    at::manual_seed(derive_seed(static_cast<std::uint64_t>(cell_.seed), "weights"));
    block_ = InvertibleAttention(attention_);
    network_ = Sequential{Squeeze(), block_};
    network_->to(device_);
    torch::optim::Adam optimizer(network_->parameters(),
                                 torch::optim::AdamOptions(cell_.variant.learning_rate.value_or(options_.learning_rate)));
    guard_.emplace(*network_, options_.guard);

    const std::filesystem::path path = folder_ / "checkpoint.safetensors";
    if (std::filesystem::exists(path)) resume(path, optimizer);
    const double before = seconds_;
    auto saved = Clock::now();
    const auto keep = [&] {
      seconds_ = before + seconds_since(start);
      save_training(path, optimizer);
      saved = Clock::now();
    };
    const int64_t steps = (train_.size() + options_.batch - 1) / options_.batch;
    while (epoch_ < options_.epochs) {
      const at::Tensor order = at::randperm(train_.size(), generator_of(cell_.seed, "epoch " + std::to_string(epoch_)));
      while (step_ < steps) {
        observe_step(steps);
        take_step(order.slice(0, step_ * options_.batch, (step_ + 1) * options_.batch), guard_->due(epoch_ * steps + step_, options_.batch),
                  optimizer);
        ++step_;
        if (InterruptWatch::requested() || (step_ < steps && Clock::now() - saved > kCheckpointInterval)) {
          keep();
          InterruptWatch::check();
        }
      }
      finish_epoch(steps);
      keep();
    }
    seconds_ = before + seconds_since(start);
  }

  void take_step(const at::Tensor& numbers, bool guarded, torch::optim::Adam& optimizer) {
    const at::Tensor loss = loss_of(train_.batch(numbers));
    // An image that is seen once only has no use for a vector of its own: the one of the image before is a better start than none.
    const at::Tensor penalty = !guarded ? at::zeros({}) : options_.epochs > 1 ? guard_->penalty(numbers) : guard_->penalty();
    optimizer.zero_grad();
    (loss + penalty).backward();
    optimizer.step();
    guard_->after_step();
    sums_ += at::stack({loss.detach().to(at::kDouble), penalty.detach().to(device_, at::kDouble)}).cpu();
    largest_ = std::max(largest_, guard_->last_largest());
  }

  void finish_epoch(int64_t steps) {
    ++epoch_;
    const at::Tensor means = sums_ / static_cast<double>(steps);
    const EpochReport report{.epoch = epoch_, .loss = means[0].item<double>(), .penalty = means[1].item<double>(), .largest = largest_};
    curve_loss_.push_back(report.loss);
    curve_penalty_.push_back(report.penalty);
    curve_largest_.push_back(report.largest);
    step_ = 0;
    sums_ = at::zeros({2}, at::kDouble);
    largest_ = 0;
    if (observer_.epoch) observer_.epoch(report);
  }

  /// All there is to remember is small but for the guard's vectors: the order of an epoch follows from its number.
  void save_training(const std::filesystem::path& path, torch::optim::Adam& optimizer) const {
    Checkpoint checkpoint;
    add_training(checkpoint, *network_, optimizer);
    add_guard(checkpoint, *guard_);
    checkpoint.tensors.emplace("sums", sums_);
    const bool finite = std::all_of(checkpoint.tensors.begin(), checkpoint.tensors.end(), [](const auto& entry) {
      return !entry.second.is_floating_point() || entry.second.isfinite().all().template item<bool>();
    });
    if (!finite) note_diverged(checkpoint);
    checkpoint.notes["progress"] = ordered_json{
        {"epoch", epoch_},
        {"step", step_},
        {"largest", largest_},
        {"seconds", seconds_},
        {"loss", numbers(curve_loss_)},
        {"penalty", numbers(curve_penalty_)},
        {"largest_curve",
         numbers(curve_largest_)}}.dump();
    save_checkpoint(path, checkpoint);
  }

  void resume(const std::filesystem::path& path, torch::optim::Adam& optimizer) {
    const Checkpoint checkpoint = load_checkpoint(path);
    restore_training(checkpoint, *network_, optimizer, path.string());
    restore_guard(checkpoint, *guard_, path.string());
    const auto sums = checkpoint.tensors.find("sums");
    const auto note = checkpoint.notes.find("progress");
    try {
      sums_ = sums == checkpoint.tensors.end() ? at::Tensor() : sums->second;
      const nlohmann::json progress = parse_json(note == checkpoint.notes.end() ? "" : note->second, path.string());
      epoch_ = count_at(progress, "epoch", path.string());
      step_ = count_at(progress, "step", path.string());
      largest_ = progress.at("largest").is_null() ? std::nan("") : progress.at("largest").get<double>();
      seconds_ = number_at(progress, "seconds", 0, kLongestTraining, path.string());
      const int64_t steps = (train_.size() + options_.batch - 1) / options_.batch;
      if (epoch_ > options_.epochs || step_ > steps) {
        fail(ErrorKind::kData, path.string(), "expected at most epoch ", options_.epochs, " and step ", steps, ", got epoch ", epoch_,
             " and step ", step_, ". Remove the file to train this cell from the start.");
      }
      const auto read = [&](const char* name) {
        std::vector<double> values;
        for (const auto& value : progress.at(name).get_ref<const nlohmann::json::array_t&>()) {
          values.push_back(value.is_null() ? std::nan("") : value.get<double>());
        }
        if (static_cast<int64_t>(values.size()) != epoch_) {
          fail(ErrorKind::kData, path.string(), "expected ", epoch_, " numbers in '", name, "', one for each epoch, got ", values.size(),
               ". Remove the file to train this cell from the start.");
        }
        return values;
      };
      curve_loss_ = read("loss");
      curve_penalty_ = read("penalty");
      curve_largest_ = read("largest_curve");
    } catch (const nlohmann::json::exception&) {
      fail(ErrorKind::kData, path.string(),
           "expected where the training stands, got values that are missing or of another type. Remove the file to train this cell from "
           "the start.");
    }
    if (!sums_.defined() || sums_.numel() != 2 || sums_.scalar_type() != at::kDouble) {
      fail(ErrorKind::kData, path.string(), "expected the sums of the epoch under way, got none. Remove the file to train this cell anew.");
    }
    sums_ = sums_.clone();
    for (std::size_t i = 0; i < curve_loss_.size() && observer_.epoch; ++i) {
      observer_.epoch(
          {.epoch = static_cast<int64_t>(i) + 1, .loss = curve_loss_[i], .penalty = curve_penalty_[i], .largest = curve_largest_[i]});
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
    diverged_ = std::any_of(curve_loss_.begin(), curve_loss_.end(), [](double loss) { return !std::isfinite(loss); });
    if (attention_.policy == Policy::kGuarded && !diverged_) {
      std::vector<at::Tensor> numbers;  // the guard is given the numbers of the images, so that only one batch of them is in memory
      for (const auto& [first, count] : Images::ranges(measured(train_.size()), options_.batch)) {
        numbers.push_back(at::arange(first, first + count));
      }
      guard_->finish(
          [this](const at::Tensor& range) {
            InterruptWatch::check();
            observe(1, "measuring local constants");
            network_->forward(train_.range(range[0].item<int64_t>(), range.size(0)));
          },
          numbers, std::string(to_string(source_.set)) + " training images");
      constants_train_ = guard_->constants().front();
    } else {
      constants_train_ = constants(train_);
    }
    guard_.reset();
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

  Inverse invert(const std::string& solver) {
    const auto start = Clock::now();
    const at::NoGradGuard no_grad;
    const SolverOptions method = options_.inverse.options(solver, cell_.variant);
    Inverse result{.solver = solver};
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

  ordered_json json() const {
    const auto shown =
        std::find_if(inverses_.begin(), inverses_.end(), [this](const Inverse& i) { return i.solver == cell_.variant.solver_name(); });
    const Certificate certificate = block_->certificate();
    ordered_json result = {
        {"id", cell_.id(options_)},
        {"dataset", to_string(source_.set)},
        {"height", options_.height},
        {"width", options_.width},
        {"kind", to_string(cell_.kind)},
        {"variant", cell_.variant.title()},
        {"policy", cell_.variant.policy()},
        {"normalization", to_string(attention_.normalization)},
        {"seed", cell_.seed},
        {"loss", json_number(loss_)},
        {"identity_loss", json_number(identity_loss_)},
        {"mse", json_number(shown->mse)},
        {"ssim", json_number(shown->ssim)},
        {"v_score", shown->v_score},
        {"lipschitz_max", json_number(std::max(largest_of(constants_train_), largest_of(constants_test_)))},
        {"lipschitz_train", json_number(largest_of(constants_train_))},
        {"lipschitz_test", json_number(largest_of(constants_test_))},
        {"iterations_max", shown->iterations_max},
        {"failures", shown->failures},
        {"seconds", seconds_},
        {"solver", shown->solver},
        {"train_images", options_.train_images},
        {"test_images", options_.test_images},
        {"epochs", options_.epochs},
        {"parameters", parameter_count(*network_)},
        {"certificate", fields_to_json(certificate)},
        {"certificate_text", certificate.text()},
        {"options", fields_to_json(attention_)},
        {"inverses", ordered_json::array()},
        {"constants", {{"train", histogram_json(constants_train_)}, {"test", histogram_json(constants_test_)}}},
        {"curve", {{"loss", numbers(curve_loss_)}, {"penalty", numbers(curve_penalty_)}, {"largest", numbers(curve_largest_)}}}};
    for (const Inverse& inverse : inverses_) result["inverses"].push_back(inverse.json());
    return result;
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
  std::optional<Guard> guard_;
  int64_t epoch_ = 0;                              // finished
  int64_t step_ = 0;                               // of the epoch under way
  at::Tensor sums_ = at::zeros({2}, at::kDouble);  // of loss and penalty over the epoch under way
  double largest_ = 0;
  double seconds_ = 0;
  std::vector<double> curve_loss_, curve_penalty_, curve_largest_;
  bool diverged_ = false;                        // the loss is not a number: there is no model to keep
  at::Tensor constants_train_, constants_test_;  // (n) float64
  double loss_ = 0;
  double identity_loss_ = 0;
  std::vector<Inverse> inverses_;
};

}  // namespace

void run_cell(const ReconstructionCell& cell, const ReconstructionOptions& options, at::Device device, const std::filesystem::path& folder,
              const CellObserver& observer) {
  CellRun(cell, options, device, folder, observer).run();
}

}  // namespace invattn

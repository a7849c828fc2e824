#include "invattn/train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "invattn/core/seed.h"
#include "invattn/dist/world.h"
#include "invattn/nn/flow.h"
#include "invattn/train/interrupt.h"
#include "tests/dist/processes.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

constexpr int64_t kBatch = 8;
constexpr const char* kFolder = "INVATTN_TEST_FOLDER";
constexpr const char* kSteps = "INVATTN_TEST_STEPS";

/// A flow with guarded attention and ActNorms, on noise of which each process takes its part. Log-determinants are exact, so that nothing else
/// is random.
class SharedTraining : public TrainingTask {
 public:
  SharedTraining(const World& world, const std::filesystem::path& folder, int64_t steps) : world_(world) {
    at::manual_seed(3);
    flow_ = Flow(FlowOptions{.channels = 2,
                             .height = 4,
                             .width = 4,
                             .pixels = PixelTransform::kNone,
                             .squeeze = false,
                             .blocks = {1},
                             .split = false,
                             .hidden = 4,
                             .attention = FlowAttention::kGaussian,
                             .attention_blocks = {1},
                             .attention_follow = 0.9});
    trainer.emplace(*this, *flow_, Optimizer(*flow_, {.learning_rate = 1e-2, .clip_norm = 1, .average = 0.9}),
                    TrainerOptions{.name = "test",
                                   .folder = folder,
                                   .steps = steps,
                                   .batch = kBatch / world.size(),
                                   .report_every = 2,
                                   .save_seconds = 1e9,
                                   .gradient_norm = true,
                                   .guard = {.target = 0.1, .fraction = 1},
                                   .world = world,
                                   .save_reports = save_reports()},
                    progress_);
  }

  double learning_rate(int64_t /*step*/) const override { return 1e-2; }
  StepKind prepare(int64_t step, bool guarded) override {
    if (step == interrupted_before && world_.rank() == 1) std::raise(SIGINT);
    at::manual_seed(derive_seed(5, "step " + std::to_string(step)));
    not_finite_ = step == bad_step && world_.rank() == 1;
    if (not_finite_) bad_step = -1;
    return {.guarded = guarded};
  }
  at::Tensor loss(const StepKind& /*kind*/) override {
    const int64_t share = kBatch / world_.size();
    const at::Tensor x = at::randn({kBatch, 2, 4, 4}).narrow(0, world_.rank() * share, share);
    const at::Tensor loss = -flow_->log_prob(x, ExactLogDet{}).value.mean();
    return not_finite_ ? loss * std::numeric_limits<float>::quiet_NaN() : loss;
  }
  void updated(const StepKind& kind, const at::Tensor& /*loss*/) override {
    if (kind.guarded) trainer->guard().hold();
  }
  std::string report(const TrainingFigures& figures) override {
    losses.push_back(figures.loss);
    return "step";
  }

  static bool save_reports() { return std::getenv("INVATTN_TEST_SAVE") != nullptr; }

  World world_;
  Flow flow_{nullptr};
  Progress progress_{/*silent=*/true};
  std::optional<Trainer> trainer;  // behind what it refers to
  std::vector<double> losses;
  int64_t bad_step = -1;
  int64_t interrupted_before = -1;

 private:
  bool not_finite_ = false;
};

class SharedTrainingTest : public FileTest {
 protected:
  /// In one process, or in one of several: goes on with the training in the folder that the variable names.
  static void train_inside(int64_t bad_step = -1, int64_t interrupted_before = -1) {
    const World world = World::join(at::kCPU, std::chrono::seconds(60));
    SharedTraining training(world, std::getenv(kFolder), std::stoll(std::getenv(kSteps)));
    training.bad_step = bad_step;
    training.interrupted_before = interrupted_before;
    if (interrupted_before < 0) {
      EXPECT_TRUE(training.trainer->run());
      return;
    }
    const InterruptWatch watch;
    EXPECT_THROW(training.trainer->run(), Interrupted);
    EXPECT_EQ(training.trainer->step(), interrupted_before + 1) << "all stop after the same step";
  }

  void train(const std::string& name, int processes, int64_t steps, const std::map<std::string, std::string>& more = {}) const {
    std::filesystem::create_directories(folder / name);
    auto variables = more;
    variables.insert({{kFolder, (folder / name).string()}, {kSteps, std::to_string(steps)}});
    EXPECT_EQ(run_processes(processes, variables), std::vector<int>(static_cast<std::size_t>(processes), 0)) << name;
  }
  void copy(const std::string& from, const std::string& to) const {
    std::filesystem::copy(folder / from, folder / to, std::filesystem::copy_options::recursive);
  }
  std::map<std::string, at::Tensor> state(const std::string& name) const {
    return load_checkpoint(folder / name / "checkpoint.safetensors").tensors;
  }

  void expect_same(const std::string& one, const std::string& other) const {
    const auto a = state(one);
    const auto b = state(other);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [key, value] : a) EXPECT_TRUE(value.equal(b.at(key))) << key << " of " << one << " and " << other;
  }
  void expect_close(const std::string& one, const std::string& other) const {
    const auto a = state(one);
    const auto b = state(other);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [key, value] : a) {
      // Adam divides by the root of the second moment, which makes rounding of small gradients large.
      EXPECT_TRUE(value.allclose(b.at(key), 2e-3, 2e-4))
          << key << " of " << one << " and " << other << ": " << (value - b.at(key)).abs().max().item<double>();
    }
  }
};

TEST_F(SharedTrainingTest, PartsOfABatchAreTheBatch) {
  if (inside_process()) return train_inside();
  train("start", 1, 1);  // whose vectors of the guard all go on from
  for (const int count : {1, 2, 4}) {
    const std::string name = std::to_string(count);
    copy("start", name);
    train(name, count, 6);
  }
  expect_close("1", "2");
  expect_close("1", "4");
}

TEST_F(SharedTrainingTest, TheFirstBatchOfAllStartsActNorms) {
  if (inside_process()) return train_inside();
  train("one", 1, 1);
  train("two", 2, 1);
  const auto one = state("one");
  const auto two = state("two");
  int norms = 0;
  for (const auto& [key, value] : one) {
    if (!key.starts_with("network.") || (key.find("shift") == std::string::npos && key.find("log_scale") == std::string::npos)) continue;
    ++norms;
    EXPECT_TRUE(value.allclose(two.at(key), 1e-3, 2e-2)) << key;  // after one step of 1e-2
  }
  EXPECT_GE(norms, 2);
}

TEST_F(SharedTrainingTest, TheSameNumberGivesTheSameBitsAlsoWhenItWasStopped) {
  if (inside_process()) return train_inside();
  train("whole", 2, 6);
  train("again", 2, 6);
  expect_same("whole", "again");
  train("parts", 2, 3);
  train("parts", 2, 6);
  expect_same("whole", "parts");
}

TEST_F(SharedTrainingTest, AnotherNumberGoesOn) {
  if (inside_process()) return train_inside();
  train("two", 2, 3);
  copy("two", "one");
  copy("two", "four");
  train("two", 2, 6);
  train("one", 1, 6);
  train("four", 4, 6);
  expect_close("two", "one");
  expect_close("two", "four");
}

TEST_F(SharedTrainingTest, ALossThatIsNoNumberInOneProcessTakesAllBack) {
  if (inside_process()) return train_inside(/*bad_step=*/4);
  train("bad", 2, 8, {{"INVATTN_TEST_SAVE", "1"}});
  for (const auto& [key, value] : state("bad")) EXPECT_TRUE(!value.is_floating_point() || value.isfinite().all().item<bool>()) << key;
  EXPECT_NE(load_checkpoint(folder / "bad" / "checkpoint.safetensors").notes.at("progress").find("\"back_offs\":1"), std::string::npos);
}

TEST_F(SharedTrainingTest, AnInterruptOfOneStopsAll) {
  if (inside_process()) return train_inside(-1, std::getenv("INVATTN_TEST_GO_ON") != nullptr ? -1 : 3);
  train("stopped", 2, 6);
  train("stopped", 2, 6, {{"INVATTN_TEST_GO_ON", "1"}});
  train("whole", 2, 6, {{"INVATTN_TEST_GO_ON", "1"}});
  expect_same("whole", "stopped");
}

}  // namespace
}  // namespace invattn::test

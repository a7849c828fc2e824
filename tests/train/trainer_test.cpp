#include "invattn/train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/core/seed.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/metrics_log.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

using Strings = std::vector<std::string>;

constexpr double kNever = 1e9;  // seconds between two checkpoints
constexpr double kRate = 1e-2;

/// A linear map that learns another from noise, and notes what the trainer asks for.
class Toy : public TrainingTask {
 public:
  Toy(uint64_t seed, TrainerOptions options) : seed_(seed) {
    at::manual_seed(derive_seed(seed, "weights"));
    network = torch::nn::Linear(3, 2);
    const OptimizerOptions adam{.learning_rate = kRate, .clip_norm = 0, .average = 0.9};
    trainer.emplace(*this, *network, Optimizer(*network, adam), std::move(options), progress_);
  }

  double learning_rate(int64_t /*step*/) const override { return kRate; }

  StepKind prepare(int64_t step, bool guarded) override {
    if (step == interrupted_before) std::raise(SIGINT);
    if (step == failing_at) fail(ErrorKind::kUsage, "toy", "expected a step, got none.");
    at::manual_seed(derive_seed(seed_, "step " + std::to_string(step)));
    not_finite_ = bad_steps.contains(step);
    if (not_finite_ && !always_bad) bad_steps.erase(step);
    rates.push_back(trainer->optimizer().options().learning_rate);
    return {.terms = step % 2, .guarded = guarded};
  }

  at::Tensor loss(const StepKind& /*kind*/) override {
    const at::Tensor x = at::randn({4, 3});
    const at::Tensor error = (network->forward(x) - x.narrow(1, 0, 2)).square().mean();
    return not_finite_ ? error * std::numeric_limits<float>::quiet_NaN() : error;
  }

  void updated(const StepKind& /*kind*/, const at::Tensor& loss) override { total_ += loss.detach().to(at::kDouble); }

  std::string report(const TrainingFigures& figures) override {
    note("report");
    trainer->record(nlohmann::json{{"step", trainer->step()}, {"loss", figures.loss}}.dump());
    return "step " + std::to_string(trainer->step());
  }

  void evaluate() override { note("look"); }
  void add_to(Checkpoint& checkpoint) const override { checkpoint.tensors.emplace("total", total_); }
  void restore_from(const Checkpoint& checkpoint, int64_t /*step*/, const std::string& /*origin*/) override {
    total_.copy_(checkpoint.tensors.at("total"));
  }
  void saved(const Checkpoint& /*checkpoint*/) override { note("save"); }
  void keep_config() const override { events.push_back("config"); }

  torch::nn::Linear network{nullptr};
  std::optional<Trainer> trainer;
  std::set<int64_t> bad_steps;  // whose loss is not a number, the first time
  bool always_bad = false;      // or every time
  int64_t interrupted_before = -1;
  int64_t failing_at = -1;
  mutable Strings events;
  std::vector<double> rates;  // of each step

 private:
  void note(const std::string& what) const { events.push_back(what + " " + std::to_string(trainer->step())); }

  uint64_t seed_;
  bool not_finite_ = false;
  at::Tensor total_ = at::zeros({}, at::kDouble);
  Progress progress_;
};

class TrainerTest : public FileTest {
 protected:
  TrainerOptions options(const std::string& name = "run", bool resume = false) const {
    std::filesystem::create_directories(folder / name);
    return {.name = "toy",
            .folder = folder / name,
            .resume = resume,
            .steps = 7,
            .report_every = 2,
            .evaluate_every = 3,
            .save_seconds = kNever,
            .advice = "Try less."};
  }

  /// Tensors, but not what depends on the clock.
  std::map<std::string, at::Tensor> state(const std::string& name) const {
    return load_checkpoint(folder / name / "checkpoint.safetensors").tensors;
  }
  std::string metrics(const std::string& name) const { return read_plainly(folder / name / "metrics.jsonl"); }
};

TEST_F(TrainerTest, ReportsLooksAndSavesWhenItIsTime) {
  Toy toy(1, options());
  EXPECT_TRUE(toy.trainer->run());
  EXPECT_EQ(toy.events, (Strings{"config", "report 2", "look 3", "report 4", "report 6", "look 6", "save 7"}));
  EXPECT_EQ(toy.trainer->step(), 7);

  TrainerOptions often = options("often");
  often.steps = 6;
  often.save_seconds = 0;
  Toy saving(1, often);
  EXPECT_TRUE(saving.trainer->run());
  EXPECT_EQ(saving.events,
            (Strings{"config", "save 1", "report 2", "save 2", "look 3", "save 3", "report 4", "save 4", "save 5", "report 6", "save 6"}))
      << "the end is the experiment's to look at";
}

TEST_F(TrainerTest, TheConfigurationOfAResumedRunIsKeptOnceAStepWasMade) {
  EXPECT_TRUE(Toy(1, options()).trainer->run());
  TrainerOptions more = options("run", /*resume=*/true);
  Toy done(1, more);
  EXPECT_TRUE(done.trainer->run());
  EXPECT_EQ(done.events, (Strings{"config"})) << "no step was left to fail";
  more.steps = 8;
  Toy longer(1, more);
  EXPECT_TRUE(longer.trainer->run());
  EXPECT_EQ(longer.events, (Strings{"config", "report 8", "save 8"}));
  more.steps = 20;
  Toy failing(1, more);
  const InterruptWatch watch;
  failing.interrupted_before = 8;
  EXPECT_THROW(failing.trainer->run(), Interrupted);
  EXPECT_EQ(failing.events, (Strings{"config", "look 9", "save 9"}));
}

TEST_F(TrainerTest, AnInterruptSavesAndThrows) {
  for (const int64_t step : {0, 3, 6}) {
    const std::string name = "stopped " + std::to_string(step);
    Toy toy(1, options(name));
    toy.interrupted_before = step;
    const InterruptWatch watch;
    EXPECT_THROW(toy.trainer->run(), Interrupted);
    EXPECT_EQ(toy.events.back(), "save " + std::to_string(step + 1));
    EXPECT_EQ(Toy(1, options(name, /*resume=*/true)).trainer->step(), step + 1);
  }
}

TEST_F(TrainerTest, AFirstStepThatFailsLeavesNoRunBehind) {
  const auto fails = [this](int64_t step, bool resume) {
    write_plainly(folder / "run/config.toml", "steps = 7");
    Toy toy(1, options("run", resume));
    toy.failing_at = step;
    error_of([&] { toy.trainer->run(); }, ErrorKind::kUsage);
  };
  std::filesystem::create_directory(folder / "run");
  fails(0, /*resume=*/false);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));
  fails(1, /*resume=*/false);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/config.toml")) << "a step was made";
  fails(0, /*resume=*/true);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/config.toml")) << "it was a run before";
}

TEST_F(TrainerTest, ALineThatIsTornIsLeftOutAndOneThatIsDamagedIsAnError) {
  const auto path = folder / "metrics.jsonl";
  const std::string good = "{\"step\": 1}\n{\"step\": 2}\n";
  for (const char* torn : {"{\"step\": 3, \"lo", "\n", "7\n{\"step\"", "{\"final\": true}\n{", "{\"step\": 18446744073709551615}\n"}) {
    write_plainly(path, good + torn);
    trim_metrics(folder, 9, "toy");
    EXPECT_EQ(read_plainly(path), good) << torn;
  }
  write_plainly(path, good + std::string(7, '\0') + "{\"step\": 3}\n{\"step\": 4}\n");
  trim_metrics(folder, 2, "toy");
  EXPECT_EQ(read_plainly(path), good) << "what no checkpoint has synced may have holes";
  for (const std::string damaged : {"{\"step\": 1", "[]", "{\"step\": \"1\"}", "{}", "{\"step\": 9223372036854775808}", "\x1b[31m"}) {
    const std::string lines = "{\"step\": 1}\n" + damaged + "\n{\"step\": 2}\n";
    write_plainly(path, lines);
    const std::string text = error_of([&] { trim_metrics(folder, 9, "toy"); });
    expect_contains(text, "[toy] expected a JSON object with its step in line 2 of '" + path.string() + "', got '");
    expect_contains(text, "remove the line");
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    EXPECT_EQ(read_plainly(path), lines) << "nothing is lost";
  }
}

TEST_F(TrainerTest, TheTimeLimitSavesAndStops) {
  TrainerOptions short_one = options();
  short_one.time_limit = 1e-9;
  for (int64_t step = 1; step < 7; ++step) {
    short_one.resume = step > 1;
    Toy toy(1, short_one);
    EXPECT_FALSE(toy.trainer->run());
    EXPECT_EQ(toy.trainer->step(), step);
    EXPECT_EQ(toy.events.back(), "save " + std::to_string(step));
  }
  EXPECT_TRUE(Toy(1, short_one).trainer->run()) << "out of time at the end is the end";
}

TEST_F(TrainerTest, ALossThatIsNoNumberTakesItBackWithHalfTheRate) {
  TrainerOptions saving = options();
  saving.save_seconds = 0;
  Toy toy(1, saving);
  toy.bad_steps = {2, 5};
  EXPECT_TRUE(toy.trainer->run());
  EXPECT_EQ(toy.rates, (std::vector<double>{kRate, kRate, kRate, kRate / 2, kRate / 2, kRate / 2, kRate / 2, kRate / 4, kRate / 4}));
  for (const auto& [name, tensor] : state("run")) EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  saving.resume = true;
  saving.steps = 8;
  Toy later(1, saving);
  EXPECT_TRUE(later.trainer->run());
  EXPECT_EQ(later.rates, (std::vector<double>{kRate / 4})) << "also in another process";
}

TEST_F(TrainerTest, LinesOfStepsThatAreMadeAgainAreNotThereTwice) {
  TrainerOptions from_two = options();
  from_two.steps = 2;
  EXPECT_TRUE(Toy(1, from_two).trainer->run());
  TrainerOptions further = options("run", /*resume=*/true);
  Toy toy(1, further);
  toy.bad_steps = {5};
  EXPECT_TRUE(toy.trainer->run());
  EXPECT_EQ(toy.events, (Strings{"config", "look 3", "report 4", "config", "look 3", "report 4", "report 6", "look 6", "save 7"}));
  Strings steps;
  std::istringstream lines(metrics("run"));
  for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line)["step"].dump());
  EXPECT_EQ(steps, (Strings{"2", "4", "6"}));
}

TEST_F(TrainerTest, AfterThreeReturnsItGivesUp) {
  TrainerOptions saving = options();
  saving.save_seconds = 0;
  Toy toy(1, saving);
  toy.bad_steps = {4};
  toy.always_bad = true;
  const std::string text = error_of([&] { toy.trainer->run(); }, ErrorKind::kNotConverged);
  expect_contains(
      text, "[toy] expected a finite loss, got one that is not a number by step 5, after 3 returns to the last checkpoint. Try less.");
  EXPECT_EQ(toy.rates.size(), 4 + 4U);
  EXPECT_EQ(toy.rates.back(), kRate / 8);

  Toy without(1, options("new"));
  without.bad_steps = {4};
  expect_contains(error_of([&] { without.trainer->run(); }, ErrorKind::kNotConverged), "by step 6, before the first checkpoint. Try less.");
  EXPECT_FALSE(std::filesystem::exists(folder / "new/checkpoint.safetensors"));
}

TEST_F(TrainerTest, WhereDivergingIsAResultItGoesOnAndSaysSo) {
  TrainerOptions diverging = options();
  diverging.may_diverge = diverging.save_reports = true;
  Toy toy(1, diverging);
  toy.bad_steps = {3};
  toy.interrupted_before = 4;
  {
    const InterruptWatch watch;
    EXPECT_THROW(toy.trainer->run(), Interrupted);
  }
  EXPECT_EQ(toy.events, (Strings{"config", "report 2", "save 2", "look 3", "report 4", "save 4", "save 5"}));
  EXPECT_TRUE(load_checkpoint(folder / "run/checkpoint.safetensors").notes.contains("diverged"));
  diverging.resume = true;
  Toy later(1, diverging);
  EXPECT_EQ(later.trainer->step(), 5);
  EXPECT_TRUE(later.trainer->run());
  EXPECT_EQ(later.rates, (std::vector<double>{kRate, kRate}));
}

TEST_F(TrainerTest, StoppedAnywhereItGoesOnToTheSameBits) {
  std::mt19937_64 random(static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()));
  for (int trial = 0; trial < 5; ++trial) {
    const uint64_t seed = random();
    const auto options_of = [&](const std::string& name, bool resume) {
      TrainerOptions result = options(name + std::to_string(trial), resume);
      result.steps = 20;
      result.report_every = 1 + static_cast<int64_t>(seed % 7);
      result.save_seconds = seed % 2 == 0 ? 0 : kNever;
      return result;
    };
    EXPECT_TRUE(Toy(seed, options_of("whole", false)).trainer->run());
    bool resume = false;
    for (int64_t step = 0; step < 20;) {
      const InterruptWatch watch;
      Toy toy(seed, options_of("parts", resume));
      EXPECT_EQ(toy.trainer->step(), step);
      toy.interrupted_before = step + static_cast<int64_t>(random() % 6);
      step = std::min<int64_t>(20, toy.interrupted_before + 1);
      if (toy.interrupted_before < 20) {
        EXPECT_THROW(toy.trainer->run(), Interrupted);
      } else {
        EXPECT_TRUE(toy.trainer->run());
      }
      resume = true;
    }
    const auto whole = state("whole" + std::to_string(trial));
    const auto parts = state("parts" + std::to_string(trial));
    ASSERT_EQ(whole.size(), parts.size());
    for (const auto& [name, tensor] : whole) EXPECT_TRUE(at::equal(tensor, parts.at(name))) << name << ", seed " << seed;
    EXPECT_EQ(metrics("whole" + std::to_string(trial)), metrics("parts" + std::to_string(trial))) << "seed " << seed;
  }
}

TEST_F(TrainerTest, CheckpointsOfATrainingThatDidNotBackOffAreRead) {
  EXPECT_TRUE(Toy(1, options()).trainer->run());
  const auto path = folder / "run/checkpoint.safetensors";
  Checkpoint checkpoint = load_checkpoint(path);
  checkpoint.notes["progress"] = R"({"step": 5, "seconds": 1.5})";
  save_checkpoint(path, checkpoint);
  EXPECT_EQ(Toy(1, options("run", /*resume=*/true)).trainer->step(), 5);
  for (const char* damaged : {R"({"step": 5, "seconds": 1.5, "caution": 1})", R"({"step": 5, "seconds": 1.5, "back_offs": 0})",
                              R"({"step": 5, "seconds": 1.5, "caution": 0.01, "back_offs": 0})", R"({"step": 5})", "7"}) {
    checkpoint.notes["progress"] = damaged;
    save_checkpoint(path, checkpoint);
    expect_contains(error_of([&] { Toy(1, options("run", /*resume=*/true)); }), path.string());
  }
  checkpoint.notes.erase("progress");
  save_checkpoint(path, checkpoint);
  expect_contains(error_of([&] { Toy(1, options("run", /*resume=*/true)); }), "expected the checkpoint of a toy training");
}

}  // namespace
}  // namespace invattn::test

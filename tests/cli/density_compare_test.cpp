#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/io/safetensors.h"
#include "tests/cli/training_test.h"
#include "tests/report/page_text.h"

namespace invattn::test {
namespace {

using nlohmann::json;

const std::vector<std::string> kSmall = {"train_images=24",
                                         "validation_images=6",
                                         "batch=4",
                                         "report_every=1",
                                         "evaluate_every=2",
                                         "samples=0",
                                         "warm_up=0",
                                         "steps=4",
                                         "measured_images=8",
                                         "flow.blocks=[1,1]",
                                         "flow.hidden=6",
                                         "evaluation.inverse_images=4",
                                         "flow.split=false",
                                         "flow.squeeze=false",
                                         "flow.attention_blocks=[0,1]"};

/// Two arms of two seeds, trained once for all tests: runs/none-0, runs/none-1, runs/gaussian-0, runs/gaussian-1.
class DensityCompare : public TrainingTest {
 protected:
  DensityCompare() : TrainingTest("density", kSmall) {}

  void SetUp() override {
    TrainingTest::SetUp();
    for (const std::string arm : {"none", "gaussian"}) {
      for (const std::string seed : {"0", "1"}) {
        const auto kept = trained() / (arm + "-" + seed);
        if (!std::filesystem::exists(kept)) {
          const auto result = train("runs/" + kept.filename().string(), {"--set", "flow.attention=" + arm, "--set", "seed=" + seed});
          ASSERT_EQ(result.exit_code, 0) << result.err;
          std::filesystem::copy(run_folder(arm, seed), kept, std::filesystem::copy_options::recursive);
        } else {
          std::filesystem::create_directories(folder / "runs");
          std::filesystem::copy(kept, run_folder(arm, seed), std::filesystem::copy_options::recursive);
        }
      }
    }
  }

  static void TearDownTestSuite() { std::filesystem::remove_all(trained()); }

  static const std::filesystem::path& trained() {
    static const std::filesystem::path kept = [] {
      std::string name = (std::filesystem::temp_directory_path() / "invattn-runs-XXXXXX").string();
      EXPECT_NE(::mkdtemp(name.data()), nullptr);
      return name;
    }();
    return kept;
  }

  std::filesystem::path run_folder(const std::string& arm, const std::string& seed) const { return folder / "runs" / (arm + "-" + seed); }

  ToolResult compare(const std::vector<std::string>& more, const std::vector<std::string>& runs = {"runs"}) const {
    std::vector<std::string> arguments = {"compare"};
    arguments.insert(arguments.end(), runs.begin(), runs.end());
    for (const char* word : {"--out", "study", "--images", "20", "--batch", "8", "--device", "cpu", "--threads", "1"}) {
      arguments.emplace_back(word);
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  std::map<std::string, std::filesystem::file_time_type> values() const {
    std::map<std::string, std::filesystem::file_time_type> times;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "study/values")) {
      times[entry.path().filename().string()] = entry.last_write_time();
    }
    return times;
  }
};

TEST_F(DensityCompare, ArmsAreComparedImageByImageAndWhatWasScoredIsKept) {
  const auto compared = compare({});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_NE(compared.out.find("synthetic 8x8, at equal steps, 2 seeds, in bits per dimension: gaussian "), std::string::npos)
      << compared.out;
  for (const char* file :
       {"study.json", "report.html", "tables/differences.md", "tables/arms.md", "tables/runs.md", "figures/differences.png"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / "study" / file)) << file;
  }
  const auto study = json::parse(read_plainly(folder / "study/study.json"));
  EXPECT_EQ(study.at("baseline"), "none");
  EXPECT_EQ(study.at("images"), 20);
  ASSERT_EQ(study.at("runs").size(), 4U);
  // The differences are those of the values of each image.
  std::map<std::pair<std::string, int>, at::Tensor> with;
  std::map<std::pair<std::string, int>, at::Tensor> without;
  for (const auto& one : study.at("runs")) {
    const std::pair key(one.at("arm").get<std::string>(), one.at("seed").get<int>());
    const auto load = [&](const char* name) {
      return read_safetensors(folder / "study" / one.at(name).get<std::string>()).tensors.at("values");
    };
    with[key] = load("values");
    ASSERT_EQ(with[key].sizes(), (at::IntArrayRef{20}));
    if (key.first == "gaussian") without[key] = load("without_values");
    EXPECT_EQ(one.contains("without"), key.first == "gaussian");
    EXPECT_EQ(one.at("look_steps"), (json{2.0, 4.0}));
  }
  int compared_arms = 0;
  for (const auto& difference : study.at("differences")) {
    if (difference.at("measure") == "held-out") continue;  // of those seeds whose looks were early enough, by the clock
    EXPECT_EQ(difference.at("seeds"), (json{0, 1}));
    ++compared_arms;
    for (int seed = 0; seed < 2; ++seed) {
      const std::pair key(std::string("gaussian"), seed);
      const at::Tensor& other = difference.at("measure") == "test" ? with.at({"none", seed}) : without.at(key);
      EXPECT_NEAR(difference.at("values")[static_cast<std::size_t>(seed)].get<double>(), (with.at(key) - other).mean().item<double>(),
                  1e-12);
    }
  }
  EXPECT_EQ(compared_arms, 2) << "gaussian against none, and against itself without attention";

  // `report` makes the same page again.
  const std::string page = read_plainly(folder / "study/report.html");
  const auto again = run_tool({"report", "study"}, {}, folder.string());
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_plainly(folder / "study/report.html"), page);

  // One more run: it alone is scored.
  const auto before = values();
  EXPECT_EQ(before.size(), 6U);
  ASSERT_EQ(train("runs/wider-0", {"--set", "flow.attention=none", "--set", "flow.blocks=[1,2]"}).exit_code, 0);
  const auto extended = compare({"--json"});
  ASSERT_EQ(extended.exit_code, 0) << extended.err;
  const auto after = values();
  EXPECT_EQ(after.size(), 7U);
  for (const auto& [name, time] : before) EXPECT_EQ(after.at(name), time) << name;
  const auto wider = json::parse(extended.out);
  EXPECT_EQ(wider.at("arms"), (json{"none", "gaussian", "wider"}));
  const auto& differences = wider.at("differences");
  EXPECT_TRUE(std::any_of(differences.begin(), differences.end(), [](const json& difference) {
    return difference.at("arm") == "gaussian" && difference.at("reference") == "wider" && difference.at("measure") == "test" &&
           difference.at("verdict") == "no claim from one seed" && !difference.contains("seed_error");
  })) << extended.out;

  // Another seed means other noise: nothing of it is known.
  ASSERT_EQ(compare({"--seed", "1"}, {"runs/none-0", "runs/gaussian-0"}).exit_code, 0);
  EXPECT_EQ(values().size(), 10U);
}

TEST_F(DensityCompare, BadInputIsExplained) {
  expect(compare({}, {"runs/none-0"}), 2, "several runs");
  expect(compare({"--baseline", "gausian"}), 2, "did you mean gaussian?");
  expect(compare({}, {"runs/gaussian-0", "runs/gaussian-1"}), 2, "--baseline");
  expect(compare({}, {"runs/none-0", "runs/gaussian-1"}), 2, "have in common");
  expect(compare({}, {"runs/none-0", "runs/none-0"}), 2, "Leave one out");
  expect(compare({"--match", "moons"}), 2, "steps or seconds");
  expect(compare({"--estimator", "guess"}), 2, "roulette");
  expect(compare({"--data", "cifar10:/nowhere"}), 2, "expected the data of the runs, synthetic");
  expect(compare({}, {"nowhere"}), 4, "nowhere");
  expect(run({"compare", "runs", "--out", "runs/none-0"}), 2, "which holds a run");
  EXPECT_FALSE(std::filesystem::exists(folder / "study/study.json"));

  const auto config = run_folder("gaussian", "0") / "config.toml";
  const std::string good = read_plainly(config);
  replace_in(config, "batch = 4", "batch = 5");
  expect(compare({}), 2, "expected the same batch in all runs");
  write_plainly(config, good);
  replace_in(config, "steps = 4", "steps = 9");
  expect(compare({}), 4, "results after the 9 steps of its config.toml, got those after 4");
  write_plainly(config, good);
  replace_in(config, "attention = \"gaussian\"", "attention = \"dot-product\"");
  expect(compare({}), 4, "one of other options");
  std::filesystem::remove(config);
  expect(compare({}, {"runs/none-0", "runs/gaussian-0"}), 4, "config.toml");
  write_plainly(config, good);
}

TEST_F(DensityCompare, DamagedFilesAreNamed) {
  const auto run = run_folder("gaussian", "0");
  const std::string results = read_plainly(run / "results.json");
  write_plainly(run / "results.json", "{\"finished\": true, \"experiment\": \"reconstruction\", \"rows\": []}");
  expect(compare({}), 4, "which is of another experiment");
  write_plainly(run / "results.json", results.substr(0, results.size() / 2));
  expect(compare({}), 4, "results.json");
  write_plainly(run / "results.json", results);
  replace_in(run / "results.json", "\"bits\": ", "\"bits\": null, \"was\": ");
  expect(compare({}), 4, "a finite figure of the held-out data");
  std::filesystem::remove(run / "results.json");
  const auto left_out = compare({});
  EXPECT_EQ(left_out.exit_code, 0) << left_out.err;
  EXPECT_NE(left_out.err.find("Left out, since it has not come to its end: runs/gaussian-0"), std::string::npos) << left_out.err;
  expect(compare({}, {"runs/none-0", "runs/gaussian-0"}), 4, "--resume");
  write_plainly(run / "results.json", results);

  const std::string model = read_plainly(run / "model.safetensors");
  write_plainly(run / "model.safetensors", model.substr(0, model.size() - 8));
  expect(compare({}), 4, "model.safetensors");
  std::filesystem::remove(run / "model.safetensors");
  expect(compare({}), 4, "model.safetensors, got none");
  write_plainly(run / "model.safetensors", model);

  // Values that were kept are not believed blindly.
  ASSERT_EQ(compare({}).exit_code, 0);
  const auto path = folder / "study/values" / values().begin()->first;
  const SafetensorsFile file = read_safetensors(path);
  at::Tensor changed = file.tensors.at("values").clone();
  changed[3] = std::numeric_limits<double>::quiet_NaN();
  write_safetensors(path, {{"values", changed}}, file.metadata);
  expect(compare({}), 4, "got 1 that are not");
  write_safetensors(path, {{"values", changed.slice(0, 0, 5).clone()}}, file.metadata);
  expect(compare({}), 4, "Remove the file");
  write_safetensors(path, file.tensors, {{"key", "another"}, {"estimator", "roulette"}});
  expect(compare({}), 4, "Remove the file");
  std::filesystem::remove(path);
  EXPECT_EQ(compare({}).exit_code, 0);
}

TEST_F(DensityCompare, TheScriptTimesTheArmsAndTrainsThem) {
  const auto script = [this](const std::string& options) {
    const std::string command =
        "cd " + folder.string() + " && INVATTN=" INVATTN_TOOL " python3 " INVATTN_SCRIPTS "/density_arms " + options + " > out.txt 2>&1";
    return WEXITSTATUS(std::system(command.c_str()));  // NOLINT(cert-env33-c,concurrency-mt-unsafe)
  };
  std::string tiny = " -- --device cpu --threads 1 --set flow.height=8 --set flow.width=8";
  for (const std::string& assignment : kSmall) {
    if (!assignment.starts_with("steps=")) tiny += " --set '" + assignment + "'";
  }
  const std::string arms = "arms --data synthetic --seeds 0 --steps 3 --timed-steps 6 --arms none gaussian wider";
  ASSERT_EQ(script(arms + tiny), 0) << read_plainly(folder / "out.txt");
  const auto known = json::parse(read_plainly(folder / "arms/arms.json"));
  for (const char* arm : {"none", "gaussian", "wider"}) EXPECT_GT(known.at("seconds_a_step").at(arm).get<double>(), 0);
  EXPECT_EQ(known.at("wider_blocks")[0], 1) << "attention stands at the second scale";
  EXPECT_GE(known.at("wider_blocks")[1].get<int>(), 2);
  const auto written = std::filesystem::last_write_time(folder / "arms/wider-0/results.json");
  ASSERT_EQ(script(arms + tiny), 0) << read_plainly(folder / "out.txt");
  EXPECT_EQ(std::filesystem::last_write_time(folder / "arms/wider-0/results.json"), written) << "what is finished stays";
  const auto compared = run({"compare", "arms", "--out", "study", "--images", "10", "--device", "cpu", "--threads", "1"});
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_NE(compared.out.find("gaussian − wider"), std::string::npos) << compared.out;

  EXPECT_EQ(script("arms --arms wider"), 2);
  EXPECT_NE(read_plainly(folder / "out.txt").find("whose time it takes"), std::string::npos) << read_plainly(folder / "out.txt");
  EXPECT_EQ(script(arms + " --steps 5" + tiny), 2) << "another number of steps than it was begun with";
  EXPECT_EQ(script("other -- --set flow.hiden=3"), 2) << "what the tool says of the options is passed on";
}

}  // namespace
}  // namespace invattn::test

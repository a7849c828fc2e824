#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/report/report.h"
#include "tests/io/file_fixture.h"
#include "tests/report/fake_run.h"
#include "tests/support/strange_json.h"

namespace invattn {
namespace {

using nlohmann::json;
using DamagedReport = FileTest;

/// Every file of JSON that a report is made of: a value of it changed or left out is read as it is, or an error that names where it is.
TEST_F(DamagedReport, ForeignValuesAreTakenOrNamed) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  std::mt19937_64 random(seed);
  const auto pick = [&](const auto& values) { return values[random() % values.size()]; };
  test::FakeRun tiny;
  tiny.views = {{"synthetic", 8, 8}};
  tiny.kinds = {"gaussian"};
  tiny.variants = {"guarded"};
  tiny.images = 0;
  tiny.frames = 2;
  test::make_fake_run(folder / "reconstruction", tiny);
  test::make_fake_density(folder / "flow", {.pictures = 0});
  test::make_fake_study(folder / "study", 2);
  test::make_fake_detection(folder / "detection", {.images = 0});
  for (const std::string file : {"reconstruction/results.json", "reconstruction/cells/synthetic-8x8_gaussian_guarded_0/cell.json",
                                 "flow/results.json", "flow/evaluation.json", "study/study.json", "detection/results.json"}) {
    const std::filesystem::path path = folder / file;
    const std::filesystem::path run = folder / file.substr(0, file.find('/'));
    const std::string good = read_plainly(path);
    write_report(run);
    const std::int64_t peak_before = peak_kilobytes();
    int taken = 0;
    int refused = 0;
    for (int i = 0; i < 120; ++i) {
      json changed = json::parse(good);
      for (std::uint64_t changes = 1 + random() % 2; changes > 0; --changes) {
        const auto place = pick(places_in(changed));
        if (random() % 4 == 0 && !place.empty() && changed.contains(place.parent_pointer()) &&
            changed[place.parent_pointer()].is_object()) {
          changed[place.parent_pointer()].erase(place.back());
        } else {
          changed[place] = pick(strange_values());
        }
      }
      write_plainly(path, changed.dump());
      SCOPED_TRACE(file + ", seed " + std::to_string(seed) + ", case " + std::to_string(i) + ", " + changed.dump().substr(0, 2000));
      for (const std::function<void()>& read :
           std::vector<std::function<void()>>{[&] { write_report(run); }, [&] { results_table(run); }}) {
        try {
          read();
          ++taken;
        } catch (const Error& error) {
          ++refused;
          const std::string text = error.what();
          EXPECT_EQ(error.kind(), ErrorKind::kData) << text;
          EXPECT_NE(text.find(run.string()), std::string::npos) << text;  // of one that says it has not finished, the folder
          EXPECT_EQ(text.find('\x1B'), std::string::npos) << text;
          EXPECT_LT(text.size(), 2000U) << text;
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      }
    }
    EXPECT_GT(refused, 20) << file;
    EXPECT_GT(taken, 0) << file;
    EXPECT_LT(peak_kilobytes() - peak_before, 400 * 1024) << file;
    write_plainly(path, good);
  }
}

}  // namespace
}  // namespace invattn

#include "invattn/experiments/reconstruction_options.h"

#include <functional>
#include <set>
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

TEST(ReconstructionOptions, TheDefaultsAreThePapersAndValid) {
  const ReconstructionOptions options;
  EXPECT_NO_THROW(options.validate());
  EXPECT_EQ(options.train_images, 1000);
  EXPECT_EQ(options.epochs, 100);
  EXPECT_EQ(cells_of(options).size(), 4U * 3U);
}

TEST(ReconstructionOptions, CellsAreOrderedBySeedAndHaveDifferentNames) {
  ReconstructionOptions options;
  options.variants = {{}, {.name = "1: mass / 2", .preset = AttentionPreset::kPaper, .mass = 0.5}};
  const auto cells = cells_of(options);
  std::set<std::string> ids;
  for (const auto& cell : cells) ids.insert(cell.id(options));
  EXPECT_EQ(ids.size(), cells.size());
  EXPECT_TRUE(ids.contains("synthetic-32x32_dot-product_1-mass-2_2"));
  EXPECT_EQ(cells.front().title(), "synthetic gaussian guarded, seed 0");
  EXPECT_TRUE(cells.front().pictured);
  EXPECT_FALSE(cells.back().pictured);
  EXPECT_EQ(cells.back().seed, 2);
}

TEST(ReconstructionVariant, ChangesOnlyWhatItNames) {
  const ReconstructionVariant variant{.preset = AttentionPreset::kPaper, .mass = 0.5, .normalization = Normalization::kAll};
  const AttentionOptions options = variant.attention(AttentionKind::kDotProduct, 12);
  AttentionOptions expected = attention_preset(AttentionPreset::kPaper, AttentionKind::kDotProduct, 12);
  expected.mass = 0.5;
  expected.normalization = Normalization::kAll;
  EXPECT_EQ(print_fields(options), print_fields(expected));
}

TEST(ReconstructionVariant, ShowsAndersonWhereAnInverseIsPromisedAndThePapersAlgorithmElsewhere) {
  EXPECT_EQ(ReconstructionVariant{.preset = AttentionPreset::kGuarded}.solver_name(), "anderson");
  EXPECT_EQ(ReconstructionVariant{.preset = AttentionPreset::kStrict}.solver_name(), "anderson");
  EXPECT_EQ(ReconstructionVariant{.preset = AttentionPreset::kPaper}.solver_name(), "fixed-point");
  EXPECT_EQ(ReconstructionVariant{.preset = AttentionPreset::kPublishedCode}.solver_name(), "fixed-point");
  EXPECT_EQ((ReconstructionVariant{.preset = AttentionPreset::kPaper, .solver = "newton-krylov"}.solver_name()), "newton-krylov");
}

TEST(ReconstructionInverse, GivesEachMethodItsOwnLimits) {
  const ReconstructionInverse inverse{.tolerance = 1e-5, .anderson_memory = 3};
  const auto fixed_point = std::get<FixedPointOptions>(inverse.options("fixed-point", {.fixed_point_iterations = 7}));
  EXPECT_EQ(fixed_point.max_iterations, 7);
  EXPECT_EQ(fixed_point.tolerance, 1e-5);
  EXPECT_TRUE(fixed_point.trace);
  EXPECT_EQ(std::get<FixedPointOptions>(inverse.options("fixed-point", {})).max_iterations, 100);
  EXPECT_EQ(std::get<AndersonOptions>(inverse.options("anderson", {})).memory, 3);
}

TEST(ReconstructionOptions, WhatCannotWorkIsRefusedWithItsName) {
  struct Case {
    std::function<void(ReconstructionOptions&)> change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto& o) { o.data = {}; }, "data"},
      {[](auto& o) { o.data = {"cifar10"}; }, "cifar10"},
      {[](auto& o) { o.kinds = {}; }, "kinds"},
      {[](auto& o) { o.variants = {}; }, "variants"},
      {[](auto& o) { o.seeds = {}; }, "seeds"},
      {[](auto& o) {
         o.seeds = {3, 3};
       },
       "twice"},
      {[](auto& o) { o.seeds = {-3}; }, "-3"},
      {[](auto& o) { o.height = 31; }, "even"},
      {[](auto& o) { o.width = 0; }, "width"},
      {[](auto& o) { o.height = 1 << 20; }, "height"},
      {[](auto& o) { o.train_images = 0; }, "train_images"},
      {[](auto& o) { o.test_images = -1; }, "test_images"},
      {[](auto& o) { o.epochs = 0; }, "epochs"},
      {[](auto& o) { o.batch = 0; }, "batch"},
      {[](auto& o) { o.learning_rate = 0; }, "learning_rate"},
      {[](auto& o) { o.measured_images = -1; }, "measured_images"},
      {[](auto& o) { o.pictures = 1001; }, "pictures"},
      {[](auto& o) { o.guard.target = 2; }, "target"},
      {[](auto& o) { o.inverse.solvers = {}; }, "solvers"},
      {[](auto& o) { o.inverse.solvers = {"andersen"}; }, "did you mean anderson?"},
      {[](auto& o) { o.inverse.solvers = {"fixed-point"}; }, "Add it to inverse.solvers"},
      {[](auto& o) { o.inverse.tolerance = -1; }, "tolerance"},
      {[](auto& o) { o.variants = {{.preset = AttentionPreset::kPlain}}; }, "no inverse"},
      {[](auto& o) { o.variants = {{.learning_rate = -1.0}}; }, "learning_rate"},
      {[](auto& o) { o.variants = {{.fixed_point_iterations = 0}}; }, "fixed_point_iterations"},
      {[](auto& o) { o.variants = {{.mass = -1.0}}; }, "mass"},
      {[](auto& o) { o.variants = {{.constant = 1.5}}; }, "constant"},
      {[](auto& o) {
         o.variants = {{}, {}};
       },
       "twice"},
      {[](auto& o) { o.variants = {{.name = "???"}}; }, "name"},
  };
  for (const auto& [change, message] : cases) {
    ReconstructionOptions options;
    change(options);
    expect_contains(error_of([&] { options.validate(); }, ErrorKind::kUsage), message);
  }
}

TEST(ReconstructionOptions, TheResolvedConfigurationReadsBack) {
  ReconstructionOptions options;
  options.variants = {{.name = "a", .preset = AttentionPreset::kPaper, .learning_rate = 1.0 / 3.0, .phi = Response::kSoftplus}, {}};
  options.seeds = {5};
  ReconstructionOptions read;
  read_toml(read, write_toml(options), "config.toml");
  EXPECT_EQ(print_fields(read), print_fields(options));
  EXPECT_EQ(read.variants.front().learning_rate, 1.0 / 3.0);
}

TEST(ConfigReference, ThePageListsExactlyTheKeysThereAre) {
  const std::string page = read_plainly(std::filesystem::path(INVATTN_SOURCES) / "docs/reference/config.md");
  EXPECT_NE(page.find("\n\n" + field_reference<ReconstructionOptions>() + "\n"), std::string::npos)
      << "docs/reference/config.md is out of date: put in what `invattn reconstruct --keys` prints:\n"
      << field_reference<ReconstructionOptions>();
}

}  // namespace
}  // namespace invattn::test

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "invattn/config/toml.h"
#include "invattn/experiments/density_options.h"
#include "invattn/experiments/detection_options.h"
#include "invattn/experiments/reconstruction_options.h"

namespace invattn::test {
namespace {

/// Calls `each(name, number)` for every int64_t and double inside the options, the first elements of vectors and unset optionals among them.
template <class Value, class Each>
void for_each_number(Value& value, const std::string& name, const Each& each) {
  if constexpr (std::is_same_v<Value, int64_t> || std::is_same_v<Value, double>) {
    each(name, value);
  } else if constexpr (HasFields<Value>) {
    Value::visit(value, [&](const char* field, auto& member, const char*) {
      for_each_number(member, name.empty() ? field : name + "." + field, each);
    });
  } else if constexpr (OptionalField<Value>) {
    if constexpr (std::is_arithmetic_v<typename Value::value_type>) {
      const Value before = value;
      if (!value) value.emplace();
      for_each_number(*value, name, each);
      value = before;
    }
  } else if constexpr (VectorField<Value>) {
    if constexpr (!std::is_same_v<typename Value::value_type, bool>) {
      const Value before = value;
      if (value.empty()) value.emplace_back();
      for_each_number(value.front(), name + "[]", each);
      value = before;
    }
  }
}

template <class Number>
std::vector<Number> hostile_numbers() {
  using Limits = std::numeric_limits<Number>;
  if constexpr (std::is_same_v<Number, int64_t>) {
    return {-1, Limits::min(), Limits::max()};
  } else {
    return {-1, -1e300, 1e300, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()};
  }
}

/// What such numbers mean all the same: any seed of 0 or more is one, and colours may be taken as their distance from any grey.
bool has_a_meaning(const std::string& name, double value) {
  static const std::set<std::string> seeds = {"seed", "seeds[]", "guard.measure.seed"};
  return (seeds.contains(name) && value >= 0) || (name == "network.backbone.mean[]" && value == -1);
}

/// Whether the complaint says that it is about this number, or the list that it is in.
bool names(const toml_detail::Complaint& complaint, const std::string& name) {
  return std::any_of(complaint.fields.begin(), complaint.fields.end(), [&name](std::string field) {
    if (const std::size_t first = field.find("[0]"); first != std::string::npos) field.erase(first + 1, 1);
    return name == field || name == field + "[]";
  });
}

template <class Options>
void expect_every_number_is_checked(const Options& valid, const std::string& what) {
  ASSERT_FALSE(toml_detail::first_complaint(valid)) << what;
  Options options = valid;
  std::set<std::string> seen;
  for_each_number(options, "", [&](const std::string& name, auto& number) {
    seen.insert(name);
    const auto before = number;
    for (const auto bad : hostile_numbers<std::remove_cvref_t<decltype(number)>>()) {
      number = bad;
      if (has_a_meaning(name, static_cast<double>(bad))) continue;
      const auto complaint = toml_detail::first_complaint(options);
      ASSERT_TRUE(complaint) << what << ": " << name << " = " << bad;
      EXPECT_TRUE(names(*complaint, name)) << what << ": " << name << " = " << bad << ", got " << complaint->text;
    }
    number = before;
  });
  EXPECT_GT(seen.size(), 20U) << what;
}

TEST(OptionRanges, EveryNumberOfAReconstructionIsChecked) {
  for (const AttentionPreset preset : {AttentionPreset::kGuarded, AttentionPreset::kStrict, AttentionPreset::kPaper}) {
    ReconstructionOptions options;
    options.variants.front().preset = preset;
    expect_every_number_is_checked(options, std::string(to_string(preset)));
  }
  ReconstructionOptions one;
  one.inverse.solvers = {"anderson"};
  expect_every_number_is_checked(one, "one solver");
}

TEST(OptionRanges, EveryNumberOfADensityIsCheckedWhetherItIsUsedOrNot) {
  for (const FlowPreset preset : {FlowPreset::kPaper, FlowPreset::kImproved, FlowPreset::kPlane, FlowPreset::kResidualFlow}) {
    for (const DensityEstimator estimator : {DensityEstimator::kSeries, DensityEstimator::kRoulette, DensityEstimator::kExact}) {
      DensityOptions options{.flow = flow_preset(preset)};
      options.log_det.estimator = estimator;
      options.evaluation.log_det.estimator = estimator;
      expect_every_number_is_checked(options, std::string(to_string(preset)) + ", " + std::string(to_string(estimator)));
    }
  }
  DensityOptions empty;
  empty.flow.blocks = {0};
  empty.flow.attention_blocks = {};
  empty.flow.dense_blocks = 1;
  expect_every_number_is_checked(empty, "no convolutions");
}

TEST(OptionRanges, EveryNumberOfADetectionIsChecked) {
  for (const auto& [variant, name] : EnumNames<DetectorVariant>::kNames) {
    DetectionOptions options;
    options.network.variant = variant;
    expect_every_number_is_checked(options, std::string(name));
  }
}

}  // namespace
}  // namespace invattn::test

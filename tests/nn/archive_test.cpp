#include "invattn/nn/archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/detector.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/resnet.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "tests/support/numerics.h"
#include "tests/support/strange_json.h"

namespace invattn {
namespace {

class Archive : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            (std::string("invattn_archive_") + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors");
    at::manual_seed(1);
    Sequential model(Squeeze(), InvertibleAttention(AttentionOptions{.channels = 4, .kind = AttentionKind::kDotProduct}));
    save(path_, *model);
    file_ = read_safetensors(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// The error that loading the file gives after `file_` was changed and written back.
  std::string error_of_changed_file() {
    write_safetensors(path_, file_.tensors, file_.metadata);
    return error_of_load();
  }

  std::string error_of_load() {
    try {
      load(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 4) << error.what();
      return error.what();
    }
    return "no error";
  }

  void expect_error(const std::string& phrase) {
    const auto text = error_of_changed_file();
    EXPECT_NE(text.find(phrase), std::string::npos) << text;
  }

  std::filesystem::path path_;
  SafetensorsFile file_;
};

TEST_F(Archive, TheUnchangedFileLoads) { EXPECT_EQ(error_of_changed_file(), "no error"); }

TEST_F(Archive, MissingTensor) {
  file_.tensors.erase("1.branch.value.weight");
  expect_error("expected a tensor '1.branch.value.weight' of shape [4, 4]");
}

TEST_F(Archive, UnexpectedTensor) {
  file_.tensors["1.branch.surprise"] = at::zeros({2});
  expect_error("expected no tensor '1.branch.surprise'");
}

TEST_F(Archive, WrongShape) {
  file_.tensors["1.branch.value.weight"] = at::zeros({4, 5});
  expect_error("of shape [4, 4], got [4, 5]");
}

TEST_F(Archive, WrongType) {
  file_.tensors["1.branch.value.weight"] = at::zeros({4, 4}, at::kInt);
  expect_error("expected '1.branch.value.weight' in Float");
  file_.tensors["1.branch.value.weight"] = at::zeros({4, 4}, at::kDouble);
  expect_error("expected '1.branch.value.weight' in Float, got Double");
}

TEST_F(Archive, NotFinite) {
  file_.tensors["1.branch.value.weight"].select(0, 0).fill_(std::numeric_limits<float>::quiet_NaN());
  expect_error("NaN or infinity in '1.branch.value.weight'");
}

TEST_F(Archive, ForeignFile) {
  file_.metadata.clear();
  expect_error("expected a model saved by invattn");
}

TEST_F(Archive, AnotherFormat) {
  file_.metadata["format"] = "invattn-model-99";
  expect_error("expected the format invattn-model-1, got 'invattn-model-99'");
}

TEST_F(Archive, HostileDescriptions) {
  for (const auto& [description, phrase] : std::vector<std::pair<std::string, std::string>>{
           {"", "JSON"},
           {"[1, 2", "JSON"},
           {"[]", "\"type\""},
           {R"({"type": 3})", "\"type\""},
           {R"({"type": "sequentiel", "parts": []})", "did you mean sequential"},
           {R"({"type": "sequential"})", "'parts'"},
           {R"({"type": "sequential", "parts": 7})", "list of parts"},
           {R"({"type": "sequential", "parts": [], "extra": 1})", "'extra'"},
           {R"({"type": "residual", "branch": {"type": "attenton", "options": {}}})", "did you mean attention"},
           {R"({"type": "residual", "branch": {"type": "attention", "options": {"chanels": 4}}})", "channels"},
           {R"({"type": "residual", "branch": {"type": "attention", "options": {"channels": "many"}}})", "channels"},
           {R"({"type": "residual", "branch": {"type": "attention", "options": {"channels": 4, "kind": "gausian"}}})", "gaussian"},
           {std::string(200, '['), "JSON"}}) {
    file_.metadata["model"] = description;
    write_safetensors(path_, file_.tensors, file_.metadata);
    const auto text = error_of_load();
    EXPECT_NE(text.find(phrase), std::string::npos) << description << "\n" << text;
  }
}

TEST_F(Archive, OptionsOutOfRange) {
  file_.metadata["model"] = R"({"type": "residual", "branch": {"type": "attention", "options": {"channels": -4}}})";
  write_safetensors(path_, file_.tensors, file_.metadata);
  EXPECT_THROW(load(path_), Error);
}

TEST_F(Archive, BadCertificates) {
  file_.metadata["certificates"] = R"({"1": {"polcy": "guarded"}})";
  expect_error("policy");
}

TEST_F(Archive, AForgedCertificateDoesNotCount) {
  file_.metadata["certificates"] =
      R"({"1": {"policy": "guarded", "basis": "measured", "constant": 0.1, "samples": 5, "weights": "0000000000000000"}})";
  write_safetensors(path_, file_.tensors, file_.metadata);
  const auto blocks = certificates_of(*load(path_));
  EXPECT_FALSE(blocks[0].current) << "its digest is not that of the weights";
}

TEST_F(Archive, TruncatedFile) {
  const auto size = std::filesystem::file_size(path_);
  std::filesystem::resize_file(path_, size - 5);
  EXPECT_NE(error_of_load().find(path_.string()), std::string::npos);
}

TEST_F(Archive, MissingFileAndFolder) {
  std::filesystem::remove(path_);
  EXPECT_NE(error_of_load(), "no error");
  Sequential model{Squeeze()};
  EXPECT_THROW(save("/nonexistent/folder/model.safetensors", *model), Error);
}

using nlohmann::json;

struct Saved {
  std::string what;
  std::function<void(const std::filesystem::path&)> save;
  std::function<void(const std::filesystem::path&)> load;
};

std::vector<Saved> saved_models() {
  const auto bijection = [](const char* what, auto model) {
    return Saved{what, [model](const auto& path) mutable { save(path, *model); }, [](const auto& path) { load(path); }};
  };
  at::manual_seed(1);
  const FlowOptions small{
      .height = 4, .width = 4, .blocks = {1, 1}, .hidden = 4, .attention_blocks = {1}, .dense_blocks = 1, .dense_hidden = 3};
  const auto convolution = std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = 2, .height = 3, .width = 3, .hidden = 4});
  const DetectorOptions detector{
      .variant = DetectorVariant::kInvertibleDotProduct, .size = 32, .backbone = {.width = 2, .blocks = {1, 1, 1, 1}}, .channels = 2};
  return {bijection("sequential", Sequential(Squeeze(), ActNorm(ActNormOptions{.channels = 4}),
                                             InvertibleAttention(AttentionOptions{.channels = 4, .kind = AttentionKind::kDotProduct}))),
          bijection("flow", Flow(small)),
          bijection("residual", std::make_shared<InvertibleResidualImpl>(convolution)),
          {"detector", [detector](const auto& path) { save_detector(path, *Detector(detector)); },
           [](const auto& path) { load_detector(path); }}};
}

// Metadata changed in any way gives a model or an error that names the file and says what to do, without taking much memory or time.
TEST_F(Archive, ChangedMetadataLoadsOrIsRefused) {
  std::mt19937_64 random(1);
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  const std::vector<std::string> next_steps{"save the model again.", "fetch or save it again.", "into a model by name.", "that wrote it.",
                                            "says what it is."};
  for (const auto& [what, save_it, load_it] : saved_models()) {
    save_it(path_);
    const SafetensorsFile whole = read_safetensors(path_);
    load_it(path_);
    const int64_t peak_before = peak_kilobytes();
    int loaded = 0;
    int refused = 0;
    for (int i = 0; i < 400; ++i) {
      auto metadata = whole.metadata;
      const std::string key = i % 4 == 3 ? "certificates" : "model";
      auto changed = json::parse(metadata.at(key));
      for (std::uint64_t changes = 1 + random() % 2; changes > 0; --changes) {
        const auto place = pick(places_in(changed));
        if (random() % 3 == 0 && !place.empty() && changed.contains(place.parent_pointer()) &&
            changed[place.parent_pointer()].is_object()) {
          changed[place.parent_pointer()].erase(place.back());
        } else {
          changed[place] = pick(strange_values());
        }
      }
      metadata[key] = changed.dump();
      if (i % 10 == 9) metadata[key].resize(random() % metadata[key].size());
      if (i % 50 == 7) metadata.erase(pick(std::vector<std::string>{"format", "model", "certificates"}));
      std::filesystem::remove(path_);
      write_safetensors(path_, whole.tensors, metadata);
      try {
        load_it(path_);
        ++loaded;
      } catch (const Error& error) {
        ++refused;
        const std::string text = error.what();
        EXPECT_EQ(error.kind(), ErrorKind::kData) << text;
        EXPECT_NE(text.find(path_.string()), std::string::npos) << text;
        EXPECT_TRUE(std::any_of(next_steps.begin(), next_steps.end(), [&](const auto& step) { return text.ends_with(step); })) << text;
        EXPECT_EQ(text.find('\x1B'), std::string::npos) << text;
        EXPECT_LT(text.size(), 2000U) << text;
      }
    }
    EXPECT_GT(refused, 150) << what;
    EXPECT_GT(loaded, 5) << what;
    EXPECT_LT(peak_kilobytes() - peak_before, 200 * 1024) << what;
  }
}

// What a file's options ask for is compared with what the file holds before memory is taken.
TEST_F(Archive, PetabytesAreRefused) {
  for (const std::string description :
       {R"({"type": "residual", "branch": {"type": "attention", "options": {"channels": 1048576}}})",
        R"({"type": "residual", "branch": {"type": "attention", "options": {"channels": 1099511627776}}})",
        R"({"type": "residual", "branch": {"type": "attention", "options": {"channels": 9223372036854775807}}})",
        R"({"type": "residual", "branch": {"type": "convolution", "options": {"channels": 4, "height": 1048576, "width": 1048576}}})",
        R"({"type": "residual", "branch": {"type": "convolution", "options": {"channels": 4, "height": 4, "width": 4, "layers": 10000}}})",
        R"({"type": "actnorm", "options": {"channels": 1000000}})", R"({"type": "flow", "options": {"blocks": [10000]}})",
        R"({"type": "flow", "options": {"blocks": [10000000]}})", R"({"type": "flow", "options": {"hidden": 1048576}})",
        R"({"type": "flow", "options": {"blocks": [0], "attention_blocks": [], "channels": 1048576, "height": 1048576, "width": 1048576}})",
        R"({"type": "flow", "options": {"dense_blocks": 10000}})"}) {
    file_.metadata["model"] = description;
    const std::string text = error_of_changed_file();
    EXPECT_NE(text.find("[load] " + path_.string() + ": "), std::string::npos) << description << "\n" << text;
    EXPECT_TRUE(text.ends_with("save the model again.")) << text;
  }
  // The shapes of a ResNet come from its tensors; one without numbers may be of any size.
  std::map<std::string, at::Tensor> tensors{{"conv1.weight", at::zeros({1 << 14, 0, 7, 7})}};
  for (const char* layer : {"1", "2", "3", "4"}) tensors[std::string("layer") + layer + ".0.conv1.weight"] = at::zeros({1});
  write_safetensors(path_, tensors, {});
  const auto text = [&] {
    try {
      load_resnet(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return std::string(error.what());
    }
    return std::string("no error");
  }();
  EXPECT_NE(text.find("as many as the file holds"), std::string::npos) << text;
}

TEST_F(Archive, LongMetadataIsRefused) {
  file_.metadata["model"] = std::string((1U << 24U) + 1, '[');
  expect_error("expected the metadata 'model' in at most 16777216 bytes, got 16777217.");
}

TEST_F(Archive, SavingProjects) {
  InvertibleAttention block(AttentionOptions{.channels = 4});
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : block->parameters()) parameter.mul_(10);
  }
  const auto x = testing::random({2, 4, 3, 3}, 1, at::kFloat);
  const auto before = block->forward(x);
  save(path_, *block);
  const auto stored = read_safetensors(path_).tensors;
  EXPECT_LE(at::linalg_svdvals(stored.at("branch.output.weight").to(at::kDouble)).max().item<double>(), 0.9);
  EXPECT_LT(testing::max_difference(load(path_)->forward(x), before), 1e-4);
}

}  // namespace
}  // namespace invattn

#include "invattn/nn/archive.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "invattn/core/error.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "tests/support/numerics.h"

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

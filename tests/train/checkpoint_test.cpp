#include "invattn/train/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "invattn/train/optimizer.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

constexpr int64_t kShardBytes = 4096;

/// A small guarded training whose every step depends on the ones before.
struct Training {
  Sequential network{nullptr};
  Optimizer optimizer;
  Guard guard;
  at::Tensor images;

  explicit Training(AttentionKind kind, OptimizerMethod method = OptimizerMethod::kAdam)
      : network(make(kind)),
        optimizer(*network, {.method = method, .learning_rate = 1e-2, .clip_norm = 0.1, .average = 0.8}),
        guard(*network, {.target = 0.05, .fraction = 0.5}),
        images(at::rand({8, 3, 6, 4}, at::detail::createCPUGenerator(3)) - 0.5) {}

  static Sequential make(AttentionKind kind) {
    at::manual_seed(7);
    return Sequential{Squeeze(), InvertibleAttention(AttentionOptions{.channels = 12, .kind = kind})};
  }

  void steps(int64_t first, int64_t count) {
    for (int64_t step = first; step < first + count; ++step) {
      const auto batch = at::arange(4) + 4 * (step % 2);
      const auto loss = (network->forward(images.index_select(0, batch)) - 1).square().mean();
      optimizer.zero_grad();
      (loss + guard.penalty(batch)).backward();
      optimizer.step();
      guard.after_step();
    }
  }

  Checkpoint checkpoint() {
    Checkpoint result;
    add_training(result, *network, optimizer);
    add_guard(result, guard);
    return result;
  }

  void restore(const Checkpoint& from) {
    restore_training(from, *network, optimizer, "test");
    restore_guard(from, guard, "test");
  }
};

/// The same bits, NaN among them.
void expect_same(const Checkpoint& actual, const Checkpoint& expected) {
  EXPECT_EQ(actual.notes, expected.notes);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    ASSERT_TRUE(actual.tensors.contains(name)) << name;
    const auto& other = actual.tensors.at(name);
    ASSERT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    ASSERT_EQ(other.sizes(), tensor.sizes()) << name;
    const auto bytes = [](const at::Tensor& values) { return values.contiguous().reshape({-1}).view(at::kByte); };
    EXPECT_TRUE(at::equal(bytes(other), bytes(tensor))) << name;
  }
}

class CheckpointTest : public FileTest {
 protected:
  std::vector<std::filesystem::path> shards() const {
    std::vector<std::filesystem::path> result;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") result.push_back(entry.path());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  void goes_on_to_the_same_bits(AttentionKind kind, int64_t shard_bytes) {
    Training whole(kind);
    whole.steps(0, 9);

    Training first(kind);
    first.steps(0, 4);
    save_checkpoint(folder / "c", first.checkpoint(), {.shard_bytes = shard_bytes});
    Training second(kind);
    second.steps(0, 1);  // a state that has to be replaced
    second.restore(load_checkpoint(folder / "c"));
    second.steps(4, 5);
    expect_same(second.checkpoint(), whole.checkpoint());
    EXPECT_FALSE(at::equal(first.network->parameters().front(), second.network->parameters().front()));
  }

  /// Whole tensors, one in pieces, an empty one, a single number, and the values that are easily lost.
  static Checkpoint mixed() {
    const auto number = std::numeric_limits<double>::quiet_NaN();
    return {.tensors = {{"a", at::arange(100, at::kFloat)},
                        {"b", at::rand({2, 3, 500}, at::kDouble)},
                        {"c", at::tensor({number, -0.0, 1e-310}, at::kDouble)},
                        {"d", at::zeros({0, 3}, at::kFloat)},
                        {"e", at::scalar_tensor(int64_t{1} << 60, at::kLong)},
                        {"f", at::rand({4, 8, 6, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
                        {"g", at::rand({70, 90}).to(at::kBFloat16).t()},
                        {"h", at::ones({5000}, at::kBool)},
                        {"i", at::rand({1023})}},
            .notes = {{"progress", "{\"epoch\":3}"}, {"empty", ""}, {"more", "a \"quoted\"\nline \u00e9"}}};
  }

  static Checkpoint numbered(int64_t number) {
    return {.tensors = {{"a", at::full({3000}, number, at::kLong)}, {"b", at::full({300}, number, at::kLong)}},
            .notes = {{"number", std::to_string(number)}}};
  }

  /// What the index says, changed, is refused with a message.
  void expect_refused(const std::function<void(nlohmann::json&)>& change, std::string_view part) {
    save_checkpoint(folder / "c", mixed(), {.shard_bytes = kShardBytes});
    auto index = nlohmann::json::parse(read_plainly(folder / "c"));
    index.erase("digest");  // as older versions wrote it: the digest alone would tell
    index["format"] = "invattn-checkpoint-index-1";
    change(index);
    write_plainly(folder / "c", index.dump());
    expect_contains(error_of([&] { load_checkpoint(folder / "c"); }), part);
  }
};

TEST_F(CheckpointTest, GoesOnToTheSameBits) {
  for (const int64_t shard_bytes : {int64_t{0}, kShardBytes}) {
    for (const AttentionKind kind : {AttentionKind::kGaussian, AttentionKind::kConcatenation}) {
      goes_on_to_the_same_bits(kind, shard_bytes);
    }
  }
  EXPECT_GT(shards().size(), 1U);
}

TEST_F(CheckpointTest, GoesOnFromBeforeTheFirstStep) {
  Training fresh(AttentionKind::kConcatenation);
  save_checkpoint(folder / "c", fresh.checkpoint());
  Training other(AttentionKind::kConcatenation);
  other.restore(load_checkpoint(folder / "c"));
  other.steps(0, 2);
  fresh.steps(0, 2);
  EXPECT_TRUE(at::equal(other.network->parameters().front(), fresh.network->parameters().front()));
}

TEST_F(CheckpointTest, BothFormsKeepEveryBit) {
  const auto saved = mixed();
  save_checkpoint(folder / "whole", saved);
  EXPECT_EQ(files_in_folder(), 1U);
  expect_same(load_checkpoint(folder / "whole"), saved);
  save_checkpoint(folder / "c", saved, {.shard_bytes = kShardBytes});
  expect_same(load_checkpoint(folder / "c"), saved);
  save_checkpoint(folder / "empty", {}, {.shard_bytes = kShardBytes});
  expect_same(load_checkpoint(folder / "empty"), {});
}

TEST_F(CheckpointTest, ShardsAreAsLargeAsAsked) {
  constexpr int64_t kHeader = 1000;
  save_checkpoint(folder / "c", mixed(), {.shard_bytes = kShardBytes});
  int64_t bytes = 0;
  for (const auto& path : shards()) {
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    EXPECT_LE(size, kShardBytes + kHeader) << path;
    bytes += size;
    EXPECT_NO_THROW(read_safetensors(path));  // each a file of its own right
  }
  EXPECT_LE(static_cast<int64_t>(shards().size()), 2 * bytes / kShardBytes);
  save_checkpoint(folder / "c", mixed(), {.shard_bytes = 1 << 20});
  EXPECT_EQ(shards().size(), 1U);
}

TEST_F(CheckpointTest, ShardsOfOtherSavesAreRemovedAfterTheCommit) {
  save_checkpoint(folder / "c", numbered(1), {.shard_bytes = kShardBytes});
  const auto before = shards();
  // What a process left that was killed before its index was written, and what only looks like it.
  write_plainly(folder / "c.0123456789abcdef-0.safetensors", "part of a shard");
  const std::set<std::string> others{"c.0123456789abcdef-.safetensors",
                                     "c.0123456789abcdeg-0.safetensors",
                                     "c.0123456789abcdef-0x.safetensors",
                                     "c.0123456789abcdef0.safetensors",
                                     "d.0123456789abcdef-0.safetensors",
                                     "cc.0123456789abcdef-0.safetensors",
                                     "c.safetensors"};
  for (const auto& name : others) write_plainly(folder / name, "mine");
  expect_same(load_checkpoint(folder / "c"), numbered(1));

  save_checkpoint(folder / "c", numbered(2), {.shard_bytes = kShardBytes});
  expect_same(load_checkpoint(folder / "c"), numbered(2));
  for (const auto& path : before) EXPECT_FALSE(std::filesystem::exists(path)) << path;
  for (const auto& name : others) EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  EXPECT_EQ(files_in_folder(), 1 + before.size() + others.size());

  save_checkpoint(folder / "c", numbered(3));  // in one file
  expect_same(load_checkpoint(folder / "c"), numbered(3));
  EXPECT_EQ(files_in_folder(), 1 + others.size());
}

TEST_F(CheckpointTest, CanBeMovedToAnotherFolderAndName) {
  std::filesystem::create_directory(folder / "there");
  save_checkpoint(folder / "c", mixed(), {.shard_bytes = kShardBytes});
  for (const auto& path : shards()) std::filesystem::rename(path, folder / "there" / path.filename());
  std::filesystem::rename(folder / "c", folder / "there" / "renamed");
  const auto loaded = load_checkpoint(folder / "there" / "renamed");
  EXPECT_EQ(loaded.tensors.size(), mixed().tensors.size());

  std::filesystem::create_symlink("there/renamed", folder / "link");
  EXPECT_EQ(load_checkpoint(folder / "link").notes, loaded.notes);
  save_checkpoint(folder / "link", numbered(4), {.shard_bytes = kShardBytes});
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  expect_same(load_checkpoint(folder / "there" / "renamed"), numbered(4));
  EXPECT_TRUE(shards().empty());  // they are beside the index, not beside the link
}

TEST_F(CheckpointTest, RelativePathWithoutFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  save_checkpoint("c", numbered(1), {.shard_bytes = kShardBytes});
  save_checkpoint("c", numbered(2), {.shard_bytes = kShardBytes});
  const auto loaded = load_checkpoint("c");
  std::filesystem::current_path(before);
  expect_same(loaded, numbered(2));
  EXPECT_EQ(files_in_folder(), 1 + shards().size());
}

TEST_F(CheckpointTest, FullDiskKeepsTheLastGoodOne) {
  for (const int64_t shard_bytes : {int64_t{0}, kShardBytes}) {
    save_checkpoint(folder / "c", numbered(1), {.shard_bytes = shard_bytes});
    const auto files = files_in_folder();
    const auto save_with_limit = [&](rlim_t limit, const Checkpoint& checkpoint) {
      const FileSizeLimit full(limit);
      return error_of([&] { save_checkpoint(folder / "c", checkpoint, {.shard_bytes = shard_bytes}); });
    };
    // In the first file; in a later one (a fits beside nothing, b is small); in the index, for its long note.
    expect_contains(save_with_limit(1000, numbered(2)), "while writing");
    expect_same(load_checkpoint(folder / "c"), numbered(1));
    expect_contains(save_with_limit(3000, {.tensors = {{"a", at::ones({100})}, {"b", at::ones({1000})}}, .notes = {}}), "while writing");
    expect_same(load_checkpoint(folder / "c"), numbered(1));
    auto talkative = numbered(3);
    talkative.notes["long"] = std::string(200000, 'n');
    expect_contains(save_with_limit(100000, talkative), "while writing");
    expect_same(load_checkpoint(folder / "c"), numbered(1));
    EXPECT_EQ(files_in_folder(), files);  // nothing is left of the attempts
  }
}

TEST_F(CheckpointTest, WhoeverIsKilledWhileSavingLeavesAWholeCheckpoint) {
  save_checkpoint(folder / "c", numbered(0), {.shard_bytes = kShardBytes});
  int64_t last = 0;
  for (int attempt = 0; attempt < 12; ++attempt) {
    const auto before = read_plainly(folder / "c");
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto save_for_ever = [&]() noexcept {
        for (int64_t number = last + 1;; ++number) save_checkpoint(folder / "c", numbered(number), {.shard_bytes = kShardBytes});
      };
      save_for_ever();
    }
    while (read_plainly(folder / "c") == before) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * attempt));  // somewhere within the next save
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto loaded = load_checkpoint(folder / "c");
    const int64_t number = std::stoll(loaded.notes.at("number"));
    EXPECT_GT(number, last);
    expect_same(loaded, numbered(number));
    last = number;
  }
  save_checkpoint(folder / "c", numbered(0), {.shard_bytes = kShardBytes});
  EXPECT_EQ(shards().size(), 7U);  // nothing is left of the killed ones
}

TEST_F(CheckpointTest, ReadersMeetWholeCheckpointsWhileSomebodySaves) {
  save_checkpoint(folder / "c", numbered(0), {.shard_bytes = kShardBytes});
  std::atomic<bool> saving = true;
  std::jthread writer([&] {
    for (int64_t number = 1; number <= 60; ++number) {
      save_checkpoint(folder / "c", numbered(number), {.shard_bytes = number % 10 == 0 ? 0 : kShardBytes});
    }
    saving = false;
  });
  int loads = 0;
  for (; saving; ++loads) {
    const auto loaded = load_checkpoint(folder / "c");
    expect_same(loaded, numbered(std::stoll(loaded.notes.at("number"))));
  }
  EXPECT_GT(loads, 0);
}

TEST_F(CheckpointTest, DamagedShardsAreNamed) {
  const auto name_of = [](const std::filesystem::path& path) { return "'" + path.filename().string() + "'"; };
  const auto expect_named = [&](const std::filesystem::path& shard, std::string_view part) {
    const auto message = error_of([&] { load_checkpoint(folder / "c"); });
    expect_contains(message, "[" + (folder / "c").string() + "] expected the shard " + name_of(shard));
    expect_contains(message, part);
    expect_contains(message, "Copy index and shards once more");
  };
  save_checkpoint(folder / "c", mixed(), {.shard_bytes = kShardBytes});
  const auto files = shards();
  ASSERT_GT(files.size(), 3U);
  for (const auto& shard : {files.front(), files[2], files.back()}) {
    const auto content = read_plainly(shard);
    std::filesystem::remove(shard);
    expect_named(shard, "got none");
    std::filesystem::create_directory(shard);
    expect_named(shard, "no regular file");
    std::filesystem::remove(shard);
    for (const std::size_t kept : {std::size_t{0}, content.size() / 2, content.size() - 1}) {
      write_plainly(shard, content.substr(0, kept));
      expect_named(shard, "got " + std::to_string(kept) + " bytes");
    }
    write_plainly(shard, content + "x");
    expect_named(shard, "bytes");
    for (const std::size_t place : {std::size_t{0}, std::size_t{20}, content.size() / 2, content.size() - 1}) {
      auto altered = content;
      altered[place] = static_cast<char>(altered[place] ^ 1);
      write_plainly(shard, altered);
      expect_named(shard, "other content");
    }
    write_plainly(shard, read_plainly(files[1]));  // another shard's content
    expect_named(shard, "got ");
    write_plainly(shard, content);
  }
  EXPECT_EQ(load_checkpoint(folder / "c").tensors.size(), mixed().tensors.size());
}

TEST_F(CheckpointTest, NamesOutsideTheFolderAreRefused) {
  write_safetensors(folder / "outside", {{"a", at::ones({2})}}, {});
  std::filesystem::create_directory(folder / "inside");
  for (const std::string name : {"../outside", "", ".", "..", "inside/../../outside", "./c"}) {
    expect_refused([&](nlohmann::json& index) { index["shards"][0]["name"] = name; }, "in the same folder, got '" + name + "'");
  }
  expect_refused([&](nlohmann::json& index) { index["shards"][0]["name"] = (folder / "outside").string(); }, "in the same folder");
  expect_refused([&](nlohmann::json& index) { index["shards"][0]["name"] = std::string("c\0d", 3); }, "in the same folder");
}

TEST_F(CheckpointTest, DamagedIndexIsRefused) {
  expect_refused([](nlohmann::json& index) { index["shards"].erase(1); }, "the pieces of tensor 'b'");
  expect_refused([](nlohmann::json& index) { std::swap(index["shards"][0]["name"], index["shards"][1]["name"]); }, "expected the shard");
  expect_refused([](nlohmann::json& index) { index["shards"].push_back(index["shards"].back()); }, "twice");
  expect_refused([](nlohmann::json& index) { index["shards"][0]["size"] = "large"; }, "shards[0].size");
  expect_refused([](nlohmann::json& index) { index["shards"][0]["size"] = -1; }, "-1 bytes");
  expect_refused([](nlohmann::json& index) { index["shards"][0].erase("digest"); }, "without some of its fields");
  expect_refused([](nlohmann::json& index) { index.erase("shards"); }, "without some of its fields");
  expect_refused([](nlohmann::json& index) { index["more"] = 1; }, "unknown 'more'");
  expect_refused([](nlohmann::json& index) { index["notes"].push_back(index["notes"][0]); }, "the note 'empty' twice");
  expect_refused([](nlohmann::json& index) { index["split"].push_back(index["split"][0]); }, "the tensor 'b' twice");
  expect_refused([](nlohmann::json& index) { index["split"].erase(0); }, "the tensor 'b' twice");
  expect_refused(
      [](nlohmann::json& index) {
        index["split"].push_back({{"name", "absent"}, {"shape", {1}}});
      },
      "the pieces of tensor 'absent'");
  for (const auto& shape : {nlohmann::json{2, 3, 501}, nlohmann::json{0, 3000}, nlohmann::json{-2, -3, 500},
                            nlohmann::json{int64_t{1} << 62, 4, 3000}, nlohmann::json{{1}}}) {
    expect_refused([&](nlohmann::json& index) { index["split"][0]["shape"] = shape; }, "shape");
  }
  expect_refused([](nlohmann::json& index) { index["format"] = "invattn-checkpoint-index-3"; }, "expected a checkpoint");
  expect_refused([](nlohmann::json& index) { index = {{"some", "other JSON"}}; }, "expected a checkpoint");
  const auto text = read_plainly(folder / "c");
  write_plainly(folder / "c", text.substr(0, text.size() / 2));
  expect_contains(error_of([&] { load_checkpoint(folder / "c"); }), "expected JSON");
}

TEST_F(CheckpointTest, WrongOptionsAndTextsAreRefused) {
  for (const int64_t bytes : {int64_t{-1}, int64_t{4095}}) {
    expect_contains(error_of([&] { save_checkpoint(folder / "c", {}, {.shard_bytes = bytes}); }, ErrorKind::kUsage), "shard_bytes");
  }
  const Checkpoint not_text{.tensors = {}, .notes = {{"a", "\xff"}}};
  const Checkpoint no_tensor{.tensors = {{"a", at::Tensor()}}, .notes = {}};
  for (const int64_t bytes : {int64_t{0}, kShardBytes}) {
    expect_contains(error_of([&] { save_checkpoint(folder / "c", not_text, {.shard_bytes = bytes}); }, ErrorKind::kUsage), "UTF-8");
    expect_contains(error_of([&] { save_checkpoint(folder / "c", no_tensor, {.shard_bytes = bytes}); }, ErrorKind::kUsage), "undefined");
    expect_contains(error_of([&] { save_checkpoint(folder / "no" / "c", numbered(1), {.shard_bytes = bytes}); }), "Make the folder first");
  }
  EXPECT_EQ(files_in_folder(), 0U);
}

TEST_F(CheckpointTest, AnotherNetworksCheckpointIsRefused) {
  Training gaussian(AttentionKind::kGaussian);
  gaussian.steps(0, 1);
  Training embedded(AttentionKind::kEmbeddedGaussian);
  const auto untouched = embedded.network->parameters().front().clone();
  expect_contains(error_of([&] { embedded.restore(gaussian.checkpoint()); }), "another configuration");
  EXPECT_TRUE(at::equal(embedded.network->parameters().front(), untouched));

  // A deeper network that starts with the same blocks, a wider one, and the same in another type.
  const auto stack = [](int64_t hidden, int64_t blocks) {
    Sequential network{Squeeze()};
    for (int64_t i = 0; i < blocks; ++i) {
      network->push_back(InvertibleAttention(AttentionOptions{.channels = hidden, .kind = AttentionKind::kConcatenation}).ptr());
    }
    return network;
  };
  auto plain = stack(12, 1);
  const auto expect_other = [&](const torch::nn::Module& other) {
    Checkpoint checkpoint;
    add_network(checkpoint, other);
    expect_contains(error_of([&] { restore_network(checkpoint, *plain, "test"); }), "another configuration");
  };
  expect_other(*stack(12, 2));
  expect_other(*stack(24, 1));
  auto converted = stack(12, 1);
  converted->to(at::kDouble);
  expect_other(*converted);
  converted->to(at::kBFloat16);
  expect_other(*converted);
}

TEST_F(CheckpointTest, AnotherOptimizersCheckpointIsRefused) {
  Training theirs(AttentionKind::kGaussian, OptimizerMethod::kMuon);
  theirs.steps(0, 1);
  Training ours(AttentionKind::kGaussian);
  expect_contains(error_of([&] { ours.restore(theirs.checkpoint()); }), "another optimiser");
}

TEST_F(CheckpointTest, WeightsAloneAreWithinTheRoundingOfBfloat16) {
  Training trained(AttentionKind::kGaussian);
  trained.steps(0, 4);
  auto whole = trained.checkpoint();
  whole.notes["model"] = "a description";
  whole.tensors.emplace("network_of_another", at::ones({100}));
  for (const int64_t shard_bytes : {int64_t{0}, kShardBytes}) {
    save_checkpoint(folder / "c", weights_only(whole), {.shard_bytes = shard_bytes});
    const auto loaded = load_checkpoint(folder / "c");
    EXPECT_EQ(loaded.notes.at("model"), "a description");
    for (const auto& [name, tensor] : loaded.tensors) {
      EXPECT_TRUE(name.starts_with("network.")) << name;
      EXPECT_EQ(tensor.scalar_type(), tensor.numel() > 16 ? at::kBFloat16 : at::kFloat) << name;
    }

    Training other(AttentionKind::kGaussian);
    restore_network(loaded, *other.network, "test");
    for (const auto& parameter : other.network->named_parameters()) {
      EXPECT_EQ(parameter.value().scalar_type(), at::kFloat);
      const auto& expected = whole.tensors.at("optimizer.average." + parameter.key());
      EXPECT_TRUE(((parameter.value() - expected).abs() <= expected.abs() / 256).all().item<bool>()) << parameter.key();
    }
    EXPECT_FALSE(restore_average(loaded, *other.network, "test")) << "the weights are the averaged ones";
    expect_contains(error_of([&] { other.restore(loaded); }), "weights only");
    Training embedded(AttentionKind::kEmbeddedGaussian);
    expect_contains(error_of([&] { restore_network(loaded, *embedded.network, "test"); }), "another configuration");
  }
}

TEST_F(CheckpointTest, WeightsAloneTakeTwoBytesEach) {
  const torch::nn::Linear network(torch::nn::LinearOptions(1000, 500));
  Checkpoint whole;
  add_network(whole, *network);
  save_checkpoint(folder / "c", weights_only(whole));
  EXPECT_LT(std::filesystem::file_size(folder / "c"), 2 * 501 * 1000U);
  // The sizes and counts that a buffer holds stay what they are, and so does what is no floating-point number.
  whole.tensors = {{"network.size", at::tensor({257.0F, 1023.0F})}, {"network.count", at::full({100}, (int64_t{1} << 40) + 1, at::kLong)}};
  for (const auto& [name, tensor] : weights_only(whole).tensors) EXPECT_TRUE(at::equal(tensor, whole.tensors.at(name))) << name;
}

TEST_F(CheckpointTest, TheAverageOfATraining) {
  Training trained(AttentionKind::kGaussian);
  trained.steps(0, 4);
  const auto checkpoint = trained.checkpoint();
  Training other(AttentionKind::kGaussian);
  EXPECT_TRUE(restore_average(checkpoint, *other.network, "test"));
  trained.optimizer.swap_average();
  for (const auto& parameter : trained.network->named_parameters()) {
    EXPECT_TRUE(at::equal(other.network->named_parameters()[parameter.key()], parameter.value())) << parameter.key();
  }
  Checkpoint without;
  add_network(without, *trained.network);
  EXPECT_FALSE(restore_average(without, *other.network, "test"));
}

TEST_F(CheckpointTest, OtherFilesAreRefused) {
  write_safetensors(folder / "other", {{"a", at::ones({2})}}, {});
  expect_contains(error_of([&] { load_checkpoint(folder / "other"); }), "expected a checkpoint");
  write_plainly(folder / "text", "not a checkpoint at all");
  expect_contains(error_of([&] { load_checkpoint(folder / "text"); }), "text");
  expect_contains(error_of([&] { load_checkpoint(folder / "missing"); }), "missing");
  expect_contains(error_of([&] { load_checkpoint(folder); }), "a folder");
  write_plainly(folder / "short", "{}");
  expect_contains(error_of([&] { load_checkpoint(folder / "short"); }), "short");
}

TEST_F(CheckpointTest, AnyLengthOfHeaderIsRecognised) {
  // The length comes first: 123 in its lowest byte is the brace that an index starts with.
  std::set<char> first;
  for (std::size_t length = 0; length < 256; length += 4) {
    const Checkpoint saved{.tensors = {{"a", at::ones({1})}}, .notes = {{"n", std::string(length, 'n')}}};
    save_checkpoint(folder / "c", saved);
    first.insert(read_plainly(folder / "c").front());
    expect_same(load_checkpoint(folder / "c"), saved);
  }
  EXPECT_GT(first.size(), 8U);
}

TEST_F(CheckpointTest, NoFlippedBitIsTaken) {
  std::mt19937_64 random(static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()));
  Checkpoint saved = numbered(7);
  saved.tensors["c"] = at::rand({40});
  saved.notes["progress"] = R"({"step": 12, "seconds": 3.5})";
  for (const int64_t shard_bytes : {int64_t{0}, kShardBytes}) {
    save_checkpoint(folder / "c", saved, {.shard_bytes = shard_bytes});
    const std::string whole = read_plainly(folder / "c");
    int refused = 0;
    constexpr int kFlips = 600;
    for (int i = 0; i < kFlips; ++i) {
      std::string bytes = whole;
      bytes[random() % (i % 2 == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 700))] ^= static_cast<char>(1U << (random() % 8));
      write_plainly(folder / "c", bytes);
      try {
        expect_same(load_checkpoint(folder / "c"), saved);  // between the words of the header
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
        ++refused;
      }
    }
    EXPECT_GT(refused, kFlips * 3 / 4);
  }
}

TEST_F(CheckpointTest, WithoutADigestItIsAnOlderOne) {
  save_checkpoint(folder / "c", numbered(3));
  auto [tensors, metadata] = read_safetensors(folder / "c");
  ASSERT_EQ(metadata.erase("digest"), 1U);
  metadata["format"] = "invattn-checkpoint-1";
  write_safetensors(folder / "c", tensors, metadata);
  expect_same(load_checkpoint(folder / "c"), numbered(3));
}

TEST_F(CheckpointTest, AnOlderOneWithADigestIsDamaged) {
  save_checkpoint(folder / "c", numbered(3));
  auto [tensors, metadata] = read_safetensors(folder / "c");
  metadata["format"] = "invattn-checkpoint-1";  // one flipped bit, by which the digest would not be looked at
  write_safetensors(folder / "c", tensors, metadata);
  expect_contains(error_of([&] { load_checkpoint(folder / "c"); }), "The file is damaged");
  save_checkpoint(folder / "c", mixed(), {.shard_bytes = kShardBytes});
  auto index = nlohmann::json::parse(read_plainly(folder / "c"));
  index["format"] = "invattn-checkpoint-index-1";
  write_plainly(folder / "c", index.dump());
  expect_contains(error_of([&] { load_checkpoint(folder / "c"); }), "a digest in a format that has none");
  index.erase("digest");
  write_plainly(folder / "c", index.dump());
  EXPECT_EQ(load_checkpoint(folder / "c").tensors.size(), mixed().tensors.size());
}

TEST(CheckpointNumbers, AreFiniteUnlessTheTrainingSaysOtherwise) {
  Training training(AttentionKind::kConcatenation);
  training.steps(0, 2);
  const Checkpoint whole = training.checkpoint();
  for (const auto& [name, tensor] : whole.tensors) {
    if (!tensor.is_floating_point() || tensor.numel() == 0) continue;
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      Checkpoint damaged = whole;
      damaged.tensors[name] = tensor.detach().clone();
      damaged.tensors[name].flatten()[tensor.numel() - 1].fill_(bad);
      Training other(AttentionKind::kConcatenation);
      expect_contains(error_of([&] { other.restore(damaged); }), name);
      note_diverged(damaged);
      EXPECT_NO_THROW(other.restore(damaged)) << name;
    }
  }
}

TEST(CheckpointNumbers, OfStepsAreNotNegative) {
  Training training(AttentionKind::kConcatenation);
  training.steps(0, 2);
  for (const auto& [name, tensor] : training.checkpoint().tensors) {
    if (tensor.scalar_type() != at::kLong || tensor.numel() != 1) continue;
    Checkpoint damaged = training.checkpoint();
    damaged.tensors[name] = at::full_like(tensor, -1);
    expect_contains(error_of([&] { training.restore(damaged); }), "test");
  }
}

TEST(GuardState, WithoutItsStepIsRefused) {
  Training training(AttentionKind::kConcatenation);
  EXPECT_THROW(training.guard.restore({}), Error);
}

}  // namespace
}  // namespace invattn::test

#include "invattn/train/checkpoint.h"

#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "invattn/core/error.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

/// A small guarded training whose every step depends on the ones before.
struct Training {
  Sequential network{nullptr};
  torch::optim::Adam optimizer;
  Guard guard;
  at::Tensor images;

  explicit Training(AttentionKind kind)
      : network(make(kind)),
        optimizer(network->parameters(), torch::optim::AdamOptions(1e-2)),
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
    for (const auto& [name, tensor] : guard.state()) result.tensors.emplace("guard." + name, tensor);
    return result;
  }

  void restore(const Checkpoint& from) {
    restore_training(from, *network, optimizer, "test");
    guard.restore(tensors_below(from.tensors, "guard."));
  }
};

class CheckpointTest : public FileTest {};

TEST_F(CheckpointTest, GoesOnToTheSameBits) {
  for (const AttentionKind kind : {AttentionKind::kGaussian, AttentionKind::kConcatenation}) {
    Training whole(kind);
    whole.steps(0, 9);

    Training first(kind);
    first.steps(0, 4);
    save_checkpoint(folder / "c", first.checkpoint());
    Training second(kind);
    second.steps(0, 1);  // a state that has to be replaced
    second.restore(load_checkpoint(folder / "c"));
    second.steps(4, 5);

    const auto expected = whole.checkpoint();
    const auto actual = second.checkpoint();
    ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors) EXPECT_TRUE(at::equal(actual.tensors.at(name), tensor)) << name;
  }
}

TEST_F(CheckpointTest, BeforeTheFirstStepThereIsOnlyTheNetwork) {
  Training fresh(AttentionKind::kConcatenation);
  save_checkpoint(folder / "c", fresh.checkpoint());
  Training other(AttentionKind::kConcatenation);
  other.restore(load_checkpoint(folder / "c"));
  other.steps(0, 2);
  fresh.steps(0, 2);
  EXPECT_TRUE(at::equal(other.network->parameters().front(), fresh.network->parameters().front()));
}

TEST_F(CheckpointTest, NotesComeBack) {
  save_checkpoint(folder / "c", {.tensors = {{"a", at::ones({2})}}, .notes = {{"progress", "{\"epoch\":3}"}}});
  const auto loaded = load_checkpoint(folder / "c");
  EXPECT_EQ(loaded.notes.at("progress"), "{\"epoch\":3}");
  EXPECT_EQ(loaded.notes.size(), 1U);
}

TEST_F(CheckpointTest, AnotherNetworksCheckpointIsRefused) {
  Training gaussian(AttentionKind::kGaussian);
  gaussian.steps(0, 1);
  Training embedded(AttentionKind::kEmbeddedGaussian);
  expect_contains(error_of([&] { embedded.restore(gaussian.checkpoint()); }), "another configuration");
}

TEST_F(CheckpointTest, OtherFilesAreRefused) {
  write_safetensors(folder / "other", {{"a", at::ones({2})}}, {});
  expect_contains(error_of([&] { load_checkpoint(folder / "other"); }), "expected a checkpoint");
  write_plainly(folder / "text", "not a checkpoint at all");
  expect_contains(error_of([&] { load_checkpoint(folder / "text"); }), "text");
  expect_contains(error_of([&] { load_checkpoint(folder / "missing"); }), "missing");
}

TEST(GuardState, WithoutItsStepIsRefused) {
  Training training(AttentionKind::kConcatenation);
  EXPECT_THROW(training.guard.restore({}), Error);
}

}  // namespace
}  // namespace invattn::test

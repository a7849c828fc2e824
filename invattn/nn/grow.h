#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "invattn/nn/flow.h"

namespace invattn {

/// The parts of a dotted name around the block of a flow that it speaks of: "network.scale1.4.1.branch.bias0" has prefix "network.",
/// scale 1, block 4 and rest "1.branch.bias0".
struct FlowBlockName {
  std::string prefix;
  std::size_t scale = 0;
  int64_t block = 0;
  std::string rest;
};

/// None where the name speaks of no block.
std::optional<FlowBlockName> flow_block_name(const std::string& name);

/// A flow with more blocks that computes the same. The inserted blocks have ActNorms that are the identity and branches whose last map is zero:
/// latents, log-determinants and inverses are those of the smaller flow to the bit, and gradients reach the last maps, then all weights.
/// Estimates of log-determinants draw other probes for the blocks behind an inserted one.
///
///   FlowGrowth growth(flow->options(), larger);
///   Flow grown = growth.apply(*flow);
///
/// Within a scale, old block k of n goes to place k m / n of m, rounded down, among the convolution blocks and among the attention blocks.
class FlowGrowth {
 public:
  /// A usage error unless `to` is `from` with more blocks: `blocks`, and `attention_blocks` where attention_follow is 0, since a scale that
  /// follows the batches does not stay the identity. A flow without attention blocks may get such of any kind.
  FlowGrowth(const FlowOptions& from, const FlowOptions& to);

  /// The larger flow, with the old weights and statistics; what is new comes from torch's generator.
  Flow apply(const FlowImpl& flow) const;

  /// A name of the smaller flow's parameters and buffers, also with something before it, in the larger flow.
  std::string name(const std::string& old) const;

  /// Whether a name of the larger flow belongs to an inserted block.
  bool is_new(const std::string& name) const;

  /// The number that an attention block has among those of the larger flow, from its number among those of the smaller.
  int64_t attention(int64_t old) const;

  /// How many blocks are inserted.
  int64_t inserted() const;

 private:
  /// Blocks of one kind in one scale.
  struct Count {
    int64_t before = 0;
    int64_t after = 0;
    int64_t place(int64_t old) const { return old * after / before; }
    int64_t inserted() const { return after - before; }
  };
  struct Scale {
    Count convolutions, attentions;
    int64_t place(int64_t old) const;
  };

  FlowOptions from_, to_;
  std::vector<Scale> scales_;
};

}  // namespace invattn

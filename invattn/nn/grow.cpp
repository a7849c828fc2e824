#include "invattn/nn/grow.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <system_error>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/actnorm.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "FlowGrowth";

int64_t attention_count(const FlowOptions& options, std::size_t scale) {
  return options.attention != FlowAttention::kNone && scale < options.attention_blocks.size() ? options.attention_blocks[scale] : 0;
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() && number >= 0 ? std::optional(number) : std::nullopt;
}

std::map<std::string, at::Tensor> tensors_of(const FlowImpl& flow) {
  std::map<std::string, at::Tensor> result;
  for (const auto& parameter : flow.named_parameters()) result.emplace(parameter.key(), parameter.value().detach());
  for (const auto& buffer : flow.named_buffers()) result.emplace(buffer.key(), buffer.value());
  return result;
}

/// What a part of an inserted block has to be for the block to do nothing.
void make_neutral(torch::nn::Module& part) {
  const auto clear = [&part](const std::string& name) { part.named_parameters()[name].zero_(); };
  if (auto* norm = dynamic_cast<ActNormImpl*>(&part)) {
    norm->named_buffers()["started"].fill_(1);  // or the first batch would set it; scale and shift begin as the identity
  } else if (const auto* convolution = dynamic_cast<const ConvolutionImpl*>(&part)) {
    const auto last = std::to_string(convolution->options().layers - 1);
    clear("weight" + last);
    clear("bias" + last);
  } else if (const auto* attention = dynamic_cast<const AttentionImpl*>(&part); attention != nullptr) {
    if (attention->options().output != OutputMap::kLinear) return;  // a gate begins closed
    clear("output.weight");
    if (attention->options().bias) clear("output.bias");
  }
}

}  // namespace

std::optional<FlowBlockName> flow_block_name(const std::string& name) {
  constexpr std::string_view kScale = "scale";
  const std::string_view text = name;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('.', begin);
    if (end == std::string_view::npos) break;
    const auto word = text.substr(begin, end - begin);
    const auto next = text.find('.', end + 1);
    if (word.starts_with(kScale) && next != std::string_view::npos) {
      const auto scale = whole_number(word.substr(kScale.size()));
      const auto block = whole_number(text.substr(end + 1, next - end - 1));
      if (scale && block) {
        return FlowBlockName{name.substr(0, begin), static_cast<std::size_t>(*scale), *block, name.substr(next + 1)};
      }
    }
    begin = end + 1;
  }
  return std::nullopt;
}

int64_t FlowGrowth::Scale::place(int64_t old) const {
  if (old < convolutions.before) return convolutions.place(old);
  const auto behind = old - convolutions.before;
  if (behind < attentions.before) return convolutions.after + attentions.place(behind);
  return old + convolutions.inserted() + attentions.inserted();
}

FlowGrowth::FlowGrowth(const FlowOptions& from, const FlowOptions& to) : from_(from), to_(to) {
  from_.validate();
  require(to_.blocks.size() == from_.blocks.size(), kOrigin, "expected blocks for the ", from_.blocks.size(), " scales of the flow, got ",
          to_.blocks.size(), ". Another number of scales is another flow: train one.");
  to_.validate();
  bool has_attention = false;
  for (std::size_t i = 0; i < from_.blocks.size(); ++i) {
    Scale scale{{from_.blocks[i], to_.blocks[i]}, {attention_count(from_, i), attention_count(to_, i)}};
    for (const auto& [what, count] : {std::pair{"blocks", scale.convolutions}, std::pair{"attention_blocks", scale.attentions}}) {
      require(count.inserted() >= 0, kOrigin, "expected ", what, " of scale ", i, " to be ", count.before, " or more, got ", count.after,
              ". A flow can grow but not shrink.");
    }
    require(scale.attentions.inserted() == 0 || to_.attention_follow == 0, kOrigin,
            "expected as many attention_blocks as there are where attention_follow is above 0, got ", scale.attentions.after, " for ",
            scale.attentions.before, " at scale ", i, ". The scale in front of a new one would follow the batches and change the flow.");
    has_attention = has_attention || scale.attentions.before > 0;
    scales_.push_back(scale);
  }
  // All else has to stay; how attention is made says nothing of a flow that has none.
  FlowOptions expected = from_;
  expected.blocks = to_.blocks;
  expected.attention_blocks = to_.attention_blocks;
  if (!has_attention) {
    expected.attention = to_.attention;
    expected.attention_preset = to_.attention_preset;
    expected.attention_heads = to_.attention_heads;
    expected.attention_radius = to_.attention_radius;
    expected.attention_follow = to_.attention_follow;
  }
  const auto wanted = fields_to_json(expected);
  const auto got = fields_to_json(to_);
  for (const auto& [key, value] : got.items()) {
    require(value == wanted[key], kOrigin, "expected the flow's ", key, " to stay ", wanted[key].dump(), ", got ", value.dump(),
            ". Only blocks and attention_blocks can grow.");
  }
  require(inserted() > 0, kOrigin, "expected more blocks than there are, ", print_field(from_.blocks),
          ", got the same. Nothing would grow.");
}

int64_t FlowGrowth::inserted() const {
  int64_t sum = 0;
  for (const auto& scale : scales_) sum += scale.convolutions.inserted() + scale.attentions.inserted();
  return sum;
}

std::string FlowGrowth::name(const std::string& old) const {
  const auto found = flow_block_name(old);
  if (!found || found->scale >= scales_.size()) return old;
  return found->prefix + "scale" + std::to_string(found->scale) + "." + std::to_string(scales_[found->scale].place(found->block)) + "." +
         found->rest;
}

bool FlowGrowth::is_new(const std::string& name) const {
  const auto found = flow_block_name(name);
  if (!found || found->scale >= scales_.size()) return false;
  const auto& scale = scales_[found->scale];
  const auto among = [](const Count& count, int64_t place) {
    for (int64_t old = 0; old < count.before; ++old) {
      if (count.place(old) == place) return false;
    }
    return place < count.after;
  };
  return found->block < scale.convolutions.after ? among(scale.convolutions, found->block)
                                                 : among(scale.attentions, found->block - scale.convolutions.after);
}

int64_t FlowGrowth::attention(int64_t old) const {
  int64_t before = 0;  // attention blocks of the larger flow in the scales before
  for (const auto& scale : scales_) {
    if (old < scale.attentions.before) return before + scale.attentions.place(old);
    old -= scale.attentions.before;
    before += scale.attentions.after;
  }
  return before + old;
}

Flow FlowGrowth::apply(const FlowImpl& flow) const {
  require(fields_to_json(flow.options()) == fields_to_json(from_), kOrigin,
          "expected the flow that is to grow, got one with other options.");
  const at::NoGradGuard no_grad;
  Flow result(to_);
  for (const auto& part : result->named_modules()) {
    if (is_new(part.key() + ".")) make_neutral(*part.value());
  }
  const auto old = tensors_of(flow);
  const auto& like = old.at("prior_mean");
  result->to(like.device(), like.scalar_type());
  auto values = tensors_of(*result);
  for (const auto& [key, value] : old) values.at(name(key)).copy_(value);
  result->train(flow.is_training());
  return result;
}

}  // namespace invattn

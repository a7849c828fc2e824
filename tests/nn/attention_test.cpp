#include "invattn/nn/attention.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/lipschitz/spectral_norm.h"
#include "invattn/nn/residual.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::max_difference;
using testing::random;
using testing::relative_difference;

// The same cases every time, unless RC_PARAMS asks for others.
const int kSeeded = setenv("RC_PARAMS", "seed=20", 0);

const std::vector<AttentionKind> kKinds{AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct,
                                        AttentionKind::kConcatenation, AttentionKind::kDistance};

at::Tensor parameter(const torch::nn::Module& module, const std::string& name) {
  return module.named_parameters()[name].detach().to(at::kDouble);
}

/// The paper's table 1, from its own formulas: one position at a time, with the weights of `module` as they are.
at::Tensor by_the_table(const AttentionImpl& module, const at::Tensor& image) {
  const auto& options = module.options();
  const auto x = image.flatten(1);  // (C, N)
  const auto n = x.size(1);
  const auto map = [&](const std::string& name, const at::Tensor& input) {
    return at::mm(parameter(module, name + ".weight"), input) + parameter(module, name + ".bias").unsqueeze(1);
  };
  // Of the kind distance, F is a map of the query, without bias.
  const auto values = [&] {
    return options.kind == AttentionKind::kDistance ? at::mm(parameter(module, "value.weight"), map("query", x)) : map("value", x);
  };
  auto responses = at::zeros({n, n}, at::kDouble);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double s = 0;
      switch (options.kind) {
        case AttentionKind::kGaussian:
          s = std::exp(x.select(1, i).dot(x.select(1, j)).item<double>());
          break;
        case AttentionKind::kEmbeddedGaussian:
          s = std::exp(map("query", x).select(1, i).dot(map("key", x).select(1, j)).item<double>());
          break;
        case AttentionKind::kDotProduct:
          s = map("query", x).select(1, i).dot(map("key", x).select(1, j)).item<double>();
          break;
        case AttentionKind::kConcatenation:
          s = at::mv(parameter(module, "concat.weight"), at::cat({map("query", x).select(1, i), map("key", x).select(1, j)}))
                  .item<double>();
          break;
        case AttentionKind::kDistance:
          s = std::exp(-(map("query", x).select(1, i) - map("query", x).select(1, j)).square().sum().item<double>());
          break;
      }
      if (options.kind == AttentionKind::kDotProduct || options.kind == AttentionKind::kConcatenation) {
        if (options.phi == Response::kEluPlusOne) s = s < 0 ? std::exp(s) : s + 1;
        if (options.phi == Response::kElu) s = s < 0 ? std::expm1(s) : s;
      }
      responses[i][j] = s;
    }
  }
  switch (options.normalization) {
    case Normalization::kColumns:
      responses = responses / responses.sum(0, true);
      break;
    case Normalization::kRows:
      responses = responses / responses.sum(1, true);
      break;
    default:
      responses = responses / n;
      break;
  }
  auto result = at::mm(values(), responses.t()) * options.mass;
  if (options.relative) result = result - values() * responses.sum(1) * options.mass;
  if (options.output == OutputMap::kLinear) result = map("output", result);
  if (options.output == OutputMap::kGate) result = result * parameter(module, "gate").tanh();
  return result.view_as(image);
}

/// Weights small enough for every constraint to be inactive, so that the table's formulas apply to them as they are.
void shrink(AttentionImpl& attention) {
  at::NoGradGuard no_grad;
  for (auto& item : attention.parameters()) item.mul_(0.3);
}

TEST(AttentionTable, PlainIsExactlyThePapers) {
  for (const auto kind : kKinds) {
    at::manual_seed(1);
    Attention plain(attention_preset(AttentionPreset::kPlain, kind, 4));
    plain->to(at::kDouble);
    const auto x = random({2, 4, 2, 3}, 1);
    for (int64_t b = 0; b < 2; ++b) EXPECT_LT(max_difference(plain->forward(x)[b], by_the_table(*plain, x[b])), 1e-12) << kind;
    EXPECT_EQ(plain->options().normalization,
              kind == AttentionKind::kDotProduct || kind == AttentionKind::kConcatenation ? Normalization::kCount : Normalization::kRows);
  }
}

TEST(AttentionTable, InvertibleIsThePapers) {
  for (const auto kind : kKinds) {
    at::manual_seed(2);
    Attention paper(attention_preset(AttentionPreset::kPaper, kind, 4));
    paper->to(at::kDouble);
    shrink(*paper);
    const auto x = random({1, 4, 3, 2}, 2);
    EXPECT_LT(max_difference(paper->forward(x)[0], by_the_table(*paper, x[0])), 1e-12) << kind;
    const auto map = paper->response(x);
    EXPECT_LT(max_difference(map.sum(1), at::ones({1, 6})), 1e-12) << "columns sum to one";
    EXPECT_GE(map.min().item<double>(), 0);
  }
}

TEST(AttentionTable, PublishedCodeIsItsOwn) {
  for (const auto kind : kKinds) {
    at::manual_seed(3);
    const auto options = attention_preset(AttentionPreset::kPublishedCode, kind, 4);
    EXPECT_DOUBLE_EQ(options.mass, 1 / 1.5);
    EXPECT_EQ(options.normalization, Normalization::kRows);
    EXPECT_DOUBLE_EQ(options.response_constant, 0.9);
    EXPECT_DOUBLE_EQ(options.value_constant, kind == AttentionKind::kDotProduct ? 0.5 : 0.9);
    Attention published(options);
    published->to(at::kDouble);
    shrink(*published);
    if (kind == AttentionKind::kGaussian) {
      EXPECT_EQ(parameter(*published, "gate").item<double>(), 0) << "the gate starts at 0";
      at::NoGradGuard no_grad;
      published->named_parameters()["gate"].fill_(0.7);
    }
    const auto x = random({1, 4, 2, 2}, 3);
    EXPECT_LT(relative_difference(published->forward(x)[0], by_the_table(*published, x[0])), 1e-10) << kind;
  }
}

TEST(AttentionTable, ByDistancesRelativeSumsDifferences) {
  for (const auto normalization : {Normalization::kColumns, Normalization::kRows, Normalization::kCount}) {
    at::manual_seed(4);
    Attention attention(AttentionOptions{
        .channels = 4, .kind = AttentionKind::kDistance, .normalization = normalization, .bottleneck = 2, .relative = true, .mass = 0.7});
    attention->to(at::kDouble);
    const auto x = random({1, 4, 2, 3}, 3);
    EXPECT_LT(max_difference(attention->forward(x)[0], by_the_table(*attention, x[0])), 1e-12) << normalization;
    EXPECT_LT(max_difference(attention->forward(x + 5), attention->forward(x)), 1e-12) << "where the zero lies does not matter";
  }
}

// Several heads are as many attentions of one head, each with its rows of the maps, and one W_L for all.
TEST(AttentionHeads, AreAttentionsOfOneHeadSideBySide) {
  constexpr int64_t kChannels = 6, kHeads = 3, kShare = kChannels / kHeads;
  const auto x = random({2, kChannels, 2, 3}, 5);
  for (const auto kind : kKinds) {
    at::manual_seed(6);
    // A width of 2 for each head, as the one head has on its own.
    Attention whole(AttentionOptions{.channels = kChannels, .kind = kind, .bottleneck = 1, .heads = kHeads, .policy = Policy::kNone});
    whole->to(at::kDouble);
    shrink(*whole);
    const at::NoGradGuard no_grad;
    const auto all = whole->named_parameters();
    at::Tensor expected = at::zeros_like(x), maps = at::zeros({2, 6, 6}, at::kDouble);
    for (int64_t h = 0; h < kHeads; ++h) {
      const bool own_channels = kind == AttentionKind::kGaussian;  // whose scores are of the head's channels of x
      Attention one(AttentionOptions{.channels = own_channels ? kShare : kChannels,
                                     .kind = kind,
                                     .bottleneck = own_channels ? 1 : kHeads,
                                     .output = OutputMap::kNone,
                                     .policy = Policy::kNone});
      one->to(at::kDouble);
      shrink(*one);
      for (auto& item : one->named_parameters()) {
        const auto& from = all[item.key()];
        const auto rows = from.slice(0, h * from.size(0) / kHeads, (h + 1) * from.size(0) / kHeads);
        if (item.key().starts_with("value")) {
          item.value().zero_();  // the head's rows of F; the others give nothing
          if (!own_channels) item.value().slice(0, h * kShare, (h + 1) * kShare).copy_(rows);
        } else {
          item.value().copy_(rows);
        }
      }
      const auto seen = own_channels ? x.slice(1, h * kShare, (h + 1) * kShare) : x;
      maps += one->response(seen) / kHeads;
      if (own_channels) {
        const auto values = at::matmul(all["value.weight"], x.flatten(2)) + all["value.bias"].view({-1, 1});
        const auto taken = at::bmm(values.slice(1, h * kShare, (h + 1) * kShare), one->response(seen).transpose(1, 2));
        expected.slice(1, h * kShare, (h + 1) * kShare).add_(taken.view({2, kShare, 2, 3}));
      } else {
        expected += one->forward(seen);
      }
    }
    const auto output = at::matmul(all["output.weight"], expected.flatten(2)) + all["output.bias"].view({-1, 1});
    EXPECT_LT(max_difference(whole->forward(x).flatten(2), output), 1e-12) << kind;
    EXPECT_LT(max_difference(whole->response(x), maps), 1e-12) << kind;
  }
}

TEST(AttentionResponse, BetweenCellsIsTheMapAddedUpAndAveraged) {
  const auto x = random({2, 4, 5, 6}, 3);  // cells of 2 x 2 leave a rest
  for (const auto kind : kKinds) {
    Attention attention(AttentionOptions{.channels = 4, .kind = kind, .heads = 2});
    attention->to(at::kDouble);
    const at::NoGradGuard no_grad;
    const auto whole = attention->response(x).view({2, 5, 6, 5, 6});
    const auto cells = attention->response(x, 2);
    ASSERT_EQ(cells.sizes(), at::IntArrayRef({2, 9, 9}));
    for (int64_t to = 0; to < 9; ++to) {
      for (int64_t from = 0; from < 9; ++from) {
        const auto part = whole.slice(1, to / 3 * 2, to / 3 * 2 + 2).slice(2, to % 3 * 2, to % 3 * 2 + 2);
        const auto taken = part.slice(3, from / 3 * 2, from / 3 * 2 + 2).slice(4, from % 3 * 2, from % 3 * 2 + 2);
        EXPECT_LT(max_difference(cells.select(1, to).select(1, from), taken.sum({3, 4}).mean({1, 2})), 1e-12);
      }
    }
    EXPECT_TRUE(at::equal(attention->response(x, 1), attention->response(x)));
    EXPECT_THROW(attention->response(x, 0), Error);
  }
}

TEST(AttentionScore, ScaleAndShiftAreThoseOfTheInputInTheGaussian) {
  Attention shifted(AttentionOptions{.channels = 4, .kind = AttentionKind::kGaussian, .score_scale = 0.25, .score_shift = 1.5});
  Attention plain(AttentionOptions{.channels = 4, .kind = AttentionKind::kGaussian});
  shifted->to(at::kDouble);
  plain->to(at::kDouble);
  const auto x = random({2, 4, 3, 3}, 5);
  const at::NoGradGuard no_grad;
  EXPECT_LT(max_difference(shifted->response(x), plain->response(0.5 * (x + 1.5))), 1e-12) << "exp(0.25 a.b) = exp((a/2).(b/2))";
  EXPECT_GT(max_difference(shifted->response(x), plain->response(x)), 1e-3);
}

TEST(AttentionStart, TheIdentityIsLeftByTraining) {
  for (const auto kind : kKinds) {
    Attention attention(AttentionOptions{.channels = 8, .kind = kind, .start = Start::kIdentity});
    const auto x = random({2, 8, 3, 3}, 5, at::kFloat);
    const auto y = attention->forward(x);
    EXPECT_EQ(y.abs().max().item<double>(), 0) << kind;
    (y - 1).square().sum().backward();
    const auto parameters = attention->named_parameters();
    EXPECT_GT(parameters["output.weight"].grad().abs().max().item<double>(), 1e-3) << kind;
  }
}

TEST(AttentionStart, TheQueryAndKeyOfTheIdentityTellBrightFromDark) {
  for (const auto kind : {AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct}) {
    at::manual_seed(8);
    Attention attention(attention_preset(AttentionPreset::kGuarded, kind, 12));
    auto x = random({1, 12, 2, 4}, 5, at::kFloat) * 0.05;
    x.select(2, 0) += 0.4;  // the upper row is bright, the lower one dark
    x.select(2, 1) -= 0.4;
    const at::NoGradGuard no_grad;
    const auto taken = attention->response(x).sum(2).view({2, 4});  // row sums
    EXPECT_GT(taken[0].min().item<double>(), 1.2 * taken[1].max().item<double>()) << kind;
  }
}

TEST(AttentionConstraints, ForwardUsesConstrainedMapsAndProjectStoresThem) {
  at::manual_seed(4);
  AttentionOptions options{.channels = 6, .kind = AttentionKind::kEmbeddedGaussian, .response_constant = 0.5};
  Attention attention(options);
  {
    at::NoGradGuard no_grad;
    for (auto& item : attention->parameters()) item.mul_(20);
  }
  const auto x = random({2, 6, 3, 3}, 5, at::kFloat);
  const auto before = attention->forward(x);
  attention->project();
  EXPECT_LT(max_difference(attention->forward(x), before), 1e-4);
  for (const auto& [name, constant] :
       {std::pair{"value.weight", 0.9}, std::pair{"output.weight", 0.9}, std::pair{"query.weight", 0.5}, std::pair{"key.weight", 0.5}}) {
    const double norm = at::linalg_svdvals(parameter(*attention, name)).max().item<double>();
    EXPECT_LE(norm, constant) << name;
    EXPECT_GT(norm, 0.999 * constant) << name;
  }
}

TEST(AttentionScale, MultipliesTheBranch) {
  for (const auto preset : {AttentionPreset::kGuarded, AttentionPreset::kPublishedCode}) {
    at::manual_seed(5);
    Attention attention(attention_preset(preset, AttentionKind::kGaussian, 4));
    {
      at::NoGradGuard no_grad;
      for (auto& item : attention->parameters()) item.add_(0.5);
    }
    const auto x = random({2, 4, 2, 2}, 6, at::kFloat);
    const auto before = attention->forward(x);
    attention->scale(0.25);
    EXPECT_LT(max_difference(attention->forward(x), before * 0.25), 1e-5);
  }
}

TEST(AttentionSize, ManyPositionsGoInBlocks) {
  for (const auto kind : kKinds) {  // 2,500^2 pairs do not go at once
    at::manual_seed(6);
    Attention attention(AttentionOptions{.channels = 2, .kind = kind, .bottleneck = 1});
    const auto x = random({1, 2, 50, 50}, 7, at::kFloat).requires_grad_(true);
    const auto y = attention->forward(x);
    const auto u = random(x.sizes(), 8, at::kFloat);
    const auto pulled = testing::gradient((y * u).sum(), x);
    const auto linearization = attention->freeze(x).linearize(x.detach());
    EXPECT_LT(relative_difference(linearization->vjp(u), pulled), 1e-4) << kind;
    const auto v = random(x.sizes(), 9, at::kFloat);
    EXPECT_NEAR((u * linearization->jvp(v)).sum().item<double>(), (pulled * v).sum().item<double>(), 1e-2) << kind;
  }
}

TEST(AttentionSafety, LargeInputsStayFinite) {
  for (const auto kind : kKinds) {
    for (const auto normalization : {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kBalanced}) {
      for (const auto type : {at::kFloat, at::kDouble}) {
        at::manual_seed(7);
        Attention attention(AttentionOptions{.channels = 4, .kind = kind, .normalization = normalization});
        attention->to(type);
        const auto x = (random({1, 4, 3, 3}, 8, type) * 1e3).requires_grad_(true);
        const auto y = attention->forward(x);
        EXPECT_TRUE(y.isfinite().all().item<bool>()) << kind << " " << normalization;
        const auto first = testing::gradient(y.sum(), x, true);
        EXPECT_TRUE(first.isfinite().all().item<bool>()) << kind << " " << normalization;
        EXPECT_TRUE(testing::gradient((first / 1e3).square().sum(), x).isfinite().all().item<bool>()) << kind << " " << normalization;
      }
    }
  }
}

TEST(AttentionProperty, RandomShapesRoundTrip) {
  ASSERT_EQ(kSeeded, 0);
  const auto result = rc::check("x -> y -> x for random shapes, kinds and normalisations", [] {
    const auto batch = *rc::gen::inRange<int64_t>(0, 4);
    const auto channels = *rc::gen::inRange<int64_t>(1, 9);
    const auto height = *rc::gen::inRange<int64_t>(1, 6);
    const auto width = *rc::gen::inRange<int64_t>(1, 6);
    AttentionOptions options{
        .channels = channels,
        .kind = *rc::gen::elementOf(kKinds),
        .normalization = *rc::gen::element(Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kBalanced),
        .bottleneck = *rc::gen::inRange<int64_t>(1, 5),
        .heads = *rc::gen::element<int64_t>(1, channels),
        .bias = *rc::gen::arbitrary<bool>(),
        .policy = *rc::gen::element(Policy::kGuarded, Policy::kStrict)};
    if (options.kind == AttentionKind::kDistance) {
      options.relative = *rc::gen::arbitrary<bool>();
      if (options.policy == Policy::kStrict) options.normalization = Normalization::kRows;
    }
    at::manual_seed(*rc::gen::inRange<uint64_t>(0, 1000));
    InvertibleAttention block(options);
    block->branch().scale(0.4);
    block->to(at::kDouble);
    const auto x = random({batch, channels, height, width}, 11) * 0.3;
    const auto y = block->forward(x);
    RC_ASSERT(y.sizes() == x.sizes());
    const auto [back, report] = block->inverse(y, AndersonOptions{.tolerance = 1e-12});
    RC_ASSERT(batch == 0 || report.usable());
    RC_ASSERT(max_difference(back, x) < 1e-10);
  });
  EXPECT_TRUE(result);
}

TEST(AttentionOptionsErrors, AreNamed) {
  const auto message = [](const AttentionOptions& options) -> std::string {
    try {
      const Attention attention(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "no error";
  };
  const auto contains = [&](const AttentionOptions& options, const std::string& phrase) {
    EXPECT_NE(message(options).find(phrase), std::string::npos) << message(options);
  };
  contains({}, "positive number of channels");
  contains({.channels = 4, .bottleneck = 0}, "positive bottleneck");
  contains({.channels = 4, .heads = 0}, "heads to divide the 4 channels, got 0");
  contains({.channels = 4, .heads = 3}, "heads to divide the 4 channels, got 3");
  contains({.channels = 4, .heads = -2}, "heads to divide");
  contains({.channels = 4, .relative = true}, "relative = true for the kind distance only");
  contains({.channels = 4, .kind = AttentionKind::kDistance, .policy = Policy::kStrict}, "count with relative = true");
  contains({.channels = 4, .mass = -1}, "positive mass");
  contains({.channels = 4, .value_constant = -0.1}, "value_constant");
  contains({.channels = 4, .constant = 1.0}, "between 0 and 1");
  contains({.channels = 4, .radius = 0}, "radius");
  contains({.channels = 4, .kind = AttentionKind::kGaussian, .normalization = Normalization::kCount}, "count");
  contains({.channels = 4, .normalization = Normalization::kBalanced, .phi = Response::kElu}, "without sign");
  contains({.channels = 4, .phi = Response::kExponential}, "embedded-gaussian");
  contains({.channels = 4, .policy = Policy::kProduct}, "convolutions");
  contains({.channels = 4, .kind = AttentionKind::kGaussian, .score_scale = 0}, "score_scale");
  contains({.channels = 4, .score_shift = 1}, "gaussian only");
  contains({.channels = 4, .phi = Response::kRelu, .policy = Policy::kStrict}, "relative slope");
  contains({.channels = 4, .output = OutputMap::kNone, .policy = Policy::kStrict}, "W_L");
  contains({.channels = 4, .output = OutputMap::kGate, .start = Start::kContraction}, "output = linear for start = contraction");
}

TEST(AttentionInput, WrongChannelsTypeAndSizeAreNamed) {
  Attention attention(AttentionOptions{.channels = 4});
  EXPECT_THROW(attention->forward(at::zeros({1, 3, 2, 2})), Error);
  EXPECT_THROW(attention->forward(at::zeros({1, 4, 2, 2}, at::kDouble)), Error);
  EXPECT_THROW(attention->forward(at::zeros({1, 4, 0, 2})), Error);
  EXPECT_THROW(attention->freeze(at::zeros({1, 3, 2, 2})), Error);
  EXPECT_THROW(attention->scale(0), Error);
  EXPECT_THROW(attention->scale(1.5), Error);
}

}  // namespace
}  // namespace invattn

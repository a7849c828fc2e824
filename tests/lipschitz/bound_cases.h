#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "invattn/core/seed.h"
#include "invattn/nn/attention.h"
#include "tests/lipschitz/measure.h"

/// Every response map that has a strict bound, and attentions drawn from all over the options for each of them.
namespace invattn::testing {

struct BoundCase {
  AttentionKind kind;
  Normalization normalization;
  Response phi;
  bool relative = false;
};

inline bool has_phi(AttentionKind kind) { return kind == AttentionKind::kDotProduct || kind == AttentionKind::kConcatenation; }

inline std::string name_of(const BoundCase& c) {
  auto name = std::string(to_string(c.kind)) + "_" + std::string(to_string(c.normalization));
  if (has_phi(c.kind)) name += c.phi == Response::kSoftplus ? "_softplus" : "_elu1";
  if (c.relative) name += "_relative";
  std::erase(name, '-');
  return name;
}

inline void PrintTo(const BoundCase& c, std::ostream* out) { *out << name_of(c); }

inline std::vector<BoundCase> bound_cases() {
  std::vector<BoundCase> cases;
  for (const auto& [kind, kind_name] : EnumNames<AttentionKind>::kNames) {
    for (const auto& [normalization, normalization_name] : EnumNames<Normalization>::kNames) {
      if (kind == AttentionKind::kDistance) {
        if (normalization == Normalization::kRows) cases.push_back({kind, normalization, Response::kEluPlusOne});
        if (normalization == Normalization::kRows || normalization == Normalization::kCount) {
          cases.push_back({kind, normalization, Response::kEluPlusOne, /*relative=*/true});
        }
      } else if (has_phi(kind)) {
        cases.push_back({kind, normalization, Response::kEluPlusOne});
        cases.push_back({kind, normalization, Response::kSoftplus});
      } else if (normalization != Normalization::kCount) {
        cases.push_back({kind, normalization, Response::kEluPlusOne});
      }
    }
  }
  return cases;
}

/// One attention of a case, without an output map: W_L A(x) = A(x), of which attention->bound(positions) speaks.
struct BoundSetting {
  int64_t positions = 1;
  int64_t channels = 1;
  double radius = 1;
  double scale = 1;              ///< of the weights
  double bias_scale = 0;         ///< of the biases
  bool constant_values = false;  ///< F(x) = b, which leaves the bound with its c_R alone
  double response_constant = 0;
  int64_t bottleneck = 4;
  int64_t heads = 1;
  double mass = 1;
  uint64_t seed = 0;

  Attention attention(const BoundCase& c) const {
    Attention result(AttentionOptions{.channels = channels,
                                      .kind = c.kind,
                                      .normalization = c.normalization,
                                      .phi = c.phi,
                                      .bottleneck = bottleneck,
                                      .heads = heads,
                                      .relative = c.relative,
                                      .mass = mass,
                                      .value_constant = 0,
                                      .output_constant = 0,
                                      .response_constant = response_constant,
                                      .output = OutputMap::kNone,
                                      .policy = Policy::kPaper,
                                      .radius = radius});
    result->to(at::kDouble);
    randomize(*result, scale, bias_scale, seed);
    if (constant_values) {
      at::NoGradGuard no_grad;
      result->named_parameters()["value.weight"].zero_();
      result->named_parameters()["value.bias"].copy_(random({channels}, seed + 100));
    }
    return result;
  }
};

inline std::ostream& operator<<(std::ostream& out, const BoundSetting& s) {
  return out << "N=" << s.positions << " C=" << s.channels << " radius=" << s.radius << " scale=" << s.scale
             << " bias_scale=" << s.bias_scale << " constant_values=" << s.constant_values << " response_constant=" << s.response_constant
             << " bottleneck=" << s.bottleneck << " heads=" << s.heads << " mass=" << s.mass << " seed=" << s.seed;
}

/// Setting number `index`: any 36 in a row go through all N, C and radii below; the rest is drawn.
inline BoundSetting bound_setting(const BoundCase& c, uint64_t index) {
  const auto name = name_of(c);
  const auto draw = [&](const char* what, const auto& choices) { return choices[derive_seed(index, name + what) % choices.size()]; };
  static const std::vector<int64_t> kPositions{1, 2, 5, 12}, kChannels{1, 3, 4}, kBottlenecks{1, 2, 4};
  static const std::vector<double> kRadii{0.5, 1, 3}, kScales{0.1, 0.4, 1, 3}, kBiasScales{0, 0, 0.5, 3}, kResponseConstants{0, 0, 0.3},
      kMasses{1, 1, 0.5, 2};
  return {.positions = kPositions[index % 4],
          .channels = kChannels[index / 4 % 3],
          .radius = kRadii[index / 12 % 3],
          .scale = draw("scale", kScales),
          .bias_scale = draw("bias", kBiasScales),
          // Rows of R that sum to 1 leave a constant F as it is: there would be nothing to measure.
          .constant_values =
              c.normalization != Normalization::kRows && c.kind != AttentionKind::kDistance && derive_seed(index, name + "values") % 4 == 0,
          .response_constant = draw("response", kResponseConstants),
          .bottleneck = draw("bottleneck", kBottlenecks),
          .heads = draw("heads", std::vector<int64_t>{1, 1, kChannels[index / 4 % 3]}),
          .mass = draw("mass", kMasses),
          .seed = derive_seed(index, name) % 1000000};
}

}  // namespace invattn::testing

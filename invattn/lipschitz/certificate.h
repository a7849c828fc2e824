#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/names.h"
#include "invattn/lipschitz/policy.h"

namespace invattn {

/// What a promise rests on.
enum class Basis {
  kNothing,   ///< nothing is known of the trained branch
  kMeasured,  ///< the largest local constant seen on named data
  kProved,    ///< a bound that holds for every input of a stated domain
};

template <>
struct EnumNames<Basis> {
  static constexpr std::string_view kWhat = "a basis";
  static constexpr std::array<std::pair<Basis, std::string_view>, 3> kNames{
      {{Basis::kNothing, "nothing"}, {Basis::kMeasured, "measured"}, {Basis::kProved, "proved"}}};
};

/// What is promised of one residual branch, kept with its weights. It speaks of the weights it was made for and of no others.
struct Certificate {
  Policy policy = Policy::kNone;
  Basis basis = Basis::kNothing;
  double constant = 0;       ///< of g in the L2 norm: the proved bound, or the largest local constant measured
  double domain_radius = 0;  ///< proved: entries of x within [-radius, radius]; 0: the whole space
  int64_t positions = 0;     ///< proved: for this many positions N; 0: for any
  std::string data{};        ///< measured: on what
  int64_t samples = 0;       ///< measured: on how many
  double scale = 1;          ///< measured: the factor folded into the last map to meet the constant
  std::string weights{};     ///< digest of the weights

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("policy", self.policy, "how the branch is constrained");
    field("basis", self.basis, "what the promise rests on");
    field("constant", self.constant, "Lipschitz constant of g: bound, or largest measured");
    field("domain_radius", self.domain_radius, "entries of x within [-radius, radius]; 0 for the whole space");
    field("positions", self.positions, "number of positions the bound is for; 0 for any");
    field("data", self.data, "what it was measured on");
    field("samples", self.samples, "how many samples it was measured on");
    field("scale", self.scale, "factor folded into the last map");
    field("weights", self.weights, "digest of the weights");
  }

  /// Whether the branch is certified a contraction: a basis and a constant under 1.
  bool contraction() const { return basis != Basis::kNothing && constant < 1; }

  /// One line for people.
  std::string text() const;
};

/// A digest of names, shapes, types and bytes, to notice that weights have changed.
std::string weights_digest(const std::vector<std::pair<std::string, at::Tensor>>& named_tensors);

}  // namespace invattn

#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "invattn/core/names.h"

namespace invattn {

/// How a branch g is kept under Lipschitz constant 1.
enum class Policy {
  kNone,     ///< not at all: an ordinary attention block, which has no inverse
  kPaper,    ///< the paper's relaxed conditions: F and W_L constrained, the response map normalised. Not enough once trained.
  kGuarded,  ///< the same maps, and the local constant of g held by a penalty while training and a final scale, and measured
  kStrict,   ///< W_L is scaled by a proved bound on the constant of the attention over a stated domain
  kProduct,  ///< the product of the spectral norms of a convolutional branch
};

template <>
struct EnumNames<Policy> {
  static constexpr std::string_view kWhat = "a policy";
  static constexpr std::array<std::pair<Policy, std::string_view>, 5> kNames{{{Policy::kNone, "none"},
                                                                              {Policy::kPaper, "paper"},
                                                                              {Policy::kGuarded, "guarded"},
                                                                              {Policy::kStrict, "strict"},
                                                                              {Policy::kProduct, "product"}}};
};

}  // namespace invattn

#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string_view>
#include <utility>

#include "invattn/core/names.h"
#include "invattn/core/response_map.h"

namespace invattn {

template <>
struct EnumNames<Response> {
  static constexpr std::string_view kWhat = "a response function";
  static constexpr std::array<std::pair<Response, std::string_view>, 6> kNames{{{Response::kExponential, "exp"},
                                                                                {Response::kEluPlusOne, "elu+1"},
                                                                                {Response::kSoftplus, "softplus"},
                                                                                {Response::kRelu, "relu"},
                                                                                {Response::kElu, "elu"},
                                                                                {Response::kIdentity, "identity"}}};
};

template <>
struct EnumNames<Normalization> {
  static constexpr std::string_view kWhat = "a normalisation";
  static constexpr std::array<std::pair<Normalization, std::string_view>, 5> kNames{{{Normalization::kColumns, "columns"},
                                                                                     {Normalization::kRows, "rows"},
                                                                                     {Normalization::kAll, "all"},
                                                                                     {Normalization::kCount, "count"},
                                                                                     {Normalization::kBalanced, "balanced"}}};
};

/// Whether phi is positive everywhere, so that everything can be computed from log phi and no scale overflows.
bool is_positive(Response response);

/// log phi(s) and its derivative, for positive phi. Finite for every finite s.
at::Tensor log_response(Response response, const at::Tensor& scores);
at::Tensor log_response_derivative(Response response, const at::Tensor& scores);

/// phi(s) and its derivative.
at::Tensor response(Response response, const at::Tensor& scores);
at::Tensor response_derivative(Response response, const at::Tensor& scores);

}  // namespace invattn

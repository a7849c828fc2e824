#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "invattn/ops/response.h"

namespace invattn {

/// Keeps a response map in the context of an autograd function, which holds plain values only.
inline void save_map(torch::autograd::AutogradContext* context, const ResponseMap& map) {
  auto& data = context->saved_data;
  data["score"] = static_cast<int64_t>(map.score);
  data["response"] = static_cast<int64_t>(map.response);
  data["normalization"] = static_cast<int64_t>(map.normalization);
  data["mass"] = map.mass;
}

inline ResponseMap saved_map(torch::autograd::AutogradContext* context) {
  auto& data = context->saved_data;
  return {static_cast<Score>(data["score"].toInt()), static_cast<Response>(data["response"].toInt()),
          static_cast<Normalization>(data["normalization"].toInt()), data["mass"].toDouble()};
}

}  // namespace invattn

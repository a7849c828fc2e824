#include "invattn/ops/response.h"

#include <ATen/ATen.h>

#include "invattn/core/error.h"

namespace invattn {
namespace {

// Below this score log softplus(s) = s - exp(s)/2 to better than double precision.
constexpr double kSoftplusTail = -30.0;

// log(1 + exp(s)). at::softplus drops the exponential above 20, which costs nine digits in float64.
at::Tensor exact_softplus(const at::Tensor& scores) { return -at::log_sigmoid(-scores); }

}  // namespace

bool is_positive(Response response) {
  return response == Response::kExponential || response == Response::kEluPlusOne || response == Response::kSoftplus;
}

at::Tensor log_response(Response response, const at::Tensor& scores) {
  switch (response) {
    case Response::kExponential:
      return scores;
    case Response::kEluPlusOne:
      return scores.clamp_max(0) + at::relu(scores).log1p();
    case Response::kSoftplus: {
      const auto tail = scores.clamp_max(kSoftplusTail);
      return at::where(scores < kSoftplusTail, tail - tail.exp() / 2, exact_softplus(scores.clamp_min(kSoftplusTail)).log());
    }
    case Response::kRelu:
    case Response::kElu:
    case Response::kIdentity:
      break;
  }
  fail(ErrorKind::kUsage, "log_response", "expected a positive response (exp, elu+1 or softplus), got ", response, ".");
}

at::Tensor log_response_derivative(Response response, const at::Tensor& scores) {
  switch (response) {
    case Response::kExponential:
      return at::ones_like(scores);
    case Response::kEluPlusOne:
      return (at::relu(scores) + 1).reciprocal();
    case Response::kSoftplus: {
      const auto body = scores.clamp_min(kSoftplusTail);
      return at::where(scores < kSoftplusTail, 1 - scores.clamp_max(kSoftplusTail).exp() / 2, at::sigmoid(body) / exact_softplus(body));
    }
    case Response::kRelu:
    case Response::kElu:
    case Response::kIdentity:
      break;
  }
  fail(ErrorKind::kUsage, "log_response_derivative", "expected a positive response (exp, elu+1 or softplus), got ", response, ".");
}

at::Tensor response(Response response, const at::Tensor& scores) {
  switch (response) {
    case Response::kExponential:
      return scores.exp();
    case Response::kEluPlusOne:
      return scores.clamp_max(0).exp() + at::relu(scores);  // keeps its digits where elu(s) + 1 loses them
    case Response::kSoftplus:
      return exact_softplus(scores);
    case Response::kRelu:
      return at::relu(scores);
    case Response::kElu:
      return at::elu(scores);
    case Response::kIdentity:
      return scores;
  }
  fail(ErrorKind::kUsage, "response", "expected a response function, got number ", static_cast<int>(response), ".");
}

at::Tensor response_derivative(Response response, const at::Tensor& scores) {
  switch (response) {
    case Response::kExponential:
      return scores.exp();
    case Response::kEluPlusOne:
    case Response::kElu:
      return scores.clamp_max(0).exp();
    case Response::kSoftplus:
      return at::sigmoid(scores);
    case Response::kRelu:
      return (scores > 0).to(scores.scalar_type());
    case Response::kIdentity:
      return at::ones_like(scores);
  }
  fail(ErrorKind::kUsage, "response_derivative", "expected a response function, got number ", static_cast<int>(response), ".");
}

}  // namespace invattn

#include "invattn/lipschitz/certificate.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <iomanip>
#include <span>
#include <sstream>

#include "invattn/core/fnv.h"

namespace invattn {

std::string Certificate::text() const {
  std::ostringstream out;
  out << policy << ": ";
  switch (basis) {
    case Basis::kNothing:
      out << "nothing is known of these weights; g may have any constant";
      break;
    case Basis::kMeasured:
      if (samples == 0) {  // of the weights, not of data
        out << "constant of g at most " << std::setprecision(4) << constant << ", by " << data;
        break;
      }
      out << "largest local constant of g " << std::setprecision(4) << constant << ", measured on " << samples << " samples";
      if (!data.empty()) out << " (" << data << ")";
      if (scale != 1) out << ", after scaling g by " << scale;
      break;
    case Basis::kProved:
      out << "constant of g at most " << std::setprecision(4) << constant << ", proved for ";
      if (domain_radius > 0) {
        out << "entries of x within [" << -domain_radius << ", " << domain_radius << "]";
      } else {
        out << "every x";
      }
      if (positions > 0) out << " at " << positions << " positions";
      break;
  }
  return out.str();
}

std::string weights_digest(const std::vector<std::pair<std::string, at::Tensor>>& named_tensors) {
  std::uint64_t hash = kFnvStart;
  for (const auto& [name, tensor] : named_tensors) {
    const auto values = tensor.detach().to(at::kCPU).contiguous();
    std::ostringstream heading;
    heading << name << " " << values.scalar_type() << " " << values.sizes() << " ";
    hash = fnv1a(heading.str(), hash);
    hash = fnv1a(std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()), hash);
  }
  std::ostringstream digest;
  digest << std::hex << std::setw(16) << std::setfill('0') << hash;
  return digest.str();
}

}  // namespace invattn

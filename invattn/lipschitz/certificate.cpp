#include "invattn/lipschitz/certificate.h"

#include <ATen/ATen.h>

#include <iomanip>
#include <sstream>

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
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a: it has to notice a change, not to withstand a forger
  const auto mix = [&hash](const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  };
  for (const auto& [name, tensor] : named_tensors) {
    const auto values = tensor.detach().to(at::kCPU).contiguous();
    std::ostringstream heading;
    heading << name << " " << values.scalar_type() << " " << values.sizes() << " ";
    const auto text = heading.str();
    mix(text.data(), text.size());
    mix(values.const_data_ptr(), values.nbytes());
  }
  std::ostringstream digest;
  digest << std::hex << std::setw(16) << std::setfill('0') << hash;
  return digest.str();
}

}  // namespace invattn

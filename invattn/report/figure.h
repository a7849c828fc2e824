#pragma once

#include <string>

namespace invattn::reporting {

struct Figure {
  std::string name;  ///< of its file, without .png
  std::string png;   ///< bytes
};

}  // namespace invattn::reporting

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace invattn::tool {

struct Cpu {
  std::string model;                  ///< "unknown" where the system does not say
  std::vector<std::string> features;  ///< the SIMD extensions among those we know, as the system names them
  int64_t cores = 0;                  ///< that this process may use
};

Cpu read_cpu();

/// The executable a shell would run for `name`; empty where there is none on the PATH.
std::string find_program(const std::string& name);

/// The file from which the running process has loaded a shared library; empty where it has not.
std::string loaded_library(const std::string& name);

/// A word as a shell takes it for one, whatever is in it.
std::string quoted(std::string word);

/// The command this process was started with, as one would type it.
std::string command_line();

/// cpu, cuda, or for auto a GPU where one can be used. A usage error of `origin` for other names, and for cuda where there is none.
at::Device device_named(const std::string& name, const std::string& origin);

}  // namespace invattn::tool

#pragma once

#include <chrono>

// What torch's header of its gloo backend names. Gloo itself is inside libtorch_cpu, its headers are not in pip's torch; of them only these
// declarations are needed, since the backend is made and used through torch's classes alone. world.cpp asserts the size that results.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};

}  // namespace gloo

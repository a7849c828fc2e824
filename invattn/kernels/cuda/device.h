#pragma once

namespace invattn::kernels::cuda {

/// Of the current device.
int multiprocessors();

/// The text of the last error of a launch, null where there was none, and forgets it.
const char* take_error();

}  // namespace invattn::kernels::cuda

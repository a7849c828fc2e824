#include "invattn/kernels/cuda/device.h"

namespace invattn::kernels::cuda {

int multiprocessors() { return 4; }  // of the emulated device

}  // namespace invattn::kernels::cuda

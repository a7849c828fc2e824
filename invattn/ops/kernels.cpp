#include "invattn/ops/kernels.h"

#include <atomic>

#include "invattn/kernels/attention.h"

namespace invattn {
namespace {

std::atomic<Kernels> choice_of_process{Kernels::kAuto};

}  // namespace

Kernels chosen_kernels() { return choice_of_process.load(); }
void use_kernels(Kernels choice) { choice_of_process.store(choice); }
std::string_view kernel_instruction_set() { return kernels::cpu::instruction_set(); }

}  // namespace invattn

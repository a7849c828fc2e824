// CapturedStep of a build without a CUDA toolkit: the work as it is.

#include <utility>

#include "invattn/train/captured_step.h"

namespace invattn {

struct CapturedStep::Graph {};

CapturedStep::CapturedStep(c10::Device /*device*/, std::function<void()> work, const CapturedStep* /*beside*/) : work_(std::move(work)) {}
CapturedStep::~CapturedStep() = default;

void CapturedStep::operator()() { work_(); }
bool CapturedStep::captured() const { return false; }

}  // namespace invattn

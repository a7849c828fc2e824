#include "invattn/train/trace.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>
#include <system_error>

#include "invattn/core/error.h"

namespace invattn {

std::filesystem::path StepTrace::run(const std::function<void()>& step) {
  auto path = std::exchange(path_, {});
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (at::hasCUDA()) activities.insert(ActivityType::CUDA);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  try {
    step();
  } catch (...) {
    torch::autograd::profiler::disableProfiler();
    throw;
  }
  std::error_code absent;
  std::filesystem::remove(path, absent);
  torch::autograd::profiler::disableProfiler()->save(path.string());  // says nothing where it cannot
  if (!std::filesystem::exists(path)) {
    fail(ErrorKind::kData, path.string(), "expected to write a timeline there, which failed. Choose a folder that exists and has room.");
  }
  return path;
}

}  // namespace invattn

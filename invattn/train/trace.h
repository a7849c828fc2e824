#pragma once

#include <filesystem>
#include <functional>

namespace invattn {

/// Runs the work once and writes where its time went, on the CPU and on a GPU, as a timeline that chrome://tracing and Perfetto open and
/// scripts/trace_parts sums up. The work has to wait for the
/// device at its end. Overwrites the file.
void trace_work(const std::filesystem::path& path, const std::function<void()>& work);

}  // namespace invattn

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "invattn/dist/world.h"
#include "invattn/io/posix_file.h"
#include "invattn/report/run_record.h"

namespace invattn {

/// Where and on what an experiment runs.
struct RunSettings {
  std::filesystem::path folder;
  at::Device device = at::Device(at::kCPU);
  bool resume = false;    ///< go on with the run that the folder holds; else a folder that holds one is refused
  std::string command{};  ///< for the record
  World world{};          ///< the processes that work on it together; rank 0 writes the files
};

/// How a run was made, for its results.json.
MadeWith made_with(const RunSettings& settings);

/// The folder of a run while this process works in it. It is made where it is missing. An error where it holds a run that is not to be
/// resumed, or files by the names of a run's that are not of one; where it is to be resumed and holds none; and where another process works
/// in it. What a killed process left half-written is removed.
///
/// config.toml makes a folder a run: write it once nothing of the start can fail any more, so that a start that fails can be repeated.
class OpenRunFolder {
 public:
  OpenRunFolder(const RunSettings& settings, std::string_view origin);
  ~OpenRunFolder();
  OpenRunFolder(const OpenRunFolder&) = delete;
  OpenRunFolder& operator=(const OpenRunFolder&) = delete;

 private:
  OpenRunFolder(std::filesystem::path lock_path, FileDescriptor lock);

  std::filesystem::path lock_path_;
  FileDescriptor lock_;  // held by the system for as long as the process lives
};

}  // namespace invattn

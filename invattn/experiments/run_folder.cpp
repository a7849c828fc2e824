#include "invattn/experiments/run_folder.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/core/version.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/io/regular_file.h"

namespace invattn {

std::string made_with(const RunSettings& settings) {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> date{};
  const std::size_t length = std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M UTC", &parts);
  const nlohmann::ordered_json made = {{"command", settings.command},      {"invattn", kVersion},
                                       {"torch", kTorchVersion},           {"device", settings.device.str()},
                                       {"threads", at::get_num_threads()}, {"date", std::string(date.data(), length)}};
  return json_text(made);
}

namespace {

constexpr const char* kLock = ".invattn.lock";

/// What the experiments write, but for config.toml.
constexpr std::array kNames = {"metrics.jsonl",
                               "results.json",
                               "checkpoint.safetensors",
                               "weights.safetensors",
                               "model.safetensors",
                               "pictures.safetensors",
                               "evaluation.json",
                               "report.html",
                               "cells",
                               "maps",
                               "samples",
                               "tables",
                               "figures"};

/// Nothing, or an empty folder.
bool is_free(const std::filesystem::path& path) {
  const auto status = std::filesystem::symlink_status(path);
  return !std::filesystem::exists(status) || (std::filesystem::is_directory(status) && std::filesystem::is_empty(path));
}

/// Makes the folder and takes its lock, or says who has it. The file names its owner, and is gone when the owner is done.
FileDescriptor lock_of(const std::filesystem::path& folder, std::string_view origin) {
  make_folder(folder, origin);
  const std::filesystem::path path = folder / kLock;
  for (;;) {
    FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file) {
      fail(ErrorKind::kData, origin, "expected to write '", path.string(), "', got '", errno_text(errno),
           "'. Make the folder writable or choose another one.");
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return file;  // a file system without locks
      std::array<char, 32> owner{};
      const bool known = ::pread(file.get(), owner.data(), owner.size() - 1, 0) > 0;
      fail(ErrorKind::kUsage, origin, "expected a run that nobody is working on, got '", folder.string(), "', which ",
           known ? "process " + printable(owner.data()) : "another process", " is working on. Wait until it has ended, or stop it.");
    }
    // The owner before may have removed the file between the two calls.
    struct stat opened {
    }, named{};
    if (::fstat(file.get(), &opened) != 0 || ::stat(path.c_str(), &named) != 0 || opened.st_ino != named.st_ino) continue;
    const std::string owner = std::to_string(::getpid());
    if (::ftruncate(file.get(), 0) == 0) write_fully(file.get(), std::as_bytes(std::span(owner)));  // for the message above alone
    return file;
  }
}

[[noreturn]] void cannot_write(const std::filesystem::path& path, int problem, std::string_view origin) {
  fail(ErrorKind::kData, origin, "expected to write '", printable_path(path), "', got '", errno_text(problem),
       "'. Make room on the disk, then --resume.");
}

/// What AtomicFile leaves where a process is killed while it writes.
void remove_half_written(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::vector<std::filesystem::path> found;
  for (std::filesystem::recursive_directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(".invattn-") && name.ends_with(".tmp") && entry->is_regular_file(ignored)) found.push_back(entry->path());
  }
  for (const auto& path : found) std::filesystem::remove(path, ignored);
}

}  // namespace

OpenRunFolder::OpenRunFolder(std::filesystem::path lock_path, FileDescriptor lock)
    : lock_path_(std::move(lock_path)), lock_(std::move(lock)) {}

OpenRunFolder::OpenRunFolder(const RunSettings& settings, std::string_view origin)
    : OpenRunFolder(settings.folder / kLock, lock_of(settings.folder, origin)) {
  const bool holds_one = std::filesystem::exists(std::filesystem::symlink_status(settings.folder / "config.toml"));
  require(!holds_one || settings.resume, origin, "expected a folder without a run, got '", settings.folder.string(),
          "', which holds one. Continue it with --resume, or name another folder by --out.");
  require(holds_one || !settings.resume, origin, "expected a run to resume in '", settings.folder.string(),
          "', got a folder without config.toml. Leave out --resume, or name the folder of the run by --out.");
  for (const char* name : kNames) {
    require(holds_one || is_free(settings.folder / name), origin, "expected a folder for a new run, got '", settings.folder.string(),
            "', where '", name, "' would be overwritten. Name another folder by --out.");
  }
  remove_half_written(settings.folder);
}

OpenRunFolder::~OpenRunFolder() { ::unlink(lock_path_.c_str()); }

void append_metrics(const std::filesystem::path& folder, const std::string& line, std::string_view origin) {
  const std::filesystem::path path = folder / "metrics.jsonl";
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  const std::string whole = line + "\n";
  const int problem = file ? write_fully(file.get(), std::as_bytes(std::span(whole))).error : errno;
  if (problem != 0) cannot_write(path, problem, origin);
}

void sync_metrics(const std::filesystem::path& folder, std::string_view origin) {
  const std::filesystem::path path = folder / "metrics.jsonl";
  for (const auto& part : {path, folder}) {
    const FileDescriptor file(::open(part.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file && errno == ENOENT) continue;  // no line so far
    if (!file || (::fsync(file.get()) != 0 && errno != EINVAL)) cannot_write(part, errno, origin);
  }
}

void trim_metrics(const std::filesystem::path& folder, int64_t step, std::string_view origin) {
  const std::filesystem::path path = folder / "metrics.jsonl";
  std::istringstream in(std::filesystem::exists(path) ? read_regular_file(path, {.origin = origin, .what = "a file of a run"}) : "");
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool line_of_step = entry.is_object() && entry.contains("step") && entry["step"].is_number_integer() && !entry.contains("final");
    if (line_of_step && entry["step"].get<int64_t>() <= step) kept += line + "\n";
  }
  write_file_atomically(path, kept, origin);
}

}  // namespace invattn

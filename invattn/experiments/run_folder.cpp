#include "invattn/experiments/run_folder.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/version.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/printable.h"

namespace invattn {

MadeWith made_with(const RunSettings& settings) {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> date{};
  const std::size_t length = std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M UTC", &parts);
  MadeWith made{.command = settings.command,
                .invattn = kVersion,
                .torch = kTorchVersion,
                .device = settings.device.str(),
                .threads = at::get_num_threads(),
                .date = std::string(date.data(), length)};
  if (!settings.world.alone()) made.processes = settings.world.size();
  return made;
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

}  // namespace invattn

#include "invattn/train/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <sstream>

#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/posix_file.h"
#include "invattn/io/printable.h"
#include "invattn/io/regular_file.h"

namespace invattn {
namespace {

[[noreturn]] void cannot_write(const std::filesystem::path& path, int problem, std::string_view origin) {
  fail(ErrorKind::kData, origin, "expected to write '", printable_path(path), "', got '", errno_text(problem),
       "'. Make room on the disk, then --resume.");
}

}  // namespace

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
  int64_t number = 0;
  int64_t damaged = 0;  // the number of the first line that is
  std::string got;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (entry.is_object() && entry.contains("final")) continue;
    const bool line_of_step = entry.is_object() && entry.contains("step") && is_int64(entry["step"]);
    if (!line_of_step && damaged == 0) {
      damaged = number;
      got = line;
    }
    if (!line_of_step || entry["step"].get<int64_t>() > step) continue;
    // What a kill or a power cut leaves torn lies behind every line that a checkpoint has synced.
    if (damaged > 0) {
      fail(ErrorKind::kData, origin, "expected a JSON object with its step in line ", damaged, " of '", printable_path(path), "', got ",
           in_quotes(got), ", with good lines behind it. Copy the file from a backup, or remove the line.");
    }
    kept += line + "\n";
  }
  write_file_atomically(path, kept, origin);
}

}  // namespace invattn

#include "invattn/io/output_paths.h"

#include <sys/stat.h>

#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/printable.h"

namespace invattn {
namespace {

/// Files by their paths behind all links, and by device and number where they are there.
class Files {
 public:
  /// One that was added before and is the same file, or null.
  const std::filesystem::path* find(const std::filesystem::path& path) const {
    if (const auto found = by_path_.find(plain(path)); found != by_path_.end()) return &found->second;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return nullptr;
    const auto found = by_number_.find({status.st_dev, status.st_ino});
    return found == by_number_.end() ? nullptr : &found->second;
  }

  void add(const std::filesystem::path& path) {
    by_path_.emplace(plain(path), path);
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) by_number_.emplace(std::pair(status.st_dev, status.st_ino), path);
  }

 private:
  static std::string plain(const std::filesystem::path& path) {
    std::error_code problem;
    const auto whole = std::filesystem::absolute(path, problem);  // of what is not there, the canonical path would stay relative
    const auto result = std::filesystem::weakly_canonical(whole, problem);
    return (problem ? whole.lexically_normal() : result).string();
  }

  std::map<std::string, std::filesystem::path> by_path_;
  std::map<std::pair<dev_t, ino_t>, std::filesystem::path> by_number_;
};

}  // namespace

void require_separate_outputs(const std::vector<std::filesystem::path>& outputs, const std::vector<std::filesystem::path>& inputs,
                              std::string_view origin) {
  constexpr std::size_t kLongest = 400;
  Files read;
  for (const auto& input : inputs) read.add(input);
  Files written;
  for (const auto& output : outputs) {
    if (const auto* input = read.find(output)) {
      fail(ErrorKind::kUsage, origin, "expected a place of its own for each result, got '", printable(output.string(), kLongest),
           "', which would be written over the input '", printable(input->string(), kLongest), "'. Name another place to write to.");
    }
    if (const auto* other = written.find(output)) {
      fail(ErrorKind::kUsage, origin, "expected a place of its own for each result, got '", printable(output.string(), kLongest),
           "' for two of them (also '", printable(other->string(), kLongest), "'). Rename one of the inputs, or name different files.");
    }
    written.add(output);
  }
}

}  // namespace invattn

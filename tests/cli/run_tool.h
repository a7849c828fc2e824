#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace invattn::test {

struct ToolResult {
  int exit_code = -1;  ///< 128 + the signal's number where one ended it, as in a shell
  std::string out;     ///< standard output
  std::string err;     ///< standard error
};

/// A file that is gone when its owner is.
class TemporaryFile {
 public:
  TemporaryFile() {
    const int file = mkstemp(name_.data());
    if (file < 0) throw std::runtime_error("cannot make a temporary file");
    close(file);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { unlink(name_.c_str()); }

  const std::string& name() const { return name_; }

  std::string text() const {
    std::ifstream in(name_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string name_ = "/tmp/invattn-test-XXXXXX";
};

/// As the operating system wants them: pointers into `words`, closed by a null pointer.
inline std::vector<char*> c_strings(std::vector<std::string>& words) {
  std::vector<char*> pointers(words.size() + 1, nullptr);
  std::transform(words.begin(), words.end(), pointers.begin(), [](std::string& word) { return word.data(); });
  return pointers;
}

/// The built tool with these arguments and this folder as its working one, running. `settings` are "NAME=value" lines put before the
/// environment of the test.
class ToolProcess {
 public:
  /// `output`: a file for its standard output in place of what `wait` reads; "closed": none at all.
  explicit ToolProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& settings = {},
                       const std::string& folder = "/", const std::string& output = "") {
    std::vector<std::string> words = {INVATTN_TOOL};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::string> lines = settings;
    for (char** line = environ; *line != nullptr; ++line) lines.emplace_back(*line);
    std::vector<char*> argv = c_strings(words);
    std::vector<char*> environment = c_strings(lines);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (output == "closed") {
      posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
    } else {
      posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (output.empty() ? out_.name() : output).c_str(), O_WRONLY | O_TRUNC, 0);
    }
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err_.name().c_str(), O_WRONLY | O_TRUNC, 0);
    posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
    const int problem = posix_spawn(&child_, argv[0], &actions, nullptr, argv.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (problem != 0) throw std::runtime_error(std::string("cannot run ") + INVATTN_TOOL + ", error " + std::to_string(problem));
  }

  void send(int signal) const { kill(child_, signal); }
  pid_t id() const { return child_; }

  /// At most, of what was resident; known after `wait`.
  int64_t peak_kibibytes() const { return usage_.ru_maxrss; }

  ToolResult wait() const {
    int status = 0;
    while (wait4(child_, &status, 0, &usage_) < 0) {
      if (errno != EINTR) throw std::runtime_error("cannot wait for the tool");
    }
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), .out = out_.text(), .err = err_.text()};
  }

 private:
  // By files, not pipes: the tool may write as much as it likes to either stream while nobody reads.
  TemporaryFile out_;
  TemporaryFile err_;
  pid_t child_ = 0;
  mutable rusage usage_{};
};

/// Runs the tool and waits for it.
inline ToolResult run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& settings = {},
                           const std::string& folder = "/") {
  return ToolProcess(arguments, settings, folder).wait();
}

}  // namespace invattn::test

#pragma once

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace invattn {

/// What went wrong, as the tool's exit code says it.
enum class ErrorKind : int {
  kUsage = 2,         ///< a wrong argument, option, shape, dtype or configuration
  kNotConverged = 3,  ///< a solver gave up and the caller asked to be told by an exception
  kData = 4,          ///< a file or data set is missing, unreadable, truncated or hostile
};

/// Every error of the library. The text reads `[origin] what was expected, got what. Next step.`
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view origin, std::string_view message);

  ErrorKind kind() const { return kind_; }
  /// The text without its `[origin] `, to say it in other words.
  std::string_view message() const { return std::string_view(what()).substr(message_at_); }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
  std::size_t message_at_;
};

/// Throws an Error whose message is the parts written one after another.
template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, std::string_view origin, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(kind, origin, message.str());
}

/// Throws as `fail` does unless `condition` holds. For what a caller did wrong, never for our own invariants.
template <class... Parts>
void require(bool condition, std::string_view origin, const Parts&... parts) {
  if (!condition) fail(ErrorKind::kUsage, origin, parts...);
}

}  // namespace invattn

#include "invattn/core/error.h"

namespace invattn {
namespace {

std::string compose(std::string_view origin, std::string_view message) {
  std::string text;
  text.reserve(origin.size() + message.size() + 3);
  text.append("[").append(origin).append("] ").append(message);
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, std::string_view origin, std::string_view message)
    : std::runtime_error(compose(origin, message)), kind_(kind), message_at_(origin.size() + 3) {}

}  // namespace invattn

#pragma once

#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {

/// An error about fields of an options struct, by their names in `visit`. "guard.target" is a field of a struct in it, "variants[1].name"
/// one of a struct in a vector. Whoever knows where the values came from can say where to correct them (invattn/config/toml.h).
class FieldError : public Error {
 public:
  FieldError(const Error& error, std::vector<std::string> fields) : Error(error), fields_(std::move(fields)) {}

  /// Never empty. Where the error is about several that do not fit together, the one to look at first comes first.
  const std::vector<std::string>& fields() const { return fields_; }

 private:
  std::vector<std::string> fields_;
};

/// As `require`, of a check that concerns these fields.
template <class... Parts>
void require_fields(bool condition, std::string_view origin, std::initializer_list<std::string_view> fields, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw FieldError(Error(ErrorKind::kUsage, origin, message.str()), {fields.begin(), fields.end()});
}

template <class... Parts>
void require_field(bool condition, std::string_view origin, std::string_view field, const Parts&... parts) {
  require_fields(condition, origin, {field}, parts...);
}

/// Calls `check`, which knows nothing of fields: what it finds is about these.
template <class Check>
void check_fields(std::initializer_list<std::string_view> fields, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    throw FieldError(error, {fields.begin(), fields.end()});
  }
}

/// Validates a struct that is the field of another.
template <class Options>
void validate_field(const std::string& field, const Options& options) {
  try {
    options.validate();
  } catch (const FieldError& error) {
    std::vector<std::string> fields = error.fields();
    for (std::string& name : fields) name.insert(0, field + ".");
    throw FieldError(error, std::move(fields));
  }
}

}  // namespace invattn

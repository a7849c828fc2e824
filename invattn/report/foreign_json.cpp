#include "invattn/report/foreign_json.h"

#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/io/regular_file.h"

namespace invattn::reporting {

using nlohmann::json;

std::string read_text(const std::filesystem::path& path) {
  return read_regular_file(
      path, {.origin = kOrigin, .what = "a file of a run", .next_step = "Name the folder of a run (it holds results.json)."});
}

Object::Object(const json& value, std::string where) : value_(value), where_(std::move(where)) {
  if (!value_.is_object())
    fail(ErrorKind::kData, kOrigin, where_, ": expected an object, got ", json_detail::describe(value_), ". ", kNextStep);
}

void Object::wrong(const std::string& name, std::string_view expected) const {
  const auto found = value_.find(name);
  fail(ErrorKind::kData, kOrigin, where_, ": expected ", expected, " for ", in_quotes(name), ", got ",
       found == value_.end() ? std::string("nothing") : json_detail::describe(*found), ". ", kNextStep);
}

const json* Object::find(const std::string& name) const {
  const auto found = value_.find(name);
  return found == value_.end() ? nullptr : &*found;
}

std::string Object::text(const std::string& name) const {
  const json* found = find(name);
  if (found == nullptr || !found->is_string()) wrong(name, "a string");
  return found->get<std::string>();
}

double Object::number(const std::string& name) const {
  const json* found = find(name);
  if (found == nullptr || !(found->is_null() || found->is_number())) wrong(name, "a number or null");
  return found->is_null() ? kNotFinite : found->get<double>();
}

std::int64_t Object::integer(const std::string& name) const {
  const json* found = find(name);
  if (found == nullptr || !is_int64(*found)) wrong(name, "a 64-bit integer");
  return found->get<std::int64_t>();
}

std::vector<double> Object::numbers(const std::string& name) const {
  const json* found = find(name);
  if (found == nullptr || !found->is_array()) wrong(name, "an array of numbers");
  std::vector<double> result;
  result.reserve(found->size());
  for (const json& value : *found) {
    if (!value.is_null() && !value.is_number()) wrong(name, "an array of numbers and nulls");
    result.push_back(value.is_null() ? kNotFinite : value.get<double>());
  }
  return result;
}

std::vector<std::string> Object::texts(const std::string& name) const {
  const json* found = find(name);
  if (found == nullptr || !found->is_array()) wrong(name, "an array of strings");
  std::vector<std::string> result;
  for (const json& value : *found) {
    if (!value.is_string()) wrong(name, "an array of strings");
    result.push_back(value.get<std::string>());
  }
  return result;
}

Object Object::object(const std::string& name) const {
  const json* found = find(name);
  if (found == nullptr) wrong(name, "an object");
  return {*found, where_ + ", " + in_quotes(name)};
}

std::vector<Object> Object::objects(const std::string& name) const {
  const json* found = find(name);
  if (found == nullptr || !found->is_array()) wrong(name, "an array of objects");
  std::vector<Object> result;
  result.reserve(found->size());
  for (const json& value : *found) {
    std::string where = where_;
    where.append(", ").append(in_quotes(name)).append(" ").append(std::to_string(result.size()));
    result.emplace_back(value, std::move(where));
  }
  return result;
}

namespace {

Experiment experiment_of(const Object& results) {
  if (results.find("experiment") != nullptr) {
    const std::string written = results.text("experiment");
    for (const auto& [experiment, name] : EnumNames<Experiment>::kNames) {
      if (name == written) return experiment;
    }
  } else if (results.find("rows") != nullptr) {
    return Experiment::kReconstruction;
  } else if (results.find("validation") != nullptr) {
    return Experiment::kDensity;
  } else if (results.find("arms") != nullptr) {
    return Experiment::kDensityStudy;
  }
  results.wrong("experiment", list_names("", all_names<Experiment>()));
}

}  // namespace

ResultsFile read_results(const std::filesystem::path& folder) {
  const std::filesystem::path study = folder / "study.json";
  const std::filesystem::path path = std::filesystem::is_regular_file(study) ? study : folder / "results.json";
  if (!std::filesystem::is_regular_file(path)) {
    if (std::filesystem::is_regular_file(folder / "config.toml")) {
      fail(ErrorKind::kData, kOrigin, "expected a run with results.json, got ", folder.string(),
           ", which has none yet: it is under way, or was stopped. Let it come to its end, by --resume where it was stopped.");
    }
    fail(ErrorKind::kData, kOrigin, "expected the folder of a run, with results.json in it, got ", folder.string(),
         ". Name the folder that `invattn reconstruct`, `density train` or `detect train` wrote.");
  }
  ResultsFile results{.folder = folder, .path = path, .content = parse_json(read_text(path), std::string(kOrigin) + ", " + path.string())};
  results.experiment = experiment_of(results.object());
  return results;
}

Provenance read_provenance(const ResultsFile& results) {
  // A trailing slash leaves an empty file name.
  const std::filesystem::path plain = std::filesystem::absolute(results.folder).lexically_normal();
  const Object made_with = results.object().object("made_with");
  const std::int64_t threads = made_with.integer("threads");
  const std::filesystem::path config = results.folder / "config.toml";
  return {.name = (plain.has_filename() ? plain : plain.parent_path()).filename().string(),
          .command = made_with.text("command"),
          .made_with = "invattn " + made_with.text("invattn") + ", torch " + made_with.text("torch") + ", " + made_with.text("device") +
                       ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads"),
          .date = made_with.text("date"),
          .config = std::filesystem::is_regular_file(config) ? read_text(config) : std::string()};
}

}  // namespace invattn::reporting

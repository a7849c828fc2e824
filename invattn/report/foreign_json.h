#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/report/experiment.h"
#include "invattn/report/run.h"

// Reading of run folders, which may be damaged or not ours. For .cpp files only, as invattn/io/json_fields.h.
namespace invattn::reporting {

inline constexpr std::string_view kOrigin = "report";
inline constexpr std::string_view kNextStep =
    "The file is damaged or not of a run: run the experiment again with --resume, or name another folder.";

/// All of a file; an Error(kData) where it cannot be read.
std::string read_text(const std::filesystem::path& path);

/// An object of a foreign file, which knows where it comes from. The value must outlive it.
class Object {
 public:
  Object(const nlohmann::json& value, std::string where);

  [[noreturn]] void wrong(const std::string& name, std::string_view expected) const;

  const nlohmann::json* find(const std::string& name) const;
  std::string text(const std::string& name) const;
  double number(const std::string& name) const;  ///< null stands for a number that was not finite
  std::int64_t integer(const std::string& name) const;
  std::vector<double> numbers(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  Object object(const std::string& name) const;
  std::vector<Object> objects(const std::string& name) const;

 private:
  const nlohmann::json& value_;
  std::string where_;
};

/// RUN/results.json, or study.json of a study: what a run is of, and what came of it.
struct ResultsFile {
  std::filesystem::path folder;
  std::filesystem::path path;
  Experiment experiment = Experiment::kReconstruction;
  nlohmann::json content;

  Object object() const { return {content, path.string()}; }
};

/// Where there is none, an Error(kData) that tells a training that has not ended from a folder of something else. "experiment" says what the
/// run is of; in files of older versions, which lack it, what one experiment alone writes: "rows", "validation" or "arms".
ResultsFile read_results(const std::filesystem::path& folder);

/// From "made_with", and RUN/config.toml.
Provenance read_provenance(const ResultsFile& results);

}  // namespace invattn::reporting

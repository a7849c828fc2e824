#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <nlohmann/json.hpp>

#include "invattn/io/json_fields.h"
#include "invattn/report/run_record.h"

// Reading of run folders, which may be damaged or not ours. What cannot be read is an Error(kData) that names the file.
namespace invattn::reporting {

inline constexpr std::string_view kOrigin = "report";
inline constexpr std::string_view kNextStep =
    "The file is damaged, of another version or not of a run: run the experiment again with --resume, or name another folder.";

/// All of a file.
std::string read_text(const std::filesystem::path& path);

/// The origin of errors in it: "report, PATH".
std::string origin_of(const std::filesystem::path& path);

nlohmann::json read_json(const std::filesystem::path& path);

template <HasFields Record>
Record read_record(const std::filesystem::path& path) {
  return record_from_json<Record>(read_json(path), origin_of(path), kNextStep);
}

/// Calls `take` with the JSON of each line of RUN/metrics.jsonl and the origin of errors in it.
void read_metrics(const std::filesystem::path& run, const std::function<void(const nlohmann::json& line, const std::string& origin)>& take);

/// RUN/results.json, or study.json of a study.
struct ResultsFile {
  std::filesystem::path folder;
  std::filesystem::path path;
  Experiment experiment = Experiment::kReconstruction;
  nlohmann::json content;

  [[noreturn]] void wrong(std::string_view expected, std::string_view got) const;

  /// As one of the experiment's records, which knows then where it is from.
  template <class Record>
  Record read() const {
    auto record = record_from_json<Record>(content, origin_of(path), kNextStep);
    place(record);
    return record;
  }

 private:
  void place(RunRecord& record) const;
};

/// Where there is none, an error that tells a training that has not ended from a folder of something else.
ResultsFile read_results(const std::filesystem::path& folder);

}  // namespace invattn::reporting

#include "invattn/experiments/run_folder.h"

#include <ATen/Parallel.h>

#include <array>
#include <ctime>
#include <fstream>

#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/core/version.h"
#include "invattn/io/atomic_file.h"

namespace invattn {

std::string made_with(const RunSettings& settings) {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> date{};
  const std::size_t length = std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M UTC", &parts);
  const nlohmann::ordered_json made = {{"command", settings.command},      {"invattn", kVersion},
                                       {"torch", kTorchVersion},           {"device", settings.device.str()},
                                       {"threads", at::get_num_threads()}, {"date", std::string(date.data(), length)}};
  return made.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

bool open_run_folder(const RunSettings& settings, std::string_view origin) {
  make_folder(settings.folder, origin);
  const bool holds_one = std::filesystem::exists(settings.folder / "config.toml");
  require(!holds_one || settings.resume, origin, "expected a folder without a run, got '", settings.folder.string(),
          "', which holds one. Continue it with --resume, or name another folder by --out.");
  require(holds_one || !settings.resume, origin, "expected a run to resume in '", settings.folder.string(),
          "', got a folder without config.toml. Leave out --resume, or name the folder of the run by --out.");
  return holds_one;
}

void append_metrics(const std::filesystem::path& folder, const std::string& line, std::string_view origin) {
  std::ofstream out(folder / "metrics.jsonl", std::ios::app);
  out << line << std::endl;
  if (!out) {
    fail(ErrorKind::kData, origin, "expected to write '", (folder / "metrics.jsonl").string(),
         "', which failed. Make room on the disk, then --resume.");
  }
}

void trim_metrics(const std::filesystem::path& folder, int64_t step, std::string_view origin) {
  std::ifstream in(folder / "metrics.jsonl");
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool line_of_step = entry.is_object() && entry.contains("step") && entry["step"].is_number_integer() && !entry.contains("final");
    if (line_of_step && entry["step"].get<int64_t>() <= step) kept += line + "\n";
  }
  write_file_atomically(folder / "metrics.jsonl", kept, origin);
}

}  // namespace invattn

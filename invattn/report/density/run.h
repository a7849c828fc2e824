#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "invattn/report/density/record.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {

struct DensityResult : DensityFigures {
  std::string split{};  ///< "held-out" or "test"

  std::string method() const { return estimator.substr(0, estimator.find('(')); }
  bool unbiased() const { return method() != "series"; }
  bool inverted() const { return inverse_images > 0 && inverse_failures == 0; }
};

/// Figures along a training; lists of one length.
struct DensityCurve {
  std::vector<double> steps{};
  std::vector<double> seconds{};
  std::vector<double> bits{};
  std::vector<double> gradient_norm{};  ///< empty for looks at held-out images
  std::vector<double> largest{};        ///< largest local constant of the attention; 0: none; empty for looks
  std::vector<double> error{};          ///< standard error; of looks only
};

struct DensitySample {
  std::int64_t step = 0;
  std::filesystem::path path;
};

/// The folder of a density training that has come to its end.
struct DensityRecord : DensityResults {
  std::string label{};    ///< what the page calls it: its attention, and its folder where that is not enough
  std::string dataset{};  ///< cifar10, …, two-moons
  bool plane = false;
  std::vector<DensityResult> results{};  ///< of the held-out images, then those of evaluation.json
  DensityCurve training{};
  DensityCurve looks{};  ///< at held-out images, the last of them at the end
  std::vector<DensitySample> samples{};

  /// The figure to quote: unbiased, on test images where there is such.
  const DensityResult& best() const;
  /// "CIFAR-10", "synthetic 8x8", "two-moons".
  std::string title() const;
  const char* unit() const { return plane ? "nats per point" : "bits per dimension"; }
  const char* things() const { return plane ? "points" : "images"; }
};

/// Reads beside the results metrics.jsonl, evaluation.json where there is one, and the names of the pictures in samples/.
DensityRecord read_density_record(const ResultsFile& results);

/// Gives each record its label. They must be of the same data, else it is a usage error.
void name_apart(std::vector<DensityRecord>& records);

}  // namespace invattn::reporting

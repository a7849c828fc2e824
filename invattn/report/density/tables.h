#pragma once

#include <string>
#include <vector>

#include "invattn/report/density/run.h"
#include "invattn/report/table.h"

namespace invattn::reporting {

/// What was found, in one sentence.
std::string density_headline(const std::vector<DensityRecord>& records);

/// One line per run: the figure to quote, the inverse, size and time.
Table density_results(const std::vector<DensityRecord>& records);

/// Every look at a finished flow: held-out and test images, each estimator.
Table density_evaluations(const std::vector<DensityRecord>& records);

/// The loss at equal steps and after equal time; needs several runs.
Table density_at_equal_cost(const std::vector<DensityRecord>& records);

/// Whether the paper prints a table of this data: CIFAR-10 at 32x32.
bool paper_has_density(const DensityRecord& record);

/// The paper's table of flow models, and these runs below.
Table density_against_paper(const std::vector<DensityRecord>& records);

Table density_certificates(const std::vector<DensityRecord>& records);

/// Those of the above that say something about these runs, in the order of the page; without the certificates.
std::vector<Table> density_tables(const std::vector<DensityRecord>& records);

/// "4.0553 ± 0.0241"; "not finite".
std::string with_error(const DensityResult& result);

/// "1,000 of 1,000", or "not looked at".
std::string inverses_text(const DensityResult& result);

}  // namespace invattn::reporting

#pragma once

#include "invattn/logdet/log_det.h"

namespace invattn {

/// log_det by the full Jacobian. Expects checked arguments: call `log_det`.
LogDet exact_log_det(const LogDetProblem& problem, const ExactLogDet& options);

}  // namespace invattn

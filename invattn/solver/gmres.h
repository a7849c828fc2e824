#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace invattn {

/// s with |A s - right| <= forcing |right| for each row of `right` (n, d), as far as at most `krylov` products with A lead. `product` is
/// v -> A v over all rows, each on its own: a row whose products are not finite spoils no other, and what it gets is finite.
at::Tensor gmres(const std::function<at::Tensor(const at::Tensor&)>& product, const at::Tensor& right, const std::vector<double>& forcing,
                 int64_t krylov);

/// The Euclidean norm of each row, (n, d) -> (n) float64.
at::Tensor row_norms(const at::Tensor& rows);

}  // namespace invattn

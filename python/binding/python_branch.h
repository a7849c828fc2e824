#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "invattn/nn/branch.h"

namespace invattn::python {

namespace py = pybind11;

/// A torch.nn.Module of Python as the branch of a residual block: g(x) = scale module(x), differentiated by autograd.
class PythonBranch : public BranchImpl {
 public:
  /// `scale`, (), belongs to the caller, which saves it with its weights.
  PythonBranch(py::object module, Policy policy, double constant, at::Tensor scale);
  ~PythonBranch() override;

  at::Tensor forward(const at::Tensor& x) override;
  void scale_by(const at::Tensor& factor) override;
  bool takes_images() const override { return false; }
  Policy policy() const override { return policy_; }
  double constant() const override { return constant_; }
  std::string describe() const override;

  /// What the module's parameters are at the moment: they are asked for gradients and are in the digest of a certificate.
  void refresh(const std::vector<std::pair<std::string, at::Tensor>>& parameters);

 private:
  py::object module_;
  Policy policy_;
  double constant_;
  at::Tensor scale_;
};

}  // namespace invattn::python

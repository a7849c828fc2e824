#include "python_branch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "invattn/core/error.h"
#include "invattn/core/range.h"

namespace invattn::python {

PythonBranch::PythonBranch(py::object module, Policy policy, double constant, at::Tensor scale)
    : module_(std::move(module)), policy_(policy), constant_(constant) {
  require(policy_ == Policy::kGuarded || policy_ == Policy::kPaper, "InvertibleResidual",
          "expected the policy guarded or paper over a branch written in Python, of whose weights nothing can be proved, got ", policy_,
          ". Use guarded, with a Guard while it trains.");
  require(constant_ > 0 && constant_ < 1, "InvertibleResidual", "expected a constant above 0 and below 1, got ", constant_,
          ". Correct the value.");
  scale_ = register_buffer("scale", std::move(scale));
}

PythonBranch::~PythonBranch() {
  if (Py_IsInitialized() == 0) {  // nobody is left to give it back to
    module_.release();
    return;
  }
  const py::gil_scoped_acquire gil;
  module_ = py::object();
}

at::Tensor PythonBranch::forward(const at::Tensor& x) {
  at::Tensor value;
  {
    const py::gil_scoped_acquire gil;
    const py::object result = module_(x);
    require(THPVariable_Check(result.ptr()), "InvertibleResidual", "expected the branch to return a tensor, got ",
            py::cast<std::string>(py::type::of(result).attr("__name__")), ". Return g(x) alone.");
    value = py::cast<at::Tensor>(result);
  }
  require(value.sizes() == x.sizes() && value.scalar_type() == x.scalar_type() && value.device() == x.device(), "InvertibleResidual",
          "expected the branch to return a tensor like its argument, ", x.scalar_type(), " ", x.sizes(), " on ", x.device(), ", got ",
          value.scalar_type(), " ", value.sizes(), " on ", value.device(), ". Move the branch, or correct it.");
  return scale_ * value;
}

void PythonBranch::scale_by(const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  scale_.mul_(factor.to(scale_.options()));
}

std::string PythonBranch::describe() const {
  fail(ErrorKind::kUsage, "describe",
       "expected parts of the library, got a branch written in Python, which a model file cannot hold. Save its state_dict() by "
       "torch.save.");
}

void PythonBranch::refresh(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  parameters_.clear();
  for (const auto& [name, tensor] : parameters) parameters_.insert(name, tensor);
}

}  // namespace invattn::python

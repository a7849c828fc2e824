#pragma once

#include <pybind11/pybind11.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "invattn/nn/bijection.h"
#include "invattn/nn/branch.h"

namespace invattn::python {

namespace py = pybind11;

/// A module of the library as the package's modules hold it. The weights belong to the Python side, which calls `rebind` where one of its
/// tensors is another than before; this is the machine that computes with them.
class Native {
 public:
  explicit Native(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  /// "attention", "convolution", "python", "residual", "sequential", "squeeze", "actnorm", "flow", "detector", or "part": of one of these.
  std::string kind() const;
  /// What it was built from, where it is no chain and no residual.
  py::object options() const;
  std::string describe() const;
  std::string text() const;  ///< its line in a printed module
  bool same_as(const Native& other) const { return module_ == other.module_; }

  std::vector<std::pair<std::string, Native>> children() const;
  std::vector<std::pair<std::string, at::Tensor>> parameters() const;  ///< its own, without those of children
  std::vector<std::pair<std::string, at::Tensor>> buffers() const;

  void rebind(const std::string& name, const at::Tensor& tensor) const;
  /// The buffer and `tensor` are one storage from now on.
  void share_buffer(const std::string& name, const at::Tensor& tensor) const;
  void train(bool on) const { module_->train(on); }

  torch::nn::Module& module() const { return *module_; }
  const std::shared_ptr<torch::nn::Module>& pointer() const { return module_; }

  /// The module as a T, or a usage error that says what it is.
  template <class T>
  T& as(const char* what) const;
  template <class T>
  std::shared_ptr<T> shared_as(const char* what) const;

 private:
  [[noreturn]] void refuse(const char* what) const;
  std::shared_ptr<torch::nn::Module> module_;
};

template <class T>
T& Native::as(const char* what) const {
  auto* result = dynamic_cast<T*>(module_.get());
  if (result == nullptr) refuse(what);
  return *result;
}

template <class T>
std::shared_ptr<T> Native::shared_as(const char* what) const {
  auto result = std::dynamic_pointer_cast<T>(module_);
  if (result == nullptr) refuse(what);
  return result;
}

}  // namespace invattn::python

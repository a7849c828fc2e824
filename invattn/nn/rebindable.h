#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace invattn {

/// A module whose parameters others may replace by tensors of their own: what registers them elsewhere (a Python module), calls it with
/// other weights for once (torch.func.functional_call), or assigns what it loaded. Members that hold a parameter are handles of the
/// registered tensor and have to follow.
class RebindableModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// `tensor` is the parameter `name` of this very module from now on, graph and all; of the same shape, in
  /// float32 or float64, or a usage error.
  void rebind(const std::string& name, const at::Tensor& tensor);

 protected:
  /// Points the member that holds the parameter `name` at `tensor`. The default refuses: a member that did not follow would not be noticed.
  virtual void rebound(const std::string& name, const at::Tensor& tensor);
};

/// The parameter with this dotted name, of a module below `root` or of itself.
void rebind(torch::nn::Module& root, const std::string& name, const at::Tensor& tensor);

}  // namespace invattn

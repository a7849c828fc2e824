#pragma once

#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "invattn/nn/bijection.h"
#include "invattn/ops/channel_affine.h"

namespace invattn {

struct ActNormOptions {
  int64_t channels = 0;  ///< C of the input; has to be given
  double follow = 0;     ///< 0: scale and shift are learned; else they follow the batches, and keep this much of themselves with each

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("channels", self.channels, "channels of the input; has to be given");
    field("follow", self.follow,
          "0: scale and shift are learned; else they follow the batches, and keep this much of themselves with each");
  }
};

/// y = (x + shift) exp(log_scale), per channel of images (B, C, H, W) or sequences (B, N, C), of which padding neither counts nor changes.
/// The first batch in training mode sets both so that y has mean 0 and variance 1. Then they are weights like others; or, with `follow`,
/// every batch in training mode moves them a little towards what would make it so, and no gradient does: what lies behind is given numbers
/// of the same size however the layers before it change. They are then statistics of the weights that were trained: other weights, such as
/// an average of them, need others (change_weights in train/judged_flow.h).
class ActNormImpl : public BijectionImpl {
 public:
  explicit ActNormImpl(ActNormOptions options);

  using BijectionImpl::forward_log_det;
  using BijectionImpl::inverse;
  at::Tensor forward(const at::Tensor& x, const Given& given = {}) override;
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given = {}) override;
  Solution inverse(const at::Tensor& y, const SolverOptions& options, const Given& given = {}) override;
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

  bool follows() const { return options_.follow > 0; }
  const ActNormOptions& options() const { return options_; }

  /// Sets scale and shift to where following these batches, again and again and slowly, would take them: the mean over the batches of what
  /// would give each of them mean 0 and variance 1, larger ones counting more.
  void settle(const std::vector<at::Tensor>& batches);

 protected:
  void rebound(const std::string& name, const at::Tensor& tensor) override { (name == "shift" ? shift_ : log_scale_) = tensor; }

 private:
  void check(const at::Tensor& x, const Given& given) const;
  ChannelAffine pass(const at::Tensor& x, const Given& given);
  ChannelAffine pass_images(const at::Tensor& x);
  bool start(const at::Tensor& x);  // false where it was started in another process
  void set(const at::Tensor& shift, const at::Tensor& log_scale);
  void follow(const at::Tensor& x);

  ActNormOptions options_;
  at::Tensor log_scale_, shift_;  // (C), weights or, with `follow`, buffers
  at::Tensor started_;            // 1 once the first batch has been seen; floating, because Module::to converts every buffer
  bool seen_ = false;             // that `started_` is 1: asked once, or every training step would wait for the device
};
TORCH_MODULE(ActNorm);

}  // namespace invattn

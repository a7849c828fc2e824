#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace invattn {

/// A piece of work that is the same every time, on a CUDA device as one launch: a training step of some hundred small kernels waits for the
/// host to launch them far longer than it computes.
///
///   CapturedStep step(device, [&] { optimizer.zero_grad(); loss = criterion(network->forward(x)); loss.backward(); optimizer.step(); });
///   for (...) { x.copy_(batch); step(); }
///
/// The first calls run the work as it is, so that everything is loaded and allocated; the next records it as a CUDA graph, and from then on
/// the graph is launched. So the work must read and write the same tensors at every call (x above is copied into, not replaced; the results
/// of the last call lie where they lay), must not depend on numbers of the host that change, and must not wait for the device (`item`).
/// Random numbers of torch's default generator are drawn anew at each call. On the CPU, and in a build without CUDA, it is always run as it is.
class CapturedStep {
 public:
  /// Calls that run the work as it is.
  static constexpr int kWarmUps = 3;

  /// Several steps of which one runs at a time may share their memory: `beside` is another of them, which must live as long.
  CapturedStep(c10::Device device, std::function<void()> work, const CapturedStep* beside = nullptr);
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  void operator()();

  /// True once calls launch the graph.
  bool captured() const;

 private:
  struct Graph;
  std::function<void()> work_;
  std::unique_ptr<Graph> graph_;  // none where there is nothing to capture
};

}  // namespace invattn

#include "invattn/train/captured_step.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <string>
#include <utility>

#include "invattn/core/error.h"

namespace invattn {

/// The work runs on a stream of its own from the first call on: nodes of the autograd graph remember the stream they were made on, and a
/// capture must not meet another one.
struct CapturedStep::Graph {
  Graph(c10::Device device, const Graph* other)
      : stream(other != nullptr ? other->stream : c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        pool(other != nullptr ? other->pool : at::cuda::graph_pool_handle()) {}

  /// Runs `body` on the own stream, after what the current one has still to do, and before what it is given next.
  void beside(const std::function<void()>& body) {
    const auto outer = c10::cuda::getCurrentCUDAStream(stream.device_index());
    stream.synchronize();
    outer.synchronize();
    {
      const c10::cuda::CUDAStreamGuard guard(stream);
      body();
    }
    stream.synchronize();
  }

  void capture(const std::function<void()>& work) {
    c10::cuda::CUDACachingAllocator::emptyCache();  // a graph has memory of its own: what the calls before it left would stand beside it
    graph.capture_begin(pool);
    try {
      work();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      try {
        graph.capture_end();
      } catch (const std::exception&) {  // the capture is void, as it should be
      }
      fail(ErrorKind::kUsage, "CapturedStep", "expected work that can be recorded as a CUDA graph, got: ", text,
           ". Work that waits for the device or copies from the host has to stay outside, or run without CapturedStep.");
    }
    graph.capture_end();
    captured = true;
  }

  c10::cuda::CUDAStream stream;
  c10::MempoolId_t pool;
  at::cuda::CUDAGraph graph;
  int warm_ups = 0;
  bool captured = false;
};

CapturedStep::CapturedStep(c10::Device device, std::function<void()> work, const CapturedStep* beside)
    : work_(std::move(work)),
      graph_(device.is_cuda() ? std::make_unique<Graph>(device, beside != nullptr ? beside->graph_.get() : nullptr) : nullptr) {}
CapturedStep::~CapturedStep() = default;

void CapturedStep::operator()() {
  if (!graph_) {
    work_();
  } else if (graph_->warm_ups < kWarmUps) {
    graph_->beside(work_);
    ++graph_->warm_ups;
  } else {
    if (!graph_->captured) graph_->beside([this] { graph_->capture(work_); });
    graph_->graph.replay();
  }
}

bool CapturedStep::captured() const { return graph_ && graph_->captured; }

}  // namespace invattn

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "invattn/nn/guard.h"
#include "native.h"

namespace invattn::python {
namespace {

/// A Guard over residual blocks that lie anywhere in a network of Python's.
class GuardedBlocks {
 public:
  GuardedBlocks(const std::vector<std::pair<std::string, Native>>& blocks, const GuardOptions& options)
      : network_(std::make_shared<Network>(blocks)), guard_(*network_, options) {}

  Guard& guard() { return guard_; }

 private:
  struct Network : torch::nn::Module {
    explicit Network(const std::vector<std::pair<std::string, Native>>& blocks) {
      int64_t number = 0;
      for (const auto& [name, block] : blocks) register_module(std::to_string(number++), block.pointer());
    }
  };
  std::shared_ptr<Network> network_;
  Guard guard_;
};

}  // namespace

void bind_guard(py::module_& m) {
  using WithoutGil = py::call_guard<py::gil_scoped_release>;
  py::class_<GuardedBlocks>(m, "GuardedBlocks")
      .def(py::init<const std::vector<std::pair<std::string, Native>>&, const GuardOptions&>())
      .def("due", [](GuardedBlocks& self, int64_t step, int64_t batch) { return self.guard().due(step, batch); })
      .def(
          "penalty",
          [](GuardedBlocks& self, const std::optional<at::Tensor>& images, int64_t count) {
            return self.guard().penalty(images.value_or(at::Tensor()), count);
          },
          WithoutGil())
      .def(
          "last_largest", [](GuardedBlocks& self) { return self.guard().last_largest(); }, WithoutGil())
      .def("size", [](GuardedBlocks& self) { return self.guard().size(); })
      .def(
          "after_step", [](GuardedBlocks& self) { self.guard().after_step(); }, WithoutGil())
      .def(
          "hold", [](GuardedBlocks& self) { self.guard().hold(); }, WithoutGil())
      .def("finish",
           [](GuardedBlocks& self, const py::function& forward, const std::vector<at::Tensor>& batches, const std::string& data) {
             const py::gil_scoped_release free;
             return self.guard().finish(
                 [&forward](const at::Tensor& x) {
                   const py::gil_scoped_acquire gil;
                   forward(x);
                 },
                 batches, data);
           })
      .def("constants", [](GuardedBlocks& self) { return self.guard().constants(); })
      .def("state", [](GuardedBlocks& self) { return self.guard().state(); })
      .def("restore", [](GuardedBlocks& self, const std::map<std::string, at::Tensor>& state) { self.guard().restore(state); });
}

}  // namespace invattn::python

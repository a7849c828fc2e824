// The library on one page: make a block, train it as a density model, invert it, keep it, and read what it promises.
#include <iomanip>
#include <iostream>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>

#include "invattn/invattn.h"

using namespace invattn;

int run() {
  at::manual_seed(0);
  at::set_num_threads(1);  // images this small gain nothing from more

  // Images the library makes itself, in [-0.5, 0.5): 64 to train on, 16 to try it on.
  const auto images = dequantise(dead_leaves({.count = 80, .height = 16, .width = 16}));  // (80, 3, 16, 16)
  const auto train = images.slice(0, 0, 64);
  const auto test = images.slice(0, 64, 80);

  // Squeeze makes 12 channels of 3; the block is x + g(x) with an attention g. The policy is guarded unless another is asked for.
  InvertibleAttention block(AttentionOptions{.channels = 12, .kind = AttentionKind::kConcatenation});
  Sequential model{Squeeze(), block};

  // Maximum likelihood under a standard normal z. The guard is three lines: make it, add its penalty, call it after each step.
  Guard guard(*model, {.fraction = 1});  // few images: evaluate all of them in every step
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  const auto loss_of = [&](const at::Tensor& x) {
    const auto [z, log_det] = model->forward_log_det(x, SeriesLogDet{.terms = 10});
    return (z.square().flatten(1).sum(1) / 2 - log_det.value).mean() / x[0].numel();  // nats per entry, but for a constant
  };
  for (int step = 0; step <= 60; ++step) {
    const auto likelihood = loss_of(train);
    const auto loss = likelihood + guard.penalty();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    guard.after_step();
    if (step % 20 == 0) {
      std::cout << std::setprecision(3) << "step " << std::setw(2) << step << ": loss " << likelihood.item<double>()
                << ", constant of g about " << guard.last_largest() << "\n";
    }
  }
  guard.finish([&](const at::Tensor& x) { model->forward(x); }, {train}, "64 training images");

  // There and back, on images it has not seen.
  model->eval();
  const at::NoGradGuard no_gradients;
  const auto z = model->forward(test);
  const auto [x, report] = model->inverse(z, AndersonOptions{.tolerance = 1e-6});
  std::cout << report.brief() << "\n"
            << "largest error in grey levels: " << (to_pixels(x) - to_pixels(test)).abs().max().item<double>() << "\n";

  // Weights, options and certificate in one safetensors file.
  save("hello.safetensors", *model);
  const auto loaded = load("hello.safetensors");
  std::cout << "loaded: " << (loaded->forward(test).equal(z) ? "the same function" : "ANOTHER function") << "\n";
  for (const auto& stored : certificates_of(*loaded)) std::cout << stored.certificate.text() << "\n";
  return report.usable() ? 0 : static_cast<int>(ErrorKind::kNotConverged);
}

int main() {
  try {
    return run();
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return error.exit_code();
  }
}

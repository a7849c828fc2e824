#include "bench.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <iostream>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "gpu_driver.h"
#include "invattn/core/error.h"
#include "invattn/core/version.h"
#include "invattn/report/table.h"
#include "machine.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;

std::string today() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts)};
}

}  // namespace

void BenchArguments::add_to(CLI::App& command) {
  command.add_option("--device", device_names, "auto, cpu, cuda, or all: the CPU, and a GPU where there is one")->capture_default_str();
  add_threads(command, threads);
  command.add_option("--repeats", repeats, "Timed runs (default: by how long they take)")->check(CLI::Range(1, 100000));
  command.add_flag("--json", json, "Print one JSON object with the machine and the rows");
}

std::vector<at::Device> BenchArguments::devices() const {
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  std::vector<at::Device> devices;
  if (names_all(device_names)) {
    devices.emplace_back(at::kCPU);
    if (const at::Device best = device_named("auto", kBench); !best.is_cpu()) devices.push_back(best);
    return devices;
  }
  for (const std::string& name : device_names) devices.push_back(device_named(name, kBench));
  return devices;
}

at::Device BenchArguments::device() const {
  const std::vector<at::Device> all = devices();
  require(all.size() == 1, kBench, "expected one device, got ", all.size(), ". Choose it by --device cpu or --device cuda.");
  return all.front();
}

CLI::App* add_benchmark(CLI::App& bench, const std::string& name, const std::string& description, const std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand(name, description);
  command->callback([&bench, name, run] {
    for (const CLI::Option* option : bench.get_options()) {
      require(option->count() == 0, kBench, "expected ", option->get_name(), " behind '", name, "', got it before. Write: invattn bench ",
              name, " ", option->get_name());
    }
    run();
  });
  return command;
}

bool names_all(const std::vector<std::string>& words) { return words.size() == 1 && words.front() == "all"; }

ordered_json machine_json(const std::vector<at::Device>& devices) {
  const Cpu cpu = read_cpu();
  ordered_json json = {{"cpu", cpu.model},
                       {"cores", cpu.cores},
                       {"threads", at::get_num_threads()},
                       {"instruction_set", std::string(kernel_instruction_set())},
                       {"torch_capability", at::get_cpu_capability()},
                       {"gpu", nullptr},
                       {"invattn", kVersion},
                       {"torch", kTorchVersion},
                       {"date", today()},
                       {"command", command_line()}};
  const bool uses_gpu = std::any_of(devices.begin(), devices.end(), [](at::Device device) { return !device.is_cpu(); });
  if (const GpuDriver driver = ask_gpu_driver(); uses_gpu && !driver.gpus.empty()) json["gpu"] = driver.gpus.front().name;
  return json;
}

std::string machine_text(const ordered_json& machine) {
  std::string text = machine.at("cpu").get<std::string>() + ", " + std::to_string(machine.at("threads").get<int64_t>()) + " of " +
                     std::to_string(machine.at("cores").get<int64_t>()) +
                     " cores (kernels: " + machine.at("instruction_set").get<std::string>() +
                     ", torch: " + machine.at("torch_capability").get<std::string>() + ")";
  if (!machine.at("gpu").is_null()) text += "; " + machine.at("gpu").get<std::string>();
  return text + "; invattn " + kVersion + ", torch " + kTorchVersion + "; " + machine.at("date").get<std::string>() + "; `" +
         machine.at("command").get<std::string>() + "`";
}

ordered_json to_json(const BenchSide& side) {
  ordered_json json = {{"ms", side.milliseconds}, {"runs", side.runs}, {"memory_mib", nullptr}};
  if (side.memory) json["memory_mib"] = *side.memory;
  if (side.inverse) {
    json["iterations"] = side.inverse->iterations;
    json["residual"] = side.inverse->residual;
    json["round_trip"] = side.inverse->round_trip;
    json["converged"] = side.inverse->converged;
  }
  return json;
}

void print(const ordered_json& json) { std::cout << json.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n"; }

std::string memory_text(const std::optional<double>& memory) { return memory ? reporting::short_number(*memory) : "unknown"; }

void add_bench(CLI::App& tool) {
  CLI::App* bench =
      add_command(tool, kBench, "Measure the fast kernels beside plain ATen operations: time, memory and difference of the results",
                  {{"invattn bench", "the standard table (minutes), as Markdown"},
                   {"invattn bench inverse --kind gaussian", "one kind's inverse against the paper's 100 steps"},
                   {"invattn bench train --log-det series", "training steps with a log-determinant"},
                   {"invattn bench growth --plot growth.png", "time and memory from 1k to 64k positions"},
                   {"invattn bench flow --plot flow.png", "a flow's training step against batch, channels, blocks"},
                   {"invattn bench flow-block", "inverse and training step of one convolution block"},
                   {"invattn bench sample RUN", "sampling beside the rule of Residual Flow's code"},
                   {"invattn bench scale", "what a training step would take on many GPUs"}});
  bench->require_subcommand(0, 1);
  add_bench_attention(*bench);
  add_bench_flow(*bench);
  add_bench_sample(*bench);
  add_bench_scale(*bench);
}

}  // namespace invattn::tool

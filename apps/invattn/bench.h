#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include "bench_case.h"

// What the subcommands of `invattn bench` have in common.
namespace invattn::tool {

constexpr const char* kBench = "bench";

/// Of every benchmark.
struct BenchArguments {
  std::vector<std::string> device_names = {"auto"};
  int64_t threads = 0;
  int64_t repeats = 0;
  bool json = false;

  void add_to(CLI::App& command);

  /// Sets the threads of the process, and gives the devices. A usage error where they are not to be had.
  std::vector<at::Device> devices() const;
  /// The same for a benchmark that runs on one.
  at::Device device() const;
};

/// Adds a subcommand whose `run` is called with its arguments; `bench` itself has options, too, which are an error before a subcommand.
CLI::App* add_benchmark(CLI::App& bench, const std::string& name, const std::string& description, const std::function<void()>& run);

bool names_all(const std::vector<std::string>& words);

nlohmann::ordered_json machine_json(const std::vector<at::Device>& devices);
std::string machine_text(const nlohmann::ordered_json& machine);
nlohmann::ordered_json to_json(const BenchSide& side);
std::string memory_text(const std::optional<double>& memory);

/// A CPU's or GPU's name is foreign text: what is not UTF-8 is replaced, not refused.
void print(const nlohmann::ordered_json& json);

// One file each.
void add_bench_attention(CLI::App& bench);  ///< the standard table, inverse, forward, train, growth
void add_bench_flow(CLI::App& bench);       ///< flow, flow-block
void add_bench_sample(CLI::App& bench);     ///< sample
void add_bench_scale(CLI::App& bench);      ///< scale

}  // namespace invattn::tool

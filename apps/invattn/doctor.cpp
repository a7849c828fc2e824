#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <nlohmann/json.hpp>
#include <torch/headeronly/version.h>

#include "commands.h"
#include "gpu_driver.h"
#include "invattn/core/memory.h"
#include "invattn/core/names.h"
#include "invattn/core/version.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"
#include "invattn/ops/kernels.h"
#include "kernel_coverage.h"
#include "machine.h"

namespace invattn::tool {

enum class Status { kOk, kNote, kMissing };

}  // namespace invattn::tool

template <>
struct invattn::EnumNames<invattn::tool::Status> {
  static constexpr std::string_view kWhat = "a status";
  static constexpr std::array<std::pair<tool::Status, std::string_view>, 3> kNames = {
      {{tool::Status::kOk, "ok"}, {tool::Status::kNote, "note"}, {tool::Status::kMissing, "missing"}}};
};

namespace invattn::tool {
namespace {

/// One line of the report.
struct Finding {
  Status status = Status::kOk;
  std::string name{};
  std::string value{};
  std::string remedy{};   // what to do about it, empty where there is nothing to do
  bool required = false;  // invattn does not work without it
};

struct OptionalTool {
  std::string name;
  std::string purpose;
  std::string remedy;
  std::string path;  // empty where it was not found
};

/// Whether the fast kernels do one kind of attention.
struct Coverage {
  AttentionKind kind = AttentionKind::kGaussian;
  Normalization normalization = Normalization::kColumns;
  std::string obstacle;  // empty where they do
};

/// Whether the fast kernels do the convolution branches of flows with one activation.
struct FlowCoverage {
  Activation activation = Activation::kElu;
  std::string obstacle;  // empty where they do
};

struct Facts {
  std::string torch_at_build;
  std::string torch_at_run_time;
  std::string torch_library;
  std::string cpu_capability;  // the instruction set for which torch has chosen its kernels
  Cpu cpu;
  int64_t threads = 0;
  Memory memory;
  GpuDriver driver;
  int64_t gpus_in_torch = 0;
  std::vector<Coverage> cpu_kernels;
  std::vector<Coverage> cuda_kernels;  // empty where there is no GPU to ask for
  std::vector<FlowCoverage> cuda_flows;
  std::vector<OptionalTool> optional_tools;
};

std::string compiler() {
#if defined(__clang__)
  return "clang++ " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string standard_library() {
#if defined(_LIBCPP_VERSION)
  return "libc++ " + std::to_string(_LIBCPP_VERSION);
#else
  return "libstdc++ " + std::to_string(_GLIBCXX_RELEASE);
#endif
}

std::string version_in_torch_config() {
  const std::string config = at::show_config();
  constexpr std::string_view kKey = "TORCH_VERSION=";
  const auto key = config.find(kKey);
  if (key == std::string::npos) return "unknown";
  const auto begin = key + kKey.size();
  return config.substr(begin, config.find_first_of(", \n", begin) - begin);
}

/// The Python environment that holds the torch in use, where it can be told from the library's place (SITE/torch/lib/libtorch_cpu.so).
struct PythonEnvironment {
  std::filesystem::path packages;
  std::string python = "python3";
};

PythonEnvironment python_of(const std::filesystem::path& torch_library) {
  PythonEnvironment environment;
  const std::filesystem::path torch = torch_library.parent_path().parent_path();
  if (torch.filename() != "torch") return environment;
  environment.packages = torch.parent_path();
  // PREFIX/lib/pythonX.Y/site-packages
  const std::filesystem::path python = environment.packages.parent_path().parent_path().parent_path() / "bin" / "python";
  std::error_code ignored;
  if (std::filesystem::exists(python, ignored)) environment.python = python.string();
  return environment;
}

OptionalTool system_tool(const std::string& name, const std::string& purpose) {
  return {.name = name, .purpose = purpose, .remedy = "sudo apt-get install " + name, .path = find_program(name)};
}

OptionalTool python_package(const PythonEnvironment& environment, const std::string& name, const std::string& purpose) {
  OptionalTool tool{.name = "python " + name, .purpose = purpose, .remedy = environment.python + " -m pip install " + name, .path = ""};
  const std::filesystem::path folder = environment.packages / name;
  std::error_code ignored;
  if (!environment.packages.empty() && std::filesystem::is_directory(folder, ignored)) tool.path = folder.string();
  return tool;
}

/// Each kind in the size of squeezed images, by the normalisations that the presets use.
std::vector<Coverage> coverage_on(at::Device device) {
  std::vector<Coverage> result;
  for (const auto& [kind, name] : EnumNames<AttentionKind>::kNames) {
    for (const Normalization normalization : {Normalization::kColumns, Normalization::kBalanced}) {
      const AttentionOptions options{.channels = 12, .kind = kind, .normalization = normalization};
      result.push_back({kind, normalization, kernel_obstacle(options, device)});
    }
  }
  return result;
}

/// The branches of Residual Flow's layout: 3 channels at 32 x 32, 12 at 16 x 16, 48 at 8 x 8.
std::vector<FlowCoverage> flow_coverage_on(at::Device device) {
  std::vector<FlowCoverage> result;
  for (const auto& [activation, name] : EnumNames<Activation>::kNames) {
    FlowCoverage coverage{activation, ""};
    for (int64_t channels = 3, side = 32; channels <= 48; channels *= 4, side /= 2) {
      const ConvolutionOptions options{.channels = channels, .height = side, .width = side, .hidden = 512, .activation = activation};
      if (coverage.obstacle.empty()) coverage.obstacle = kernel_obstacle(options, device);
    }
    result.push_back(std::move(coverage));
  }
  return result;
}

Facts gather() {
  Facts facts;
  facts.torch_at_build = TORCH_VERSION;
  facts.torch_at_run_time = version_in_torch_config();
  facts.torch_library = loaded_library("libtorch_cpu.so");
  facts.cpu_capability = at::get_cpu_capability();
  facts.cpu = read_cpu();
  facts.threads = at::get_num_threads();
  facts.memory = read_memory();
  facts.driver = ask_gpu_driver();
  facts.gpus_in_torch = at::detail::getCUDAHooks().getNumGPUs();  // answers 0 without CUDA, without a driver and without a GPU
  facts.cpu_kernels = coverage_on(at::kCPU);
  if (facts.gpus_in_torch > 0) {
    facts.cuda_kernels = coverage_on(at::kCUDA);
    facts.cuda_flows = flow_coverage_on(at::kCUDA);
  }
  if (kSlim) return facts;  // the rest is for those who build it
  const PythonEnvironment environment = python_of(facts.torch_library);
  facts.optional_tools = {
      system_tool("ccache", "makes repeated builds quick"),
      system_tool("clang-format", "for `make format` and `make lint`"),
      system_tool("clang-tidy", "for `make lint`"),
      python_package(environment, "safetensors", "for the test that exchanges weights with Python"),
  };
  return facts;
}

std::string release(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}  // "2.11.0" -> "2.11"

std::string gibibytes(std::uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
  return text.data();
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

Finding torch_finding(const Facts& facts) {
  Finding finding{.name = "torch", .value = facts.torch_at_run_time + " (built against " + facts.torch_at_build + ")", .required = true};
  if (release(facts.torch_at_run_time) != release(facts.torch_at_build)) {
    finding.status = Status::kMissing;
    finding.remedy = std::string("run with torch ") + kTorchVersion + ", or build again: " + kBuildAgain;
  }
  return finding;
}

Finding cpu_finding(const Facts& facts) {
  Finding finding{.name = "CPU", .value = facts.cpu.model + "; torch uses " + facts.cpu_capability};
  if (!facts.cpu.features.empty()) finding.value += "; has " + join(facts.cpu.features);
  if (facts.cpu_capability == "DEFAULT" || facts.cpu_capability == "NO AVX") {
    finding.status = Status::kNote;
    finding.remedy = "torch runs without wide SIMD here and is slow; unset ATEN_CPU_CAPABILITY if it is set, or use a newer CPU";
  }
  return finding;
}

Finding threads_finding(const Facts& facts) {
  Finding finding{.name = "threads",
                  .value = std::to_string(facts.threads) + " used by torch, " + std::to_string(facts.cpu.cores) + " cores"};
  if (facts.threads > facts.cpu.cores) {
    finding.status = Status::kNote;
    finding.remedy = "more threads than cores is slow: export OMP_NUM_THREADS=" + std::to_string(facts.cpu.cores);
  }
  return finding;
}

Finding memory_finding(const Facts& facts) {
  constexpr std::uint64_t kComfortable = 2ULL << 30;
  const Memory& memory = facts.memory;
  Finding finding{.name = "memory", .value = gibibytes(memory.total_bytes) + ", " + gibibytes(memory.available_bytes) + " available"};
  if (memory.limit_bytes) finding.value += ", limited to " + gibibytes(*memory.limit_bytes) + " for this process group";
  if (memory.available_bytes < kComfortable || memory.limit_bytes.value_or(kComfortable) < kComfortable) {
    finding.status = Status::kNote;
    finding.remedy = "under 2 GiB the build and long sequences may fail; close other programs or raise the limit";
  }
  return finding;
}

Finding cuda_finding(const Facts& facts) {
  const bool gpu_present = !facts.driver.gpus.empty();
  Finding finding{.name = "CUDA"};
  finding.value = kBuiltWithCuda ? "built in" : "not built in";
  finding.value += gpu_present ? "" : "; no GPU is visible (" + facts.driver.problem + ")";
  if (!kBuiltWithCuda) {
    finding.status = Status::kNote;
    finding.remedy = std::string(gpu_present ? "to use the GPU install a CUDA toolkit (nvcc) and build again: "
                                             : "the CPU is used; with a GPU and a CUDA toolkit (nvcc) build again: ") +
                     kBuildAgain;
  } else if (facts.gpus_in_torch == 0) {
    finding.status = Status::kNote;
    finding.remedy = gpu_present ? "torch cannot use the GPU; the driver may be older than torch's CUDA, see nvidia-smi"
                                 : "the CPU is used; for a GPU install its driver and see that nvidia-smi lists it";
  }
  return finding;
}

/// "gaussian, embedded-gaussian, dot-product and concatenation", and what is left to plain ATen operations, with the cause.
Finding kernels_finding(const std::string& name, const std::string& made_for, const std::vector<Coverage>& coverage) {
  Finding finding{.name = name, .value = made_for};
  std::vector<std::string> covered;
  std::string others;
  for (const auto& [kind, normalization, obstacle] : coverage) {
    const std::string what = std::string(to_string(kind)) + "/" + std::string(to_string(normalization));
    if (obstacle.empty()) {
      covered.push_back(what);
    } else {
      others += (others.empty() ? "" : "; ") + what + ": " + obstacle;
    }
  }
  finding.value += others.empty() ? "; all kinds, columns and balanced" : "; cover " + (covered.empty() ? "nothing" : join(covered));
  if (!others.empty()) {
    finding.status = Status::kNote;
    finding.remedy = "plain ATen operations do the rest: " + others;
  }
  return finding;
}

Finding cpu_kernels_finding(const Facts& facts) {
  return kernels_finding("kernels on the CPU", std::string(kernel_instruction_set()), facts.cpu_kernels);
}

Finding cuda_kernels_finding(const Facts& facts) {
  if (kBuiltWithCuda && facts.gpus_in_torch > 0) return kernels_finding("kernels on CUDA", "built", facts.cuda_kernels);
  Finding finding{.status = Status::kNote, .name = "kernels on CUDA", .value = kBuiltWithCuda ? "built" : "not built"};
  if (kBuiltWithCuda) {
    finding.remedy = "no GPU here can run them";
  } else {
    finding.remedy = facts.gpus_in_torch > 0
                         ? std::string("plain ATen operations are used on the GPU; install a CUDA toolkit (nvcc), then: ") + kBuildAgain
                         : "they need a GPU and a CUDA toolkit (nvcc)";
  }
  return finding;
}

Finding flow_kernels_finding(const Facts& facts) {
  Finding finding{.name = "flow convolutions on CUDA"};
  if (!kBuiltWithCuda || facts.gpus_in_torch == 0) {
    finding.status = Status::kNote;
    finding.value = kBuiltWithCuda ? "built" : "not built";
    finding.remedy = std::string("flows train by plain convolutions; the kernels need a GPU of compute capability 9.0") +
                     (kBuiltWithCuda ? std::string() : std::string(" and a CUDA toolkit (nvcc), then: ") + kBuildAgain);
    return finding;
  }
  std::vector<std::string> covered;
  for (const auto& [activation, obstacle] : facts.cuda_flows) {
    if (obstacle.empty()) {
      covered.emplace_back(to_string(activation));
    } else {
      finding.status = Status::kNote;
      finding.remedy += (finding.remedy.empty() ? "cuDNN does the rest: " : "; ") + std::string(to_string(activation)) + ": " + obstacle;
    }
  }
  finding.value = "precision bf16, 3 convolutions (3x3, 1x1, 3x3), up to 48 channels, 128 to 512 inside; cover " +
                  (covered.empty() ? std::string("nothing") : join(covered));
  return finding;
}

std::string capability(const Gpu& gpu) { return std::to_string(gpu.capability_major) + "." + std::to_string(gpu.capability_minor); }

std::vector<Finding> judge(const Facts& facts) {
  std::vector<Finding> findings = {
      {.name = "invattn", .value = kVersion, .required = true},
      torch_finding(facts),
      {.name = "compiler", .value = compiler() + ", " + standard_library()},
      cpu_finding(facts),
      threads_finding(facts),
      memory_finding(facts),
      cpu_kernels_finding(facts),
      cuda_finding(facts),
      cuda_kernels_finding(facts),
      flow_kernels_finding(facts),
  };
  for (const Gpu& gpu : facts.driver.gpus) {
    findings.push_back({.name = "GPU", .value = gpu.name + ", " + gibibytes(gpu.memory_bytes) + ", compute capability " + capability(gpu)});
  }
  for (const OptionalTool& tool : facts.optional_tools) {
    const bool found = !tool.path.empty();
    findings.push_back({.status = found ? Status::kOk : Status::kMissing,
                        .name = tool.name,
                        .value = found ? tool.path : "optional, " + tool.purpose,
                        .remedy = found ? "" : tool.remedy});
  }
  return findings;
}

bool usable(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& finding) { return finding.required && finding.status == Status::kMissing; });
}

nlohmann::ordered_json to_json(const std::vector<Coverage>& coverage) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const auto& [kind, normalization, obstacle] : coverage) {
    json.push_back(
        {{"kind", to_string(kind)}, {"normalization", to_string(normalization)}, {"covered", obstacle.empty()}, {"obstacle", obstacle}});
  }
  return json;
}

nlohmann::ordered_json to_json(const std::vector<FlowCoverage>& coverage) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const auto& [activation, obstacle] : coverage) {
    json.push_back({{"activation", to_string(activation)}, {"covered", obstacle.empty()}, {"obstacle", obstacle}});
  }
  return json;
}

nlohmann::ordered_json to_json(const Facts& facts, const std::vector<Finding>& findings) {
  nlohmann::ordered_json json;
  json["ok"] = usable(findings);
  json["invattn"] = {{"version", kVersion}};
  json["torch"] = {{"built_against", facts.torch_at_build}, {"run_time", facts.torch_at_run_time}, {"library", facts.torch_library}};
  json["compiler"] = {{"name", compiler()}, {"standard_library", standard_library()}, {"standard", __cplusplus}};
  json["cpu"] = {{"model", facts.cpu.model},
                 {"features", facts.cpu.features},
                 {"torch_capability", facts.cpu_capability},
                 {"cores", facts.cpu.cores},
                 {"torch_threads", facts.threads}};
  json["memory"] = {{"total_bytes", facts.memory.total_bytes}, {"available_bytes", facts.memory.available_bytes}, {"limit_bytes", nullptr}};
  if (facts.memory.limit_bytes) json["memory"]["limit_bytes"] = *facts.memory.limit_bytes;
  json["cuda"] = {{"built", kBuiltWithCuda},         {"usable", facts.gpus_in_torch > 0},
                  {"driver", facts.driver.found},    {"driver_cuda_version", facts.driver.cuda_version},
                  {"problem", facts.driver.problem}, {"gpus", nlohmann::ordered_json::array()}};
  for (const Gpu& gpu : facts.driver.gpus) {
    json["cuda"]["gpus"].push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}, {"compute_capability", capability(gpu)}});
  }
  json["kernels"] = {{"instruction_set", std::string(kernel_instruction_set())},
                     {"cuda_built", kBuiltWithCuda},
                     {"cpu", to_json(facts.cpu_kernels)},
                     {"cuda", to_json(facts.cuda_kernels)},
                     {"flow_convolutions_cuda", to_json(facts.cuda_flows)}};
  json["optional"] = nlohmann::ordered_json::array();
  for (const OptionalTool& tool : facts.optional_tools) {
    json["optional"].push_back(
        {{"name", tool.name}, {"found", !tool.path.empty()}, {"path", tool.path}, {"purpose", tool.purpose}, {"get", tool.remedy}});
  }
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"status", to_string(finding.status)},
                                {"name", finding.name},
                                {"value", finding.value},
                                {"remedy", finding.remedy},
                                {"required", finding.required}});
  }
  return json;
}

void print(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    std::string line(to_string(finding.status));
    line.resize(9, ' ');
    line += finding.name;
    line.resize(std::max<std::size_t>(line.size() + 2, 29), ' ');
    line += finding.value;
    if (!finding.remedy.empty()) line += "\n" + std::string(29, ' ') + "-> " + finding.remedy;
    std::cout << line << "\n";
  }
  std::cout << (usable(findings) ? "Everything required is there.\n" : "Something required is missing.\n");
}

void doctor(bool as_json) {
  const Facts facts = gather();
  const std::vector<Finding> findings = judge(facts);
  if (as_json) {
    // A CPU's or GPU's name is foreign text: what is not UTF-8 is replaced, not refused.
    std::cout << to_json(facts, findings).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  } else {
    print(findings);
  }
  if (!usable(findings)) throw CLI::RuntimeError(1);
}

}  // namespace

void add_doctor(CLI::App& tool) {
  CLI::App* command =
      add_command(tool, "doctor", "Show versions, CPU, memory, GPU, kernels and optional tools, and how to get what is missing",
                  {{"invattn doctor", "is everything there?"}, {"invattn doctor --json", "the same facts for a program"}});
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback([as_json] { doctor(*as_json); });
}

}  // namespace invattn::tool

#include "machine.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include <ATen/detail/CUDAHooksInterface.h>

#include "invattn/core/error.h"
#include "invattn/io/printable.h"

namespace invattn::tool {
namespace {

/// The text behind "key :" of the first such line in one of the /proc files.
std::string proc_value(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

bool is_program(const std::filesystem::path& file) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(file, ignored) && access(file.c_str(), X_OK) == 0;
}

}  // namespace

Cpu read_cpu() {
  constexpr std::array<std::string_view, 9> kKnown = {"sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve"};
  Cpu cpu;
  cpu.model = proc_value("/proc/cpuinfo", "model name");
  if (cpu.model.empty()) cpu.model = "unknown";
  // x86 calls the line "flags", ARM "Features".
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags") + " " + proc_value("/proc/cpuinfo", "Features"));
  for (std::string flag; flags >> flag;) {
    if (std::find(kKnown.begin(), kKnown.end(), flag) != kKnown.end()) cpu.features.push_back(flag);
  }
  cpu.cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  return cpu;
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path file = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (is_program(file)) return file.string();
  }
  return "";
}

std::string loaded_library(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "";
  link_map* map = nullptr;
  std::string file;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) file = map->l_name;
  dlclose(library);
  std::error_code ignored;
  const std::filesystem::path canonical = std::filesystem::canonical(file, ignored);
  return canonical.empty() ? file : canonical.string();
}

std::string quoted(std::string word) {
  const auto is_plain = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter >= 0x80 || std::strchr("_-./:,+@=%", letter) != nullptr;
  };
  if (printable_lines(word) != word || word.find('\n') != std::string::npos) {  // what could steer a terminal
    std::string text = "$'";
    for (const unsigned char letter : word) {
      std::array<char, 5> digits{};
      std::snprintf(digits.data(), digits.size(), "\\x%02x", static_cast<unsigned>(letter));
      text += letter != 0 && letter < 0x80 && is_plain(letter) ? std::string(1, static_cast<char>(letter)) : std::string(digits.data());
    }
    return text + "'";
  }
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  for (std::size_t at = 0; (at = word.find('\'', at)) != std::string::npos; at += 4) word.replace(at, 1, "'\\''");
  return "'" + word + "'";
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text;
  for (std::string word; std::getline(file, word, '\0');) {
    if (text.empty()) {
      text = std::filesystem::path(word).filename();
      continue;
    }
    text += " " + quoted(word);
  }
  return text;
}

at::Device device_named(const std::string& name, const std::string& origin) {
  const bool usable = at::detail::getCUDAHooks().getNumGPUs() > 0;  // 0 without CUDA, without a driver and without a GPU
  require(name == "auto" || name == "cpu" || name == "cuda", origin, "expected the device auto, cpu or cuda, got '", name, "'.");
  require(name != "cuda" || usable, origin, "expected a GPU that torch can use, got none. `invattn doctor` says what is missing.");
  return {name == "cpu" || !usable ? at::kCPU : at::kCUDA};
}

}  // namespace invattn::tool

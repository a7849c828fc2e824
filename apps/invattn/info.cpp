#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include "commands.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/detector.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;

std::string type_name(const at::Tensor& tensor) { return c10::getDtypeNames(tensor.scalar_type()).first; }  // "float32"

std::string count(std::int64_t number, const std::string& noun) { return std::to_string(number) + " " + noun + (number == 1 ? "" : "s"); }

/// A heading and its value, which may have several lines.
void print_line(const std::string& heading, const std::string& value) {
  std::string line = heading;
  line.resize(14, ' ');
  for (const char letter : value) line += letter == '\n' ? "\n" + std::string(14, ' ') : std::string(1, letter);
  std::cout << line << "\n";
}

/// Of any safetensors file.
struct Stored {
  std::string path;
  std::uint64_t bytes = 0;
  SafetensorsFile content;

  bool is_model() const {
    const auto format = content.metadata.find("format");
    return format != content.metadata.end() && format->second.starts_with("invattn-model-");
  }

  std::string metadata(const std::string& key) const {
    const auto found = content.metadata.find(key);
    return found == content.metadata.end() ? "unknown" : found->second;
  }
};

ordered_json to_json(const Stored& stored) {
  ordered_json json = {{"file", stored.path}, {"bytes", stored.bytes}, {"invattn_model", stored.is_model()}};
  json["tensors"] = ordered_json::array();
  for (const auto& [name, tensor] : stored.content.tensors) {
    json["tensors"].push_back({{"name", name}, {"dtype", type_name(tensor)}, {"shape", tensor.sizes().vec()}});
  }
  return json;
}

void show_foreign(const Stored& stored, bool as_json) {
  if (as_json) {
    ordered_json json = to_json(stored);
    json["metadata"] = stored.content.metadata;
    std::cout << json.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n";
    return;
  }
  std::int64_t values = 0;
  for (const auto& [name, tensor] : stored.content.tensors) values += tensor.numel();
  print_line("file", printable_path(stored.path));
  print_line("size", count(static_cast<std::int64_t>(stored.bytes), "byte"));
  print_line("model", "none: a safetensors file that was not saved by invattn");
  for (const auto& [key, value] : stored.content.metadata) print_line("metadata", printable(key) + " = " + printable(value));
  print_line("tensors", count(static_cast<std::int64_t>(stored.content.tensors.size()), "tensor") + ", " + count(values, "value"));
  for (const auto& [name, tensor] : stored.content.tensors) {
    std::ostringstream shape;
    shape << tensor.sizes();
    print_line("", printable(name) + "  " + type_name(tensor) + " " + shape.str());
  }
}

void show_model(const Stored& stored, bool as_json) {
  const auto description = ordered_json::parse(stored.metadata("model"), nullptr, /*allow_exceptions=*/false);
  const bool detector = description.is_object() && description.contains("type") && description["type"] == "detector";
  std::shared_ptr<torch::nn::Module> model;
  if (detector) {
    model = load_detector(stored.path).ptr();
  } else {
    model = load(stored.path);
  }
  const std::vector<StoredBlock> blocks = certificates_of(*model);
  std::int64_t parameters = 0;
  std::set<std::string> types;
  for (const auto& parameter : model->parameters()) {
    parameters += parameter.numel();
    types.insert(type_name(parameter));
  }

  if (as_json) {
    ordered_json json = to_json(stored);
    json["format"] = stored.metadata("format");
    json["producer"] = stored.metadata("producer");
    json["model"] = parse_json(stored.metadata("model"), "info");
    json["parameters"] = parameters;
    json["dtypes"] = types;
    json["blocks"] = ordered_json::array();
    for (const auto& [name, certificate, current] : blocks) {
      json["blocks"].push_back({{"name", name},
                                {"current", current},
                                {"contraction", current && certificate.contraction()},
                                {"text", certificate.text()},
                                {"certificate", fields_to_json(certificate)}});
    }
    std::cout << json.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n";
    return;
  }
  std::string type_list;
  for (const auto& type : types) type_list += (type_list.empty() ? " in " : " and ") + type;
  std::ostringstream tree;
  tree << *model;
  print_line("file", printable_path(stored.path));
  print_line("size", count(static_cast<std::int64_t>(stored.bytes), "byte"));
  print_line("producer", printable(stored.metadata("producer")) + ", format " + printable(stored.metadata("format")));
  print_line("parameters", std::to_string(parameters) + type_list);
  print_line("model", printable_lines(tree.str()));
  for (const auto& [name, certificate, current] : blocks) {
    print_line("certificate", (name.empty() ? "" : "block " + name + ": ") + printable(certificate.text(), 400) +
                                  (current ? "" : "\nlapsed: the weights have changed since, so that it says nothing of these"));
  }
  if (blocks.empty()) print_line("certificate", "none is needed: no part is inverted by iteration");
}

void info(const std::string& path, bool as_json) {
  Stored stored{.path = path, .content = read_safetensors(path)};
  stored.bytes = std::filesystem::file_size(path);
  if (stored.is_model()) {
    show_model(stored, as_json);
  } else {
    show_foreign(stored, as_json);
  }
}

}  // namespace

void add_info(CLI::App& tool) {
  CLI::App* command = add_command(
      tool, "info", "Show what a saved model is and what is promised of it",
      {{"invattn info model.safetensors", "its parts, options and certificates"}, {"invattn info FILE --json", "the same for a program"}});
  auto path = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  command->add_option("FILE", *path, "A safetensors file, saved by invattn or by another program")->required();
  command->add_flag("--json", *as_json, "Print one JSON object");
  command->callback([path, as_json] { info(*path, *as_json); });
}

}  // namespace invattn::tool

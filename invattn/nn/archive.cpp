#include "invattn/nn/archive.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/core/version.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "invattn/nn/weight_budget.h"

namespace invattn {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "invattn-model-1";
constexpr std::string_view kDamaged = "The file is damaged or from another release: take another copy of it, or save the model again.";

/// The value of a key of a description; keys beyond `keys` are refused.
const json& member(const json& description, const char* key, const std::vector<std::string>& keys) {
  for (const auto& item : description.items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
      fail(ErrorKind::kData, "make_bijection", "expected only ", list_names(item.key(), keys), " in a description of type '",
           description.value("type", "?"), "', got ", in_quotes(item.key()), ". Correct or remove it.");
    }
  }
  const auto found = description.find(key);
  if (found == description.end()) {
    fail(ErrorKind::kData, "make_bijection", "expected the key '", key, "' in a description, got ", printable(description.dump()),
         ". Add it.");
  }
  return *found;
}

std::string type_of(const json& description) {
  if (!description.is_object() || !description.contains("type") || !description["type"].is_string()) {
    fail(ErrorKind::kData, "make_bijection", "expected an object with a \"type\", got ", printable(description.dump()),
         ". Pass what describe() returned.");
  }
  return description["type"];
}

template <HasFields Options>
Options options_of(const json& description) {
  Options options;
  fields_from_json(options, member(description, "options", {"type", "options"}), "make_bijection");
  return options;
}

Bijection build(const json& description);

std::shared_ptr<BranchImpl> build_branch(const json& description) {
  const auto type = type_of(description);
  if (type == "attention") return std::make_shared<AttentionImpl>(options_of<AttentionOptions>(description));
  if (type == "convolution") return std::make_shared<ConvolutionImpl>(options_of<ConvolutionOptions>(description));
  fail(ErrorKind::kData, "make_bijection", "expected a branch of type ", list_names(type, {"attention", "convolution"}), ", got ",
       in_quotes(type), ". Correct it.");
}

Bijection build(const json& description) {
  const auto type = type_of(description);
  if (type == "squeeze") return std::make_shared<SqueezeImpl>(options_of<SqueezeOptions>(description));
  if (type == "actnorm") return std::make_shared<ActNormImpl>(options_of<ActNormOptions>(description));
  if (type == "flow") return std::make_shared<FlowImpl>(options_of<FlowOptions>(description));
  if (type == "residual") {
    return std::make_shared<InvertibleResidualImpl>(build_branch(member(description, "branch", {"type", "branch"})));
  }
  if (type == "sequential") {
    auto result = std::make_shared<SequentialImpl>();
    const auto& parts = member(description, "parts", {"type", "parts"});
    if (!parts.is_array())
      fail(ErrorKind::kData, "make_bijection", "expected a list of parts, got ", printable(parts.dump()),
           ". Pass what describe() returned.");
    require_range("make_bijection", "the number of parts", static_cast<int64_t>(parts.size()), int64_t{0}, kMostLayers);
    for (const auto& part : parts) result->push_back(build(part));
    return result;
  }
  fail(ErrorKind::kData, "make_bijection", "expected a type ", list_names(type, {"squeeze", "actnorm", "residual", "sequential", "flow"}),
       ", got ", in_quotes(type), ". Correct it.");
}

/// Parameters and buffers by name.
std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> result;
  for (const auto& item : model.named_parameters()) result[item.key()] = item.value();
  for (const auto& item : model.named_buffers()) result[item.key()] = item.value();
  return result;
}

/// The residual blocks by name; a model that is one itself has the name "".
std::vector<std::pair<std::string, InvertibleResidualImpl*>> blocks_of(torch::nn::Module& model) {
  std::vector<std::pair<std::string, InvertibleResidualImpl*>> result;
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    if (auto* block = dynamic_cast<InvertibleResidualImpl*>(item.value().get())) result.emplace_back(item.key(), block);
  }
  return result;
}

template <class... Parts>
[[noreturn]] void damaged(const std::string& file, const Parts&... parts) {
  fail(ErrorKind::kData, "load", file, ": ", parts..., " ", kDamaged);
}

/// What `read` makes of a part of the file's metadata. Whatever is wrong with it is said with the name of the file, and is damage: the
/// options of a file are nobody's argument.
template <class Read>
auto from_metadata(const std::string& file, const char* key, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kData && error.message().find(file) != std::string_view::npos) throw;
    damaged(file, "in the metadata '", key, "': ", error.message());
  } catch (const std::exception& error) {
    constexpr std::size_t kLongestReason = 240;
    damaged(file, "expected the metadata '", key, "' to describe a model, got '", printable(error.what(), kLongestReason), "'.");
  }
}

/// A stored tensor goes where it belongs, or an error says why not.
void assign(const std::string& file, const std::string& name, at::Tensor& target, const at::Tensor& stored) {
  if (stored.sizes() != target.sizes()) {
    damaged(file, "expected ", in_quotes(name), " of shape ", target.sizes(), ", got ", stored.sizes(),
            ", so that the weights and the options do not belong together.");
  }
  if (stored.scalar_type() != target.scalar_type()) {
    damaged(file, "expected ", in_quotes(name), " in ", target.scalar_type(), ", got ", stored.scalar_type(), ".");
  }
  if (stored.is_floating_point() && !stored.isfinite().all().item<bool>()) {
    fail(ErrorKind::kData, "load", file, ": expected finite weights, got NaN or infinity in ", in_quotes(name),
         ". The file is damaged, or the training that saved it had failed: take an earlier one.");
  }
  target.copy_(stored);
}

const std::string& metadata(const SafetensorsFile& file, const std::string& name, const char* key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) {
    fail(ErrorKind::kData, "load", name, ": expected a model saved by invattn, got a safetensors file without '", key,
         "' in its metadata. Weights of other programs have to be put into a model by name.");
  }
  constexpr std::size_t kLongest = std::size_t{1} << 24U;  // JSON takes many times as much memory as its text
  if (found->second.size() > kLongest) {
    damaged(name, "expected the metadata '", key, "' in at most ", kLongest, " bytes, got ", found->second.size(), ".");
  }
  return found->second;
}

}  // namespace

Bijection make_bijection(const std::string& description) { return build(parse_json(description, "make_bijection")); }

void save(const std::filesystem::path& path, BijectionImpl& model) {
  model.project();
  save_model(path, model, model.describe());
}

void save_model(const std::filesystem::path& path, torch::nn::Module& model, const std::string& description) {
  auto certificates = json::object();
  for (const auto& [name, block] : blocks_of(model)) {
    block->project();
    certificates[name] = fields_to_json(block->certificate());
  }
  write_safetensors(path, tensors_of(model),
                    {{"format", kFormat},
                     {"producer", std::string("invattn ") + kVersion},
                     {"model", description},
                     {"certificates", certificates.dump()}});
}

Bijection load(const std::filesystem::path& path) { return std::dynamic_pointer_cast<BijectionImpl>(load_model(path, make_bijection)); }

std::shared_ptr<torch::nn::Module> load_model(const std::filesystem::path& path, const ModelMaker& make) {
  const auto file = read_safetensors(path);
  const auto name_of_file = printable_path(path);
  if (const auto& format = metadata(file, name_of_file, "format"); format != kFormat) {
    fail(ErrorKind::kData, "load", name_of_file, ": expected the format ", kFormat, ", got ", in_quotes(format),
         ". Read it with the release that wrote it.");
  }
  const auto& description = metadata(file, name_of_file, "model");
  const auto& stored_certificates = metadata(file, name_of_file, "certificates");
  std::shared_ptr<torch::nn::Module> model = from_metadata(name_of_file, "model", [&] {
    const WeightBudget budget(name_of_file, file.tensors);
    return make(description);
  });

  auto targets = tensors_of(*model);
  std::set<at::ScalarType> types;
  for (const auto& [name, tensor] : file.tensors) {
    if (!targets.contains(name)) {
      damaged(name_of_file, "expected no tensor ", in_quotes(name), ", since the model in the metadata has none of that name.");
    }
    if (tensor.is_floating_point()) types.insert(tensor.scalar_type());
  }
  if (types == std::set{at::kDouble}) model->to(at::kDouble);
  at::NoGradGuard no_grad;
  for (auto& [name, target] : targets) {
    const auto stored = file.tensors.find(name);
    if (stored == file.tensors.end()) {
      damaged(name_of_file, "expected a tensor ", in_quotes(name), " of shape ", target.sizes(), ", got none of that name.");
    }
    assign(name_of_file, name, target, stored->second);
  }

  from_metadata(name_of_file, "certificates", [&] {
    const auto certificates = parse_json(stored_certificates, "load");
    if (!certificates.is_object()) {
      fail(ErrorKind::kData, "load", "expected an object of certificates, got ", json_detail::describe(certificates), ".");
    }
    for (const auto& [name, block] : blocks_of(*model)) {
      if (!certificates.contains(name)) continue;
      Certificate stored;
      fields_from_json(stored, certificates[name], "load");
      if (stored.basis == Basis::kMeasured) block->restore(stored);
    }
  });
  model->eval();
  return model;
}

std::vector<StoredBlock> certificates_of(const torch::nn::Module& model) {
  std::vector<StoredBlock> result;
  for (const auto& [name, block] : blocks_of(const_cast<torch::nn::Module&>(model))) {
    const auto present = block->certificate();
    const bool lapsed = block->measured().basis != Basis::kNothing && block->measured().weights != present.weights;
    result.push_back({name, lapsed ? block->measured() : present, !lapsed});
  }
  return result;
}

}  // namespace invattn

#include "invattn/train/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/core/fnv.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/posix_file.h"
#include "invattn/io/printable.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/guard.h"

namespace invattn {
namespace {

constexpr const char* kFormat = "invattn-checkpoint-2";
constexpr const char* kIndexFormat = "invattn-checkpoint-index-2";
constexpr const char* kFormatWithoutDigest = "invattn-checkpoint-1";  // of older versions, still read
constexpr const char* kIndexFormatWithoutDigest = "invattn-checkpoint-index-1";
constexpr const char* kShardFormat = "invattn-checkpoint-shard-1";
constexpr const char* kDigest = "digest";
constexpr const char* kWeightsOnly = "weights_only";  // the note that says so
constexpr const char* kDiverged = "diverged";         // as well: numbers that are not finite are no damage
constexpr const char* kNetwork = "network.";
constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kGuard = "guard.";
constexpr std::string_view kVectors = "vectors.";  // of a guard, one for each sample of a batch
constexpr const char* kAverage = "optimizer.average.";
constexpr std::string_view kShardEnding = ".safetensors";
constexpr std::size_t kLongestIndex = 100'000'000;

bool is_weights_only(const Checkpoint& checkpoint) { return checkpoint.notes.contains(kWeightsOnly); }

/// A tensor of the checkpoint that has to be there, with the shape and type of `like`.
const at::Tensor& tensor_like(const Checkpoint& checkpoint, const std::string& name, const at::Tensor& like, const std::string& origin) {
  const auto found = checkpoint.tensors.find(name);
  const bool fits = found != checkpoint.tensors.end() && found->second.sizes() == like.sizes() &&
                    (found->second.scalar_type() == like.scalar_type() ||
                     (is_weights_only(checkpoint) && found->second.is_floating_point() && like.is_floating_point()));
  if (!fits) {
    fail(ErrorKind::kData, origin, "expected a tensor '", name, "' ", like.toString(), " ", like.sizes(), " of the network in use, got ",
         found == checkpoint.tensors.end() ? "none" : "another shape or type",
         ". The checkpoint belongs to another configuration: use that one, or start the run afresh in another folder.");
  }
  return found->second;
}

/// No training saves others, but for one that says that it has diverged.
void check_finite(const Checkpoint& checkpoint, const std::string& origin) {
  if (checkpoint.notes.contains(kDiverged)) return;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.is_floating_point() && !tensor.isfinite().all().item<bool>()) {
      fail(ErrorKind::kData, origin, "expected finite numbers, got NaN or infinity in ", in_quotes(name),
           ". The file is damaged: take another checkpoint, or start the run afresh in another folder.");
    }
  }
}

void check_can_go_on(const Checkpoint& checkpoint, const std::string& origin) {
  if (is_weights_only(checkpoint)) {
    fail(ErrorKind::kData, origin, "expected a checkpoint that a training can go on from, got one with weights only. ",
         "Take a whole checkpoint, or start the run afresh in another folder.");
  }
}

/// One of the files of a checkpoint in shards.
struct Shard {
  std::string name;    // in the folder of the index
  int64_t size = 0;    // bytes
  std::string digest;  // 16 hexadecimal digits

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("name", self.name, "");
    field("size", self.size, "");
    field("digest", self.digest, "");
  }
};

/// A tensor that lies in pieces, one in each of several shards, one after another.
struct SplitTensor {
  std::string name;
  std::vector<int64_t> shape;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("name", self.name, "");
    field("shape", self.shape, "");
  }
};

struct Note {
  std::string name, text;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("name", self.name, "");
    field("text", self.text, "");
  }
};

struct Index {
  std::string format;
  std::vector<Note> notes;
  std::vector<Shard> shards;
  std::vector<SplitTensor> split;
  std::string digest;  // of all the others; those of older versions have none

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("format", self.format, "");
    field("notes", self.notes, "");
    field("shards", self.shards, "");
    field("split", self.split, "");
    field("digest", self.digest, "");
  }
};

/// Where the files really are: the file behind a symbolic link is what saving replaces.
std::filesystem::path behind_link(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  auto target = std::filesystem::canonical(path, error);
  return error ? path : target;
}

std::string hexadecimal(std::uint64_t number) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return digits.data();
}

/// FNV-1a over names, types, shapes and bytes of the tensors, and the notes.
std::string digest_of(const Checkpoint& checkpoint) {
  std::uint64_t hash = kFnvStart;
  const auto add = [&hash](const std::string& text) { hash = fnv1a(text, fnv1a(std::to_string(text.size()) + ":", hash)); };
  for (const auto& [name, text] : checkpoint.notes) {
    add(name);
    add(text);
  }
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!tensor.defined()) continue;  // refused by whoever writes it
    const at::Tensor plain = tensor.to(at::kCPU).contiguous();
    add(name);
    add(c10::str(plain.scalar_type(), plain.sizes()));
    hash = fnv1a(std::span(static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()), hash);
  }
  return hexadecimal(hash);
}

std::string digest_of(Index index) {
  index.digest.clear();
  return hexadecimal(fnv1a(fields_to_json(index).dump(), kFnvStart));
}

/// The generation of a shard of the checkpoint `target`; none for any other file.
std::optional<std::string> generation_of(const std::string& file, const std::filesystem::path& target) {
  constexpr std::size_t kDigits = 16;
  const std::string start = target.filename().string() + ".";
  if (!file.starts_with(start) || !file.ends_with(kShardEnding)) return std::nullopt;
  const auto is_one_of = [](std::string_view text, std::string_view allowed) {
    return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
  };
  const std::string_view middle = std::string_view(file).substr(start.size());
  if (middle.size() < kDigits + 2 + kShardEnding.size() || middle[kDigits] != '-') return std::nullopt;
  const std::string_view generation = middle.substr(0, kDigits);
  const std::string_view number = middle.substr(kDigits + 1, middle.size() - kDigits - 1 - kShardEnding.size());
  if (!is_one_of(generation, "0123456789abcdef") || !is_one_of(number, "0123456789")) return std::nullopt;
  return std::string(generation);
}

/// Known by their names, never by what an index says: that may be any file.
void remove_shards(const std::filesystem::path& target, const std::function<bool(const std::string& generation)>& unwanted) {
  try {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(target.has_parent_path() ? target.parent_path() : ".")) {
      const auto generation = generation_of(entry.path().filename().string(), target);
      if (generation && unwanted(*generation)) found.push_back(entry.path());
    }
    for (const auto& path : found) std::filesystem::remove(path);
  } catch (const std::filesystem::filesystem_error&) {
    // They only take up space: the next save tries again.
  }
}

/// Size and digest of a shard as it is on the disk, or what is wrong with it.
struct Measured {
  int64_t size = 0;
  std::string digest;
  std::string problem;
};

Measured measure(const std::filesystem::path& path) {
  Measured result;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() != std::filesystem::file_type::regular) {
    result.problem = std::filesystem::exists(status) ? "something that is no regular file" : "none";
    return result;
  }
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    result.problem = "'" + errno_text(errno) + "'";
    return result;
  }
  std::uint64_t hash = kFnvStart;
  std::vector<std::byte> buffer(std::size_t{1} << 20U);
  for (;;) {
    const TransferResult read = read_fully(file.get(), buffer);
    hash = fnv1a(std::span(buffer).first(read.bytes), hash);
    result.size += static_cast<int64_t>(read.bytes);
    if (read.error != 0) result.problem = "'" + errno_text(read.error) + "'";
    if (read.bytes < buffer.size()) break;
  }
  result.digest = hexadecimal(hash);
  return result;
}

[[noreturn]] void wrong_shard(const std::filesystem::path& index, const std::string& name, const std::string& expected,
                              const std::string& got) {
  fail(ErrorKind::kData, index.string(), "expected the shard ", in_quotes(name), " beside it", expected, ", got ", got,
       ". Copy index and shards once more from where they were saved, or take another checkpoint.");
}

std::map<std::string, at::Tensor> read_shard(const std::filesystem::path& index, const Shard& shard) {
  // Plain names alone: an index from elsewhere must not make us read other folders.
  if (shard.name.empty() || shard.name == "." || shard.name == ".." ||
      shard.name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
    fail(ErrorKind::kData, index.string(), "expected the name of a shard in the same folder, got ", in_quotes(shard.name),
         ". The index is damaged or hostile: take another checkpoint.");
  }
  const auto path = index.parent_path() / shard.name;
  const Measured measured = measure(path);
  if (!measured.problem.empty()) wrong_shard(index, shard.name, "", measured.problem);
  if (measured.size != shard.size) {
    wrong_shard(index, shard.name, " with " + std::to_string(shard.size) + " bytes", std::to_string(measured.size) + " bytes");
  }
  if (measured.digest != shard.digest) {
    wrong_shard(index, shard.name, " with digest " + printable(shard.digest), "other content, of digest " + measured.digest);
  }
  return read_safetensors(path).tensors;
}

/// The text of an index, or none where the file is something else: a safetensors file starts with 8 bytes of length, of which the last is
/// zero in every file of less than 70 petabytes.
std::optional<std::string> read_index(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::string text(8, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())) || text.front() != '{' || text.back() == '\0') return std::nullopt;
  const auto size = std::filesystem::file_size(path, error);
  if (error || size > kLongestIndex) {
    fail(ErrorKind::kData, path.string(), "expected a checkpoint, got text of more than ", kLongestIndex, " bytes. Take another file.");
  }
  text.append(std::istreambuf_iterator<char>(file), {});
  return text;
}

at::Tensor join(const std::filesystem::path& path, const SplitTensor& split, const std::vector<at::Tensor>& pieces) {
  int64_t total = 0;
  bool fits = !pieces.empty();
  for (const auto& piece : pieces) {
    fits = fits && piece.dim() == 1 && piece.scalar_type() == pieces.front().scalar_type();
    total += piece.numel();
  }
  int64_t expected = 1;
  for (const int64_t size : split.shape) {
    fits = fits && size > 0 && expected <= total / size;
    if (fits) expected *= size;
  }
  if (!fits || expected != total) {
    fail(ErrorKind::kData, path.string(), "expected the pieces of tensor ", in_quotes(split.name),
         " to make the shape that the index says, ", "got others. The index is damaged: take another checkpoint.");
  }
  return at::cat(pieces).view(split.shape);
}

Checkpoint load_shards(const std::filesystem::path& path, const std::string& text) {
  const std::string origin = path.string();
  auto json = parse_json(text, origin);
  const auto format = json.is_object() ? json.value("format", nlohmann::json()) : nlohmann::json();
  const bool older = format == kIndexFormatWithoutDigest;
  if (!older && format != kIndexFormat) {
    fail(ErrorKind::kData, origin, "expected a checkpoint (format ", kIndexFormat,
         "), got JSON of another kind. Start the run afresh in another folder.");
  }
  const bool surplus = older && json.contains(kDigest);
  if (older) json[kDigest] = "";
  Index index;
  fields_from_json(index, json, origin);
  const auto damaged = [&origin](const std::string& got) {
    fail(ErrorKind::kData, origin, "expected a complete index of a checkpoint, got ", got,
         ". The index is damaged: take another checkpoint.");
  };
  if (fields_to_json(index) != json) damaged("one without some of its fields");
  if (surplus) damaged("a digest in a format that has none");
  if (!older && index.digest != digest_of(index)) damaged("content of another digest than the one in it");

  Checkpoint result;
  for (const auto& [name, note] : index.notes) {
    if (!result.notes.emplace(name, note).second) damaged("the note " + in_quotes(name) + " twice");
  }
  std::map<std::string, std::vector<at::Tensor>> pieces;
  for (const auto& split : index.split) {
    if (!pieces.try_emplace(split.name).second) damaged("the tensor " + in_quotes(split.name) + " twice");
  }
  for (const auto& shard : index.shards) {
    for (auto& [name, tensor] : read_shard(path, shard)) {
      if (const auto found = pieces.find(name); found != pieces.end()) {
        found->second.push_back(std::move(tensor));
      } else if (!result.tensors.emplace(name, std::move(tensor)).second) {
        damaged("the tensor " + in_quotes(name) + " twice");
      }
    }
  }
  for (const auto& split : index.split) result.tensors.emplace(split.name, join(path, split, pieces.extract(split.name).mapped()));
  return result;
}

Checkpoint load_one_file(const std::filesystem::path& path) {
  auto [tensors, metadata] = read_safetensors(path);
  const bool older = metadata["format"] == kFormatWithoutDigest;
  if (!older && metadata["format"] != kFormat) {
    fail(ErrorKind::kData, path.string(), "expected a checkpoint (format ", kFormat, "), got ", in_quotes(metadata["format"]),
         ". Start the run afresh in another folder.");
  }
  metadata.erase("format");
  if (older && metadata.contains(kDigest)) {
    fail(ErrorKind::kData, path.string(), "expected a checkpoint of an older format, ", kFormatWithoutDigest,
         ", without a digest, got one with. The file is damaged: take another copy of it, or start the run afresh in another folder.");
  }
  const std::string digest = std::exchange(metadata[kDigest], "");
  metadata.erase(kDigest);
  Checkpoint checkpoint{.tensors = std::move(tensors), .notes = std::move(metadata)};
  if (!older && digest != digest_of(checkpoint)) {
    fail(ErrorKind::kData, path.string(), "expected content of digest ", in_quotes(digest), ", got other content, of digest ",
         digest_of(checkpoint), ". The file is damaged: take another copy of it, or start the run afresh in another folder.");
  }
  return checkpoint;
}

/// The tensors of each file, of at most `most` bytes, in the order of their names. What is larger is cut up, noted in `split`.
std::vector<std::map<std::string, at::Tensor>> into_shards(const Checkpoint& checkpoint, int64_t most, std::vector<SplitTensor>& split) {
  std::vector<std::map<std::string, at::Tensor>> shards;
  int64_t room = 0;
  const auto put = [&](const std::string& name, const at::Tensor& tensor, int64_t bytes) {
    if (shards.empty() || bytes > room) {
      shards.emplace_back();
      room = most;
    }
    room -= bytes;
    shards.back().emplace(name, tensor);
  };
  for (const auto& [name, tensor] : checkpoint.tensors) {
    const int64_t element = tensor.defined() ? static_cast<int64_t>(tensor.element_size()) : 0;
    const int64_t bytes = tensor.numel() * element;
    if (bytes <= most) {
      put(name, tensor, bytes);
      continue;
    }
    const auto flat = tensor.detach().to(at::kCPU).reshape({-1});
    for (int64_t begin = 0; begin < flat.numel();) {
      const int64_t count = std::min(most / element, flat.numel() - begin);
      if (begin == 0) room = 0;  // each piece in a shard of its own, the next names may share the last
      put(name, flat.narrow(0, begin, count), count * element);
      begin += count;
    }
    split.push_back({name, tensor.sizes().vec()});
  }
  return shards;
}

void save_shards(const std::filesystem::path& target, const Checkpoint& checkpoint, int64_t most, const std::string& generation) {
  Index index{.format = kIndexFormat, .notes = {}, .shards = {}, .split = {}};
  for (const auto& [name, text] : checkpoint.notes) index.notes.push_back({name, text});
  const auto shards = into_shards(checkpoint, most, index.split);
  std::string text;
  try {
    for (const auto& tensors : shards) {
      const std::string name =
          target.filename().string() + "." + generation + "-" + std::to_string(index.shards.size()) + std::string(kShardEnding);
      const auto path = target.parent_path() / name;
      write_safetensors(path, tensors, {{"format", kShardFormat}});
      const Measured measured = measure(path);
      if (!measured.problem.empty()) {
        fail(ErrorKind::kData, target.string(), "expected to read back ", path.string(), ", got ", measured.problem, ". Check the disk.");
      }
      index.shards.push_back({name, measured.size, measured.digest});
    }
    try {
      index.digest = digest_of(index);
      text = fields_to_json(index).dump(1) + "\n";
    } catch (const nlohmann::json::type_error&) {
      fail(ErrorKind::kUsage, target.string(), "expected names and notes in UTF-8, got others. Choose other texts.");
    }
    require(text.size() <= kLongestIndex, target.string(), "expected notes of at most ", kLongestIndex, " bytes, got more. Note less.");
    write_file_atomically(target, text, target.string());
  } catch (...) {
    // The last thing that can go wrong, syncing the folder, does so with the new index in place.
    if (text.empty() || read_index(target) != text) remove_shards(target, [&](const std::string& other) { return other == generation; });
    throw;
  }
}

}  // namespace

void CheckpointOptions::validate() const {
  constexpr int64_t kSmallest = 4096;
  require(shard_bytes == 0 || shard_bytes >= kSmallest, "CheckpointOptions", "expected shard_bytes to be 0 or at least ", kSmallest,
          ", got ", shard_bytes, ".");
}

std::map<std::string, at::Tensor> tensors_below(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) result.emplace(name.substr(prefix.size()), tensor);
  }
  return result;
}

void add_network(Checkpoint& checkpoint, const torch::nn::Module& network) {
  for (const auto& buffer : network.named_buffers()) checkpoint.tensors.emplace(kNetwork + buffer.key(), buffer.value());
  for (const auto& parameter : network.named_parameters()) {
    checkpoint.tensors.emplace(kNetwork + parameter.key(), parameter.value().detach());
  }
}

void restore_network(const Checkpoint& checkpoint, torch::nn::Module& network, const std::string& origin) {
  check_finite(checkpoint, origin);
  const at::NoGradGuard no_grad;
  Checkpoint mine;
  add_network(mine, network);  // the same memory
  for (const auto& [name, tensor] : mine.tensors) tensor_like(checkpoint, name, tensor, origin);
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name.starts_with(kNetwork) && !mine.tensors.contains(name)) {
      fail(ErrorKind::kData, origin, "expected no tensor ", in_quotes(name), ", which the network in use does not have, got one. ",
           "The checkpoint belongs to another configuration: use that one, or start the run afresh in another folder.");
    }
  }
  for (const auto& [name, tensor] : mine.tensors) tensor.copy_(checkpoint.tensors.at(name));
}

bool restore_average(const Checkpoint& checkpoint, torch::nn::Module& network, const std::string& origin) {
  if (tensors_below(checkpoint.tensors, kAverage).empty()) return false;
  const at::NoGradGuard no_grad;
  auto parameters = network.named_parameters();
  for (const auto& parameter : parameters) tensor_like(checkpoint, kAverage + parameter.key(), parameter.value(), origin);
  for (auto& parameter : parameters) parameter.value().copy_(checkpoint.tensors.at(kAverage + parameter.key()));
  return true;
}

void add_training(Checkpoint& checkpoint, const torch::nn::Module& network, const Optimizer& optimizer) {
  add_network(checkpoint, network);
  for (const auto& [name, tensor] : optimizer.state()) checkpoint.tensors.emplace(kOptimizer + name, tensor);
}

void restore_training(const Checkpoint& checkpoint, torch::nn::Module& network, Optimizer& optimizer, const std::string& origin) {
  check_can_go_on(checkpoint, origin);
  restore_network(checkpoint, network, origin);
  optimizer.restore(tensors_below(checkpoint.tensors, kOptimizer), origin);
}

std::uint64_t fnv1a_of(const at::Tensor& tensor, std::uint64_t digest) {
  if (tensor.numel() == 0) return digest;
  const at::Tensor bytes = tensor.cpu().contiguous().view({-1}).view(at::kByte);
  return fnv1a(std::span(bytes.const_data_ptr<uint8_t>(), static_cast<std::size_t>(bytes.numel())), digest);
}

void add_guard(Checkpoint& checkpoint, const Guard& guard, const World& world) {
  for (const auto& [name, tensor] : guard.state()) {
    checkpoint.tensors.emplace(kGuard + name, name.starts_with(kVectors) ? world.gather(tensor) : tensor);
  }
}

void restore_guard(const Checkpoint& checkpoint, Guard& guard, const std::string& origin, const World& world) {
  std::map<std::string, at::Tensor> state;
  for (auto& [name, tensor] : tensors_below(checkpoint.tensors, kGuard)) {
    if (world.alone() || !name.starts_with(kVectors)) {
      state.emplace(name, tensor);
    } else if (tensor.dim() > 0 && tensor.size(0) % world.size() == 0) {
      const int64_t share = tensor.size(0) / world.size();
      state.emplace(name, tensor.narrow(0, world.rank() * share, share).clone());
    }
  }
  try {
    guard.restore(state);
  } catch (const Error& problem) {
    fail(ErrorKind::kData, origin, problem.what(), " The file is damaged: take another checkpoint, or start the run afresh.");
  }
}

void note_diverged(Checkpoint& checkpoint) { checkpoint.notes[kDiverged] = "true"; }

Checkpoint weights_only(const Checkpoint& checkpoint) {
  constexpr int64_t kSmall = 16;  // sizes and counts, which rounding would change, are among them
  Checkpoint result{.tensors = {}, .notes = checkpoint.notes};
  result.notes[kWeightsOnly] = "bfloat16";
  for (const auto& [name, own] : tensors_below(checkpoint.tensors, kNetwork)) {
    const auto average = checkpoint.tensors.find(kAverage + name);
    const at::Tensor& tensor = average == checkpoint.tensors.end() ? own : average->second;
    result.tensors.emplace(kNetwork + name, tensor.is_floating_point() && tensor.numel() > kSmall ? tensor.to(at::kBFloat16) : tensor);
  }
  return result;
}

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint, const CheckpointOptions& options) {
  options.validate();
  const auto target = behind_link(path);
  std::random_device random;  // not a seeded generator: no two saves may share a generation
  const std::string generation = hexadecimal((std::uint64_t{random()} << 32U) | random());
  if (options.shard_bytes == 0) {
    auto metadata = checkpoint.notes;
    metadata["format"] = kFormat;
    metadata[kDigest] = digest_of(checkpoint);
    write_safetensors(target, checkpoint.tensors, metadata);
  } else {
    save_shards(target, checkpoint, options.shard_bytes, generation);
  }
  remove_shards(target, [&](const std::string& other) { return other != generation; });
}

Checkpoint load_checkpoint(const std::filesystem::path& path) {
  const auto target = behind_link(path);
  for (;;) {
    const auto index = read_index(target);
    try {
      return index ? load_shards(target, *index) : load_one_file(target);
    } catch (const Error&) {
      if (read_index(target) == index) throw;  // else somebody saved meanwhile
    }
  }
}

Checkpoint load_checkpoint(const std::filesystem::path& path, const World& world) {
  Checkpoint checkpoint;
  world.first([&] { checkpoint = load_checkpoint(path); });
  if (world.alone()) return checkpoint;
  nlohmann::json index;
  if (world.leads()) {
    index["notes"] = checkpoint.notes;
    for (const auto& [name, tensor] : checkpoint.tensors) {
      index["tensors"][name] = {{"type", static_cast<int>(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}};
    }
  }
  index = nlohmann::json::parse(world.broadcast(world.leads() ? index.dump() : ""));
  checkpoint.notes = index["notes"].get<std::map<std::string, std::string>>();
  for (const auto& [name, kind] : index["tensors"].items()) {
    at::Tensor& tensor = checkpoint.tensors[name];
    if (!world.leads()) {
      tensor = at::empty(kind["shape"].get<std::vector<int64_t>>(), static_cast<at::ScalarType>(kind["type"].get<int>()));
    }
    tensor = tensor.contiguous();
    if (tensor.numel() > 0) world.broadcast(tensor.view({-1}).view(at::kByte));
  }
  return checkpoint;
}

}  // namespace invattn

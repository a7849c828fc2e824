#include "invattn/experiments/density_grow.h"

#include <ATen/ATen.h>

#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/names.h"
#include "invattn/core/seed.h"
#include "invattn/experiments/training_parts.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/regular_file.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/grow.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "density grow";
constexpr const char* kSizes = "optimizer.size.";
constexpr const char* kVectors = "guard.vectors.";

/// What a run has kept of its weights.
struct Source {
  std::filesystem::path path;
  Checkpoint checkpoint;
  bool whole = false;  // a training can go on from it
};

Source find_source(const std::filesystem::path& run) {
  for (const char* name : {"checkpoint.safetensors", "weights.safetensors"}) {
    const auto path = run / name;
    if (std::filesystem::exists(path)) {
      auto checkpoint = load_checkpoint(path);
      const bool whole = !tensors_below(checkpoint.tensors, "optimizer.").empty();
      return {path, std::move(checkpoint), whole};
    }
  }
  const auto path = run / "model.safetensors";
  if (!std::filesystem::exists(path)) {
    fail(ErrorKind::kData, kOrigin, "expected checkpoint.safetensors, weights.safetensors or model.safetensors in '", run.string(),
         "', got none. Train the run first.");
  }
  Source source{.path = path, .checkpoint = {}};
  add_network(source.checkpoint, *load(path));
  return source;
}

/// Steps that a training has made.
int64_t step_of(const Source& source) {
  const auto note = source.checkpoint.notes.find("progress");
  if (note != source.checkpoint.notes.end()) {
    const std::string origin = source.path.string();
    return count_at(parse_json(note->second, origin), "step", origin);
  }
  fail(ErrorKind::kData, source.path.string(),
       "expected the checkpoint of a density training, got one without its progress. Use --restart.");
}

/// The mean size of the gradient, of the old weights by their role in a block, and of all of them.
class MeanSizes {
 public:
  explicit MeanSizes(const std::map<std::string, at::Tensor>& tensors) {
    for (const auto& [name, size] : tensors_below(tensors, kSizes)) {
      const auto block = flow_block_name(name);
      for (Sum* sum : {&all_, block ? &roles_[block->rest] : nullptr}) {
        if (sum == nullptr) continue;
        sum->total += size.sum(at::kDouble).item<double>();
        sum->count += size.numel();
      }
    }
  }

  double of(const std::string& name) const {
    const auto block = flow_block_name(name);
    const auto found = block ? roles_.find(block->rest) : roles_.end();
    return (found == roles_.end() ? all_ : found->second).mean();
  }

 private:
  struct Sum {
    double total = 0;
    int64_t count = 0;
    double mean() const { return count > 0 ? total / static_cast<double>(count) : 0; }
  };
  std::map<std::string, Sum> roles_;
  Sum all_;
};

/// The checkpoint of the training with the larger flow. `flow` gets the old weights.
Checkpoint grown_training(const Source& source, const FlowGrowth& growth, Flow& flow, const DensityOptions& from,
                          const DensityOptions& to) {
  Optimizer optimizer(*flow, from.optimizer);
  restore_training(source.checkpoint, *flow, optimizer, source.path.string());
  const Flow grown = growth.apply(*flow);
  const Optimizer larger(*grown, to.optimizer);
  Checkpoint result{.tensors = {}, .notes = source.checkpoint.notes};
  add_training(result, *grown, larger);
  const MeanSizes sizes(source.checkpoint.tensors);
  for (auto& [name, tensor] : result.tensors) {
    if (name.starts_with(kSizes) && growth.is_new(name)) tensor = at::full_like(tensor, sizes.of(name));
  }
  for (const auto& [name, tensor] : source.checkpoint.tensors) {
    if (name.starts_with("network.") || name.starts_with(kVectors)) continue;
    const std::string place = growth.name(name);
    // An average that is no longer wanted has no place.
    if (!name.starts_with("optimizer.") || result.tensors.contains(place)) result.tensors[place] = tensor;
  }
  const auto vectors = tensors_below(source.checkpoint.tensors, kVectors);  // by the number of the attention block
  for (int64_t i = 0; i < static_cast<int64_t>(vectors.size()); ++i) {
    const auto found = vectors.find(std::to_string(i));
    if (found != vectors.end()) result.tensors[kVectors + std::to_string(growth.attention(i))] = found->second;
  }
  return result;
}

/// A folder that is emptied again unless all went well.
class NewFolder {
 public:
  explicit NewFolder(std::filesystem::path path) : path_(std::move(path)), existed_(std::filesystem::exists(path_)) {
    const bool free = !existed_ || (std::filesystem::is_directory(path_) && std::filesystem::is_empty(path_));
    require(free, kOrigin, "expected a new or empty folder, got '", path_.string(), "', which is something else. Name another by --out.");
    make_folder(path_, kOrigin);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    if (kept_) return;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) std::filesystem::remove_all(entry.path(), ignored);
    if (!existed_) std::filesystem::remove(path_, ignored);
  }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool existed_;
  bool kept_ = false;
};

}  // namespace

GrownDensity grow_density(const DensityOptions& from, const DensityOptions& to, const DensityGrowth& growth) {
  const FlowGrowth flow_growth(from.flow, to.flow);
  from.validate();
  to.validate();
  const double weights = from.flow.size().weights + to.flow.size().weights;
  require_memory(sizeof(float) * weights, kOrigin, "flows of " + number_text("%.3g", weights) + " weights");
  const InterruptWatch watch;
  const Source source = find_source(growth.run);
  GrownDensity result{.inserted = flow_growth.inserted(), .goes_on = source.whole && !growth.restart};
  Flow flow(from.flow);
  at::manual_seed(derive_seed(static_cast<uint64_t>(to.seed), "inserted blocks"));
  Checkpoint checkpoint;
  if (result.goes_on) {
    result.step = step_of(source);
    require(result.step < to.steps, kOrigin, "expected more steps than the ", result.step, " that were made, got ", to.steps,
            ". Add --set steps=…, or --restart for a training of its own from the weights.");
    require(from.optimizer.method == to.optimizer.method, kOrigin, "expected optimizer.method to stay ", from.optimizer.method, ", got ",
            to.optimizer.method, ". The optimiser's state is of the first; add --restart to begin without it.");
    checkpoint = grown_training(source, flow_growth, flow, from, to);
  } else {
    restore_network(source.checkpoint, *flow, source.path.string());
    restore_average(source.checkpoint, *flow, source.path.string());
    add_network(checkpoint, *flow_growth.apply(*flow));
  }
  result.weights_before = parameter_count(*flow);
  result.weights = parameter_count(*Flow(to.flow));

  NewFolder folder(growth.out);
  InterruptWatch::check();
  const auto* name = result.goes_on ? "checkpoint.safetensors" : "weights.safetensors";
  save_checkpoint(growth.out / name, checkpoint, {.shard_bytes = growth.shard_bytes});
  if (const auto metrics = growth.run / "metrics.jsonl"; result.goes_on && std::filesystem::exists(metrics)) {
    write_file_atomically(growth.out / "metrics.jsonl", read_regular_file(metrics, {.origin = kOrigin, .what = "a file of a run"}),
                          kOrigin);
  }
  InterruptWatch::check();
  write_file_atomically(growth.out / "config.toml", write_toml(to), kOrigin);  // last: it makes the folder a run
  folder.keep();
  return result;
}

}  // namespace invattn

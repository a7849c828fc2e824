#include "invattn/experiments/reconstruction_options.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>
#include <variant>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/data/image_set.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "reconstruct";
constexpr int64_t kLargestImage = 4096;
constexpr int64_t kMostOfThem = 1'000'000;  // images, passes
constexpr int64_t kChannels = 12;           // of a squeezed colour image

/// Letters, digits and single dashes: a piece of a file name.
std::string slug(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    } else if (!result.empty() && result.back() != '-') {
      result += '-';
    }
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  return result;
}

template <class T>
void apply(const std::optional<T>& given, T& value) {
  if (given) value = *given;
}

}  // namespace

std::string ReconstructionVariant::title() const { return name.empty() ? std::string(to_string(preset)) : name; }

std::string ReconstructionVariant::solver_name() const {
  if (solver) return *solver;
  return preset == AttentionPreset::kGuarded || preset == AttentionPreset::kStrict ? std::string(AndersonOptions::kName)
                                                                                   : std::string(FixedPointOptions::kName);
}

AttentionOptions ReconstructionVariant::attention(AttentionKind kind, int64_t channels) const {
  AttentionOptions options = attention_preset(preset, kind, channels);
  apply(heads, options.heads);
  apply(phi, options.phi);
  apply(value_constant, options.value_constant);
  apply(output_constant, options.output_constant);
  apply(mass, options.mass);
  apply(response_constant, options.response_constant);
  apply(normalization, options.normalization);
  apply(constant, options.constant);
  if (preset == AttentionPreset::kStrict) options.radius = 0.5;  // pixels lie in [-0.5, 0.5), and a squeeze moves them only
  apply(radius, options.radius);
  return options;
}

void ReconstructionVariant::validate() const {
  require_field(preset != AttentionPreset::kPlain, kOrigin, "preset",
                "expected preset paper, published-code, guarded or strict, got plain, which has no inverse.");
  require_field(!learning_rate || (*learning_rate > 0 && *learning_rate <= kLargestRate), kOrigin, "learning_rate",
                "expected a positive learning_rate, got ", learning_rate.value_or(0), ".");
  require_range(kOrigin, "fixed_point_iterations", fixed_point_iterations.value_or(1), int64_t{1}, kMostIterations);
  check_fields({"solver"}, [&] { solver_options_named(solver_name()); });
  require_field(!slug(title()).empty(), kOrigin, "name", "expected a name with a letter or digit, got '", name, "'.");
}

void ReconstructionOptions::validate() const {
  const auto positive = [](const char* name, int64_t value, int64_t largest) {
    require_field(value > 0 && value <= largest, kOrigin, name, "expected ", name, " from 1 to ", largest, ", got ", value, ".");
  };
  require_field(!data.empty(), kOrigin, "data", "expected data, got none. Name a data set, for example synthetic or cifar10:PATH.");
  require_field(!kinds.empty(), kOrigin, "kinds", "expected kinds of attention, got none.");
  require_field(!variants.empty(), kOrigin, "variants", "expected variants, got none. Give one, for example preset guarded.");
  require_field(!seeds.empty(), kOrigin, "seeds", "expected seeds, got none.");
  require_field(height % 2 == 0 && width % 2 == 0, kOrigin, height % 2 == 0 ? "width" : "height", "expected an even height and width, got ",
                height, " x ", width, ": the squeeze takes blocks of 2 x 2 pixels.");
  constexpr int64_t kSmallestImage = 12;  // the similarity of two images is seen through a window of 11 x 11
  require_range(kOrigin, "height", height, kSmallestImage, kLargestImage);
  require_range(kOrigin, "width", width, kSmallestImage, kLargestImage);
  positive("train_images", train_images, kMostOfThem);
  positive("test_images", test_images, kMostOfThem);
  positive("epochs", epochs, kMostOfThem);
  positive("batch", batch, kMostOfThem);
  require_field(learning_rate > 0 && learning_rate <= kLargestRate, kOrigin, "learning_rate", "expected a positive learning_rate, got ",
                learning_rate, ".");
  require_range(kOrigin, "measured_images", measured_images, int64_t{0}, kMostOfThem);
  require_fields(pictures >= 0 && pictures <= test_images, kOrigin, {"pictures", "test_images"},
                 "expected pictures from 0 to test_images (", test_images, "), got ", pictures, ".");
  std::set<DataSet> sets;
  check_fields({"data"}, [&] {
    for (const std::string& source : data) sets.insert(parse_data_source(source, kOrigin).set);
  });
  for (const int64_t seed : seeds) require_field(seed >= 0, kOrigin, "seeds", "expected seeds of 0 or more, got ", seed, ".");
  validate_field("guard", guard);
  validate_field("inverse", inverse);
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const ReconstructionVariant& variant = variants[i];
    const std::string place = "variants[" + std::to_string(i) + "]";
    validate_field(place, variant);
    for (const AttentionKind kind : kinds) validate_field(place, variant.attention(kind, kChannels));
    require_field(std::find(inverse.solvers.begin(), inverse.solvers.end(), variant.solver_name()) != inverse.solvers.end(), kOrigin,
                  "inverse.solvers", "expected ", variant.solver_name(), ", whose inverse the table of '", variant.title(),
                  "' shows, among the solvers, got others only. Add it to inverse.solvers.");
  }
  const auto repeated = [](const auto& list) { return std::set(list.begin(), list.end()).size() < list.size(); };
  const char* twice = repeated(seeds) ? "seeds" : repeated(kinds) ? "kinds" : sets.size() < data.size() ? "data" : "variants";
  std::set<std::string> ids;
  for (const ReconstructionCell& cell : cells_of(*this)) {
    require_field(ids.insert(cell.id(*this)).second, kOrigin, twice, "expected every data set, kind, variant and seed once, got '",
                  cell.title(), "' twice. Give variants different names.");
  }
}

void ReconstructionInverse::validate() const {
  require_field(!solvers.empty(), kOrigin, "solvers", "expected solvers, got none. Name one, for example anderson.");
  check_fields({"solvers"}, [&] {
    for (const std::string& name : solvers) solver_options_named(name);
  });
  for (const auto& [name, value] :
       {std::pair{"fixed_point_iterations", fixed_point_iterations}, std::pair{"anderson_iterations", anderson_iterations},
        std::pair{"newton_iterations", newton_iterations}}) {
    require_range(kOrigin, name, value, int64_t{1}, kMostIterations);
  }
  require_range(kOrigin, "anderson_memory", anderson_memory, int64_t{1}, int64_t{1000});
  require_range(kOrigin, "newton_krylov", newton_krylov, int64_t{1}, int64_t{10'000});
  require_field(tolerance > 0 && tolerance <= 1, kOrigin, "tolerance", "expected a positive tolerance of at most 1, got ", tolerance, ".");
}

SolverOptions ReconstructionInverse::options(const std::string& solver, const ReconstructionVariant& variant) const {
  SolverOptions result = solver_options_named(solver);
  if (auto* fixed_point = std::get_if<FixedPointOptions>(&result)) {
    fixed_point->max_iterations = variant.fixed_point_iterations.value_or(fixed_point_iterations);
  } else if (auto* anderson = std::get_if<AndersonOptions>(&result)) {
    anderson->max_iterations = anderson_iterations;
    anderson->memory = anderson_memory;
  } else if (auto* newton = std::get_if<NewtonKrylovOptions>(&result)) {
    newton->max_iterations = newton_iterations;
    newton->krylov = newton_krylov;
  }
  std::visit(
      [this](auto& method) {
        method.tolerance = tolerance;
        method.trace = true;
      },
      result);
  return result;
}

std::string ReconstructionCell::id(const ReconstructionOptions& options) const {
  return std::string(to_string(parse_data_source(data, kOrigin).set)) + "-" + std::to_string(options.height) + "x" +
         std::to_string(options.width) + "_" + std::string(to_string(kind)) + "_" + slug(variant.title()) + "_" + std::to_string(seed);
}

std::string ReconstructionCell::title() const {
  return std::string(to_string(parse_data_source(data, kOrigin).set)) + " " + std::string(to_string(kind)) + " " + variant.title() +
         ", seed " + std::to_string(seed);
}

std::vector<ReconstructionCell> cells_of(const ReconstructionOptions& options) {
  std::vector<ReconstructionCell> cells;
  for (const int64_t seed : options.seeds) {
    for (const std::string& data : options.data) {
      for (const AttentionKind kind : options.kinds) {
        for (const ReconstructionVariant& variant : options.variants) {
          cells.push_back({.data = data, .kind = kind, .variant = variant, .seed = seed, .pictured = seed == options.seeds.front()});
        }
      }
    }
  }
  return cells;
}

}  // namespace invattn

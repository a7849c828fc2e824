#include "invattn/report/reconstruction/album.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <utility>

namespace invattn::reporting {
namespace {

/// So many images in so much detail.
struct Plan {
  std::int64_t images;
  Detail detail;
};

/// From the richest to the poorest; the first that fits is taken.
constexpr std::array<Plan, 8> kPlans{{{6, {.frames = 14, .side = 112, .positions = 256}},
                                      {5, {.frames = 12, .side = 112, .positions = 256}},
                                      {4, {.frames = 12, .side = 96, .positions = 64}},
                                      {3, {.frames = 10, .side = 80, .positions = 64}},
                                      {2, {.frames = 10, .side = 64, .positions = 64}},
                                      {2, {.frames = 7, .side = 48, .positions = 64}},
                                      {1, {.frames = 6, .side = 48, .positions = 64}},
                                      {1, {.frames = 4, .side = 32, .positions = 16}}}};
/// From a difference, -255 to 255, to the code of the nearest level.
const std::array<std::uint8_t, 511>& difference_codes() {
  static const std::array<std::uint8_t, 511> codes = [] {
    std::array<std::uint8_t, 511> result{};
    const std::vector<int>& levels = difference_levels();
    for (int difference = -255; difference <= 255; ++difference) {
      std::size_t best = 0;
      for (std::size_t code = 0; code < levels.size(); ++code) {
        if (std::abs(levels[code] - difference) < std::abs(levels[best] - difference)) best = code;
      }
      result[static_cast<std::size_t>(difference + 255)] = static_cast<std::uint8_t>(best);
    }
    return result;
  }();
  return codes;
}

const std::uint8_t* bytes_of(const at::Tensor& tensor) { return tensor.data_ptr<std::uint8_t>(); }

/// At most `most` of the iterates, first and last among them, such that about as much happens between any two.
std::vector<std::int64_t> choose_frames(const at::Tensor& images, std::int64_t most) {
  const std::int64_t count = images.size(0);
  std::vector<std::int64_t> chosen;
  if (count <= most) {
    for (std::int64_t t = 0; t < count; ++t) chosen.push_back(t);
    return chosen;
  }
  constexpr std::int64_t kEnough = 48;  // pixels a side that tell how far an iterate has moved
  const std::int64_t stride = std::max<std::int64_t>(1, images.size(-1) / kEnough);
  const at::Tensor coarse = images.slice(-1, 0, std::nullopt, stride).slice(-2, 0, std::nullopt, stride).to(at::kFloat);
  std::vector<double> travelled = {0.0};
  for (std::int64_t t = 1; t < count; ++t) {
    const double step = (coarse[t] - coarse[t - 1]).abs().mean().item<double>();
    travelled.push_back(travelled.back() + std::sqrt(step) + 1e-3);
  }
  for (std::int64_t t = 0; t < count; ++t) {
    const auto wanted = travelled.back() * static_cast<double>(chosen.size()) / static_cast<double>(most - 1);
    if (travelled[static_cast<std::size_t>(t)] >= wanted * (1 - 1e-9)) chosen.push_back(t);
  }
  return chosen;
}

void append_differences(std::vector<std::uint8_t>& out, const at::Tensor& frame, const at::Tensor& original) {
  const std::uint8_t* shown = bytes_of(frame);
  const std::uint8_t* wanted = bytes_of(original);
  const auto& codes = difference_codes();
  for (std::int64_t i = 0; i < frame.numel(); ++i) out.push_back(codes[static_cast<std::size_t>(255 + int{shown[i]} - int{wanted[i]})]);
}

/// Packs one network after another, images by their number.
class Packer {
 public:
  explicit Packer(const Plan& plan) : detail_(plan.detail), most_(plan.images) {}

  PackedPictures pack_network(const Pictures& pictures, std::vector<PackedOriginals>& all, std::vector<at::Tensor>& seen) const {
    PackedPictures packed;
    const std::int64_t count = std::min(pictures.count(), most_);
    const at::Tensor originals = shrink(pictures.originals.narrow(0, 0, count), detail_.side);
    packed.originals = place_originals(originals, all, seen);

    std::vector<at::Tensor> frames;  // per solver (T, K, 3, h, w)
    for (const Frames& of_solver : pictures.frames) {
      const std::vector<std::int64_t> chosen = choose_frames(of_solver.images, detail_.frames);
      PackedFrames& meta = packed.solvers.emplace_back();
      meta.solver = of_solver.solver;
      const at::Tensor index = at::tensor(chosen, at::kLong);
      const at::Tensor shown = of_solver.images.narrow(1, 0, count).index_select(0, index);
      const at::Tensor errors = (shown.to(at::kFloat) - pictures.originals.narrow(0, 0, count).to(at::kFloat))
                                    .square()
                                    .mean({2, 3, 4})
                                    .to(at::kDouble);  // (T, K)
      const at::Tensor residuals = of_solver.residuals.index_select(0, index);
      for (const std::int64_t t : chosen) meta.iterations.push_back(of_solver.iterations[static_cast<std::size_t>(t)]);
      for (std::int64_t k = 0; k < count; ++k) {
        meta.residuals.push_back(column(residuals, k));
        meta.errors.push_back(column(errors, k));
      }
      frames.push_back(shrink(shown, detail_.side));
      meta.shares_start = frames.size() > 1 && frames.back()[0].equal(frames.front()[0]);
    }

    packed.response = pack_response(pictures.response.narrow(0, 0, count), pictures.grid_rows, pictures.grid_columns, detail_.positions);

    for (std::int64_t k = 0; k < count; ++k) {
      std::vector<std::uint8_t> bytes;
      for (std::size_t s = 0; s < frames.size(); ++s) {
        for (std::int64_t t = packed.solvers[s].shares_start ? 1 : 0; t < frames[s].size(0); ++t) {
          append_differences(bytes, frames[s][t][k].contiguous(), originals[k]);
        }
      }
      const double factor = amplification(pictures.error[k]);
      packed.factors.push_back(factor);
      const at::Tensor error = shrink((pictures.error[k] * factor).clamp(0, 255).round().to(at::kByte), detail_.side);
      for (std::int64_t i = 0; i < error.numel(); ++i) {
        bytes.push_back(static_cast<std::uint8_t>((int{bytes_of(error)[i]} * (kErrorLevels - 1) + 127) / 255));
      }
      packed.images.push_back(pack(bytes));
    }
    return packed;
  }

 private:
  static std::vector<double> column(const at::Tensor& values, std::int64_t k) {
    const at::Tensor line = values.select(1, k).contiguous();
    return {line.data_ptr<double>(), line.data_ptr<double>() + line.numel()};
  }

  /// The networks of a data set are shown the same images; they are stored once.
  static std::size_t place_originals(const at::Tensor& originals, std::vector<PackedOriginals>& all, std::vector<at::Tensor>& seen) {
    const auto same = std::find_if(seen.begin(), seen.end(), [&originals](const at::Tensor& other) { return other.equal(originals); });
    if (same != seen.end()) return static_cast<std::size_t>(same - seen.begin());
    PackedOriginals packed{.height = originals.size(2), .width = originals.size(3)};
    for (std::int64_t k = 0; k < originals.size(0); ++k) packed.images.push_back(pack_picture(originals[k]));
    all.push_back(std::move(packed));
    seen.push_back(originals);
    return all.size() - 1;
  }

  Detail detail_;
  std::int64_t most_;
};

std::size_t text_size(const std::vector<std::string>& texts) {
  std::size_t size = 0;
  for (const std::string& text : texts) size += text.size();
  return size;
}

std::size_t size_in_page(const PackedPictures& network) {
  constexpr std::size_t kPerFrame = 24;  // bytes of a residual and an error in JSON
  std::size_t size = text_size(network.images) + text_size(network.response.maps);
  for (const PackedFrames& frames : network.solvers) size += kPerFrame * frames.iterations.size() * network.images.size();
  return size;
}

/// Nothing where the pictures need more than `budget`; it is noticed early.
std::optional<Album> try_plan(const Plan& plan, const std::vector<const Cell*>& cells, std::size_t budget) {
  Album album;
  std::vector<at::Tensor> seen;
  std::size_t used = 0;
  const Packer packer(plan);
  for (const Cell* cell : cells) {
    PackedPictures& network = album.networks.emplace_back();
    if (!cell->has_pictures) continue;
    const Pictures pictures = read_pictures(*cell);
    const std::size_t sets = album.originals.size();
    network = packer.pack_network(pictures, album.originals, seen);
    used += size_in_page(network);
    if (album.originals.size() > sets) used += text_size(album.originals.back().images);
    if (used > budget) return std::nullopt;
    album.left_out = std::max(album.left_out, pictures.count() - static_cast<std::int64_t>(network.images.size()));
  }
  return album;
}

}  // namespace

const std::vector<int>& difference_levels() {
  static const std::vector<int> levels = [] {
    std::vector<int> result = {0};
    for (const int size : {1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 85, 113, 150, 200, 255}) {
      result.push_back(size);
      result.push_back(-size);
    }
    return result;
  }();
  return levels;
}

double amplification(const at::Tensor& error) {
  constexpr double kFullScale = 255;
  constexpr double kNearlyAll = 0.995;
  const at::Tensor finite = error.masked_select(error.isfinite());
  if (finite.numel() == 0) return 1;
  const at::Tensor sorted = std::get<0>(finite.to(at::kDouble).sort());
  const auto place = static_cast<std::int64_t>(kNearlyAll * static_cast<double>(sorted.numel() - 1));
  const double high = sorted[place].item<double>();
  constexpr double kSmallest = 1e-9;  // below it there is nothing to see
  if (!(high > kSmallest)) return 1;
  const double power = std::pow(10.0, std::floor(std::log10(kFullScale / high)));
  for (const double step : {5.0, 2.0}) {
    if (high * power * step <= kFullScale) return std::max(1.0, power * step);
  }
  return std::max(1.0, power);
}

Album pack_pictures(const std::vector<const Cell*>& cells, std::size_t budget) {
  for (const Plan& plan : kPlans) {
    if (std::optional<Album> album = try_plan(plan, cells, budget)) return *std::move(album);
  }
  return {.networks = std::vector<PackedPictures>(cells.size()), .left_out = kPlans.front().images};
}

}  // namespace invattn::reporting

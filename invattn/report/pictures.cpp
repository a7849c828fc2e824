#include "invattn/report/pictures.h"

#include <ATen/ATen.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/report/grouping.h"

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
constexpr std::int64_t kMostKeys = 256;  // positions of a packed response map

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

std::string compress_bytes(const std::vector<std::uint8_t>& bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::string result(size, '\0');
  const int status =
      compress2(reinterpret_cast<Bytef*>(result.data()), &size, bytes.data(), static_cast<uLong>(bytes.size()), Z_DEFAULT_COMPRESSION);
  TORCH_CHECK(status == Z_OK, "zlib failed with status ", status);  // out of memory: nothing else can go wrong in memory
  result.resize(size);
  return result;
}

std::string pack(const std::vector<std::uint8_t>& bytes) { return base64(compress_bytes(bytes)); }

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

/// Every stride-th row and column of a grid of positions, as indices.
at::Tensor grid_subset(std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  const at::Tensor r = at::arange(0, rows, stride);
  const at::Tensor c = at::arange(0, columns, stride);
  return (r.unsqueeze(1) * columns + c.unsqueeze(0)).reshape({-1});
}

std::int64_t stride_for(std::int64_t rows, std::int64_t columns, std::int64_t most) {
  std::int64_t stride = 1;
  while (((rows + stride - 1) / stride) * ((columns + stride - 1) / stride) > most) ++stride;
  return stride;
}

/// (K, P, P) of a large grid, averaged down to a small one on both sides.
at::Tensor shrink_response(const at::Tensor& response, PackedResponse& packed) {
  const std::int64_t factor = stride_for(packed.rows, packed.columns, kMostKeys);
  const std::int64_t count = response.size(0);
  const std::int64_t positions = response.size(1);
  const auto pool = [&](const at::Tensor& maps) {  // (n, rows, columns)
    return at::avg_pool2d(maps.unsqueeze(1), {factor, factor}, {factor, factor}, {0, 0}, /*ceil_mode=*/true, /*count_include_pad=*/false);
  };
  at::Tensor keys = pool(response.to(at::kFloat).reshape({count * positions, packed.rows, packed.columns}));
  const std::int64_t rows = keys.size(2);
  const std::int64_t columns = keys.size(3);
  keys = keys.reshape({count, positions, rows * columns}).transpose(1, 2).reshape({-1, packed.rows, packed.columns});
  const at::Tensor both = pool(keys).reshape({count, rows * columns, rows * columns}).transpose(1, 2);  // (K, queries, keys)
  packed.rows = rows;
  packed.columns = columns;
  return (both / both.amax(2, /*keepdim=*/true).clamp_min(1e-6) * 255).round().to(at::kByte).contiguous();
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

at::Tensor stretch_response(const at::Tensor& response) {
  const at::Tensor least = response.amin(-1, /*keepdim=*/true).to(at::kFloat);
  const at::Tensor range = response.amax(-1, /*keepdim=*/true).to(at::kFloat) - least;
  return at::where(range > 0, (response.to(at::kFloat) - least) / range.clamp_min(1), at::ones({}));
}

at::Tensor shrink(const at::Tensor& images, std::int64_t side) {
  const std::int64_t longest = std::max(images.size(-1), images.size(-2));
  const std::int64_t factor = (longest + side - 1) / side;
  if (factor <= 1) return images.contiguous();
  const std::vector<std::int64_t> shape = images.sizes().vec();
  const at::Tensor flat = images.reshape({-1, 1, images.size(-2), images.size(-1)}).to(at::kFloat);
  const at::Tensor small =
      at::avg_pool2d(flat, {factor, factor}, {factor, factor}, {0, 0}, /*ceil_mode=*/true, /*count_include_pad=*/false);
  std::vector<std::int64_t> small_shape(shape.begin(), shape.end() - 2);
  small_shape.push_back(small.size(-2));
  small_shape.push_back(small.size(-1));
  return small.round().to(at::kByte).reshape(small_shape).contiguous();
}

std::string pack_picture(const at::Tensor& bytes) {
  const at::Tensor flat = bytes.contiguous();
  std::vector<std::uint8_t> steps(bytes_of(flat), bytes_of(flat) + flat.numel());
  for (std::size_t i = steps.size() - 1; i > 0; --i) steps[i] = static_cast<std::uint8_t>(steps[i] - steps[i - 1]);
  return pack(steps);
}

PackedResponse pack_response(const at::Tensor& response, std::int64_t rows, std::int64_t columns, std::int64_t positions) {
  PackedResponse packed{.rows = rows, .columns = columns};
  at::Tensor asked = response;
  if (response.size(1) == 1 && rows * columns > 1) {
    packed.stride = 0;
  } else {
    if (rows * columns > kMostKeys) asked = shrink_response(asked, packed);
    packed.stride = stride_for(packed.rows, packed.columns, positions);
    asked = asked.index_select(1, grid_subset(packed.rows, packed.columns, packed.stride));
  }
  const at::Tensor levels = (stretch_response(asked) * (kResponseLevels - 1)).round().to(at::kByte);
  asked = at::cat({asked.amin(2, /*keepdim=*/true), levels}, 2).contiguous();
  for (std::int64_t k = 0; k < asked.size(0); ++k) packed.maps.push_back(pack({bytes_of(asked[k]), bytes_of(asked[k]) + asked[k].numel()}));
  return packed;
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

std::string base64(const std::string& bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  result.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) group = (group << 8U) | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j) result += i + j > bytes.size() ? '=' : kLetters[(group >> (18U - 6U * j)) & 63U];
  }
  return result;
}

Album pack_pictures(const std::vector<const Cell*>& cells, std::size_t budget) {
  for (const Plan& plan : kPlans) {
    if (std::optional<Album> album = try_plan(plan, cells, budget)) return *std::move(album);
  }
  return {.networks = std::vector<PackedPictures>(cells.size()), .left_out = kPlans.front().images};
}

}  // namespace invattn::reporting

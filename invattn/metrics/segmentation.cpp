#include "invattn/metrics/segmentation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "invattn/core/error.h"

// There are only 256 grey levels, so that all measures but the weighted F follow from how often each occurs on the object and beside it, in
// each of the four quadrants of the S-measure: one pass over the pixels, the rest is a few sums over levels.

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "segmentation_scores";
constexpr std::size_t kLevels = 256;
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();  // keeps denominators from 0 in all the definitions
constexpr int kObjectLevel = 128;                                    // the truth's object is above

using Levels = std::array<double, kLevels>;  // a number for each grey level

// --- the prediction in the truth's size --------------------------------------------------------------------------------------------

/// One axis of a bilinear resize in OpenCV's fixed-point numbers, for each target pixel: its two sources, and their weights in 1 / 2048.
struct Taps {
  std::vector<int64_t> first, second;
  std::vector<int32_t> first_weight, second_weight;

  /// Beyond the outermost centres the edge is repeated. OpenCV gives the edge of a row weight 1, but splits that of a column between two
  /// equal rows, which its rounding shows.
  Taps(int64_t from, int64_t to, bool split_edges) {
    constexpr float kOne = 2048;
    const double scale = 1.0 / (static_cast<double>(to) / static_cast<double>(from));
    for (int64_t i = 0; i < to; ++i) {
      const auto centre = static_cast<float>((static_cast<double>(i) + 0.5) * scale - 0.5);
      auto source = static_cast<int64_t>(std::floor(centre));
      float fraction = centre - static_cast<float>(source);
      if (!split_edges && (source < 0 || source >= from - 1)) fraction = 0;
      first.push_back(std::clamp<int64_t>(source, 0, from - 1));
      second.push_back(std::clamp<int64_t>(source + 1, 0, from - 1));
      first_weight.push_back(static_cast<int32_t>(std::lrint((1.0F - fraction) * kOne)));
      second_weight.push_back(static_cast<int32_t>(std::lrint(fraction * kOne)));
    }
  }
};

std::vector<uint8_t> resize(const at::Tensor& map, int64_t height, int64_t width) {
  const Taps rows(map.size(0), height, true);
  const Taps columns(map.size(1), width, false);
  const auto* source = map.const_data_ptr<uint8_t>();
  const auto stretched = [&](int64_t row, std::vector<int32_t>& out) {
    const uint8_t* line = source + row * map.size(1);
    for (int64_t x = 0; x < width; ++x) {
      out[x] = (line[columns.first[x]] * columns.first_weight[x] + line[columns.second[x]] * columns.second_weight[x]) >> 4;
    }
  };
  std::vector<uint8_t> result(height * width);
  std::vector<int32_t> above(width);
  std::vector<int32_t> below(width);
  for (int64_t y = 0; y < height; ++y) {
    stretched(rows.first[y], above);
    stretched(rows.second[y], below);
    for (int64_t x = 0; x < width; ++x) {
      const int32_t sum = ((rows.first_weight[y] * above[x]) >> 16) + ((rows.second_weight[y] * below[x]) >> 16);
      result[y * width + x] = static_cast<uint8_t>((sum + 2) >> 2);
    }
  }
  return result;
}

// --- counting ----------------------------------------------------------------------------------------------------------------------

/// A prediction and its truth, of one size.
struct Pair {
  int64_t height = 0;
  int64_t width = 0;
  const uint8_t* levels = nullptr;  // the prediction
  std::vector<uint8_t> object;      // 1 where the truth is above kObjectLevel, else 0
  std::vector<int64_t> columns;     // object pixels in each column
  int64_t objects = 0;              // object pixels in all
  double middle_y = 0;              // the centroid of the object pixels
  double middle_x = 0;

  int64_t size() const { return height * width; }

  Pair(const uint8_t* prediction, const at::Tensor& truth)
      : height(truth.size(0)), width(truth.size(1)), levels(prediction), object(truth.numel()), columns(truth.size(1)) {
    // Short loops over plain pointers, which the compiler turns into wide instructions.
    const int64_t length = width;
    std::vector<uint32_t> counts(length);
    int64_t sum_y = 0;
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* grey = truth.const_data_ptr<uint8_t>() + y * length;
      uint8_t* line = object.data() + y * length;
      uint32_t* column = counts.data();
      for (int64_t x = 0; x < length; ++x) line[x] = static_cast<uint8_t>(grey[x] > kObjectLevel);
      for (int64_t x = 0; x < length; ++x) column[x] += line[x];
      const int64_t count = std::accumulate(line, line + length, uint32_t{0});
      objects += count;
      sum_y += count * y;
    }
    int64_t sum_x = 0;
    for (int64_t x = 0; x < width; ++x) {
      columns[x] = counts[x];
      sum_x += columns[x] * x;
    }
    if (objects > 0) {
      middle_y = static_cast<double>(sum_y) / static_cast<double>(objects);
      middle_x = static_cast<double>(sum_x) / static_cast<double>(objects);
    }
  }
};

/// How many pixels have each grey level, beside the object and on it.
struct Counts {
  std::array<std::array<int64_t, kLevels>, 2> of{};

  int64_t total(int part) const { return std::accumulate(of[part].begin(), of[part].end(), int64_t{0}); }

  Counts& operator+=(const Counts& other) {
    for (int part = 0; part < 2; ++part) {
      for (std::size_t level = 0; level < kLevels; ++level) of[part][level] += other.of[part][level];
    }
    return *this;
  }
};

/// The pixels of rows `top` to `bottom` and columns `left` to `right`, the latter of each not counted.
struct Quadrant {
  int64_t top, bottom, left, right;

  int64_t height() const { return bottom - top; }
  int64_t width() const { return right - left; }
  int64_t size() const { return height() * width(); }
};

/// The S-measure cuts the image behind the object's centroid.
std::array<Quadrant, 4> quadrants_of(const Pair& pair) {
  const int64_t y = std::lrint(pair.middle_y) + 1;  // a half to the even side
  const int64_t x = std::lrint(pair.middle_x) + 1;
  return {{{0, y, 0, x}, {0, y, x, pair.width}, {y, pair.height, 0, x}, {y, pair.height, x, pair.width}}};
}

Counts count(const Pair& pair, const Quadrant& quadrant) {
  // Four tables in turn: neighbours often have the same level, and would wait for each other's sum.
  constexpr int64_t kTables = 4;
  std::array<std::array<uint32_t, 2 * kLevels>, kTables> tables{};
  for (int64_t y = quadrant.top; y < quadrant.bottom; ++y) {
    const uint8_t* level = pair.levels + y * pair.width;
    const uint8_t* object = pair.object.data() + y * pair.width;
    const auto place = [&](int64_t x) { return object[x] * kLevels + level[x]; };
    int64_t x = quadrant.left;
    for (; x + kTables <= quadrant.right; x += kTables) {
      for (int64_t i = 0; i < kTables; ++i) ++tables[i][place(x + i)];
    }
    for (; x < quadrant.right; ++x) ++tables[0][place(x)];
  }
  Counts counts;
  for (const auto& table : tables) {
    for (std::size_t i = 0; i < table.size(); ++i) counts.of[i / kLevels][i % kLevels] += table[i];
  }
  return counts;
}

/// The prediction's grey levels between 0 and 1: its smallest becomes 0 and its largest 1, unless they are the same.
Levels stretch(const Counts& counts) {
  Levels value{};
  for (std::size_t level = 0; level < kLevels; ++level) value[level] = static_cast<double>(level) / 255;
  const auto seen = [&counts](std::size_t level) { return counts.of[0][level] + counts.of[1][level] > 0; };
  std::size_t low = 0;
  std::size_t high = kLevels - 1;
  while (!seen(low)) ++low;
  while (!seen(high)) --high;
  if (low == high) return value;
  const double smallest = value[low];
  const double range = value[high] - smallest;
  for (double& v : value) v = (v - smallest) / range;
  return value;
}

/// The sum of value[levels[i]] in the order in which numpy adds an array, rounding and all. A threshold of exactly one of the levels, and
/// the S-measure of a quadrant without variation, hang on the last bit of it.
double numpy_sum(const Levels& value, const uint8_t* levels, int64_t count) {
  constexpr int64_t kLanes = 8;
  constexpr int64_t kBlock = 128;
  if (count > kBlock) {
    const int64_t half = count / 2 / kLanes * kLanes;
    return numpy_sum(value, levels, half) + numpy_sum(value, levels + half, count - half);
  }
  double sum = 0;
  int64_t i = 0;
  if (count >= kLanes) {
    std::array<double, kLanes> lanes{};
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value[levels[i + lane]];
    }
    sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  for (; i < count; ++i) sum += value[levels[i]];
  return sum;
}

// --- the measures ------------------------------------------------------------------------------------------------------------------

/// A map cut at a threshold: how many pixels it found, on the object and beside it.
struct Found {
  int64_t on = 0;
  int64_t beside = 0;
};

struct Truth {
  int64_t size = 0;
  int64_t objects = 0;
};

double precision(const Found& found) {
  return found.on == 0 ? 0 : static_cast<double>(found.on) / static_cast<double>(found.on + found.beside);
}

double recall(const Found& found, const Truth& truth) {
  return found.on == 0 ? 0 : static_cast<double>(found.on) / static_cast<double>(truth.objects);
}

double f_measure(const Found& found, const Truth& truth) {
  constexpr double kBetaSquared = 0.3;
  if (found.on == 0) return 0;
  const double p = precision(found);
  const double r = recall(found, truth);
  return (1 + kBetaSquared) * p * r / (kBetaSquared * p + r);
}

double e_measure(const Found& found, const Truth& truth) {
  const int64_t all = found.on + found.beside;
  double sum = 0;
  if (truth.objects == 0) {
    sum = static_cast<double>(truth.size - all);
  } else if (truth.objects == truth.size) {
    sum = static_cast<double>(all);
  } else {
    // The alignment of a pixel depends only on what it is in the map and in the truth.
    const double mean_map = static_cast<double>(all) / static_cast<double>(truth.size);
    const double mean_truth = static_cast<double>(truth.objects) / static_cast<double>(truth.size);
    const auto add = [&](int64_t pixels, double map, double object) {
      const double a = map - mean_map;
      const double b = object - mean_truth;
      const double alignment = 2 * (a * b) / (a * a + b * b + kEpsilon);
      sum += (alignment + 1) * (alignment + 1) / 4 * static_cast<double>(pixels);
    };
    add(found.on, 1, 1);
    add(found.beside, 1, 0);
    add(truth.objects - found.on, 0, 1);
    add(truth.size - truth.objects - found.beside, 0, 0);
  }
  return sum / (static_cast<double>(truth.size) - 1 + kEpsilon);
}

void set_curves(const Counts& counts, const Levels& value, const Truth& truth, SegmentationScores& scores) {
  std::array<Found, kLevels> at_level{};  // by the level of the stretched map
  for (std::size_t level = 0; level < kLevels; ++level) {
    if (counts.of[0][level] + counts.of[1][level] == 0) continue;  // its value may lie outside 0..1
    Found& found = at_level[static_cast<std::size_t>(value[level] * 255)];
    found.on += counts.of[1][level];
    found.beside += counts.of[0][level];
  }
  Found found;
  for (std::size_t threshold = kLevels; threshold-- > 0;) {
    found.on += at_level[threshold].on;
    found.beside += at_level[threshold].beside;
    scores.precision[threshold] = precision(found);
    scores.recall[threshold] = recall(found, truth);
    scores.f[threshold] = f_measure(found, truth);
    scores.e[threshold] = e_measure(found, truth);
  }
}

Found found_from(const Counts& counts, const Levels& value, double threshold) {
  Found found;
  for (std::size_t level = 0; level < kLevels; ++level) {
    if (value[level] < threshold) continue;
    found.on += counts.of[1][level];
    found.beside += counts.of[0][level];
  }
  return found;
}

/// How evenly a part of the image, the object or what is beside it, got the value it should have: 1, where `score_of` says how far it is.
template <class Score>
double object_score(const std::array<int64_t, kLevels>& counts, Score&& score_of) {
  int64_t pixels = 0;
  double sum = 0;
  for (std::size_t level = 0; level < kLevels; ++level) {
    pixels += counts[level];
    sum += static_cast<double>(counts[level]) * score_of(level);
  }
  const double mean = sum / static_cast<double>(pixels);
  double squares = 0;
  for (std::size_t level = 0; level < kLevels; ++level) {
    squares += static_cast<double>(counts[level]) * (score_of(level) - mean) * (score_of(level) - mean);
  }
  const double deviation = pixels > 1 ? std::sqrt(squares / static_cast<double>(pixels - 1)) : 0;
  return 2 * mean / (mean * mean + 1 + deviation + kEpsilon);
}

/// The mean of a quadrant all of whose pixels have this level, as numpy computes it: rows that do not follow one another in memory are
/// first copied into a buffer, as many as fit.
double numpy_mean_of_equal(const Levels& value, uint8_t level, const Quadrant& quadrant, int64_t image_width) {
  constexpr int64_t kBuffer = 8192;
  const bool one_stride = quadrant.width() == image_width || quadrant.width() == 1 || quadrant.height() == 1;
  const int64_t rows = one_stride ? quadrant.height() : std::max<int64_t>(1, kBuffer / quadrant.width());
  const std::vector<uint8_t> piece(std::min(rows, quadrant.height()) * quadrant.width(), level);
  double sum = 0;
  for (int64_t y = 0; y < quadrant.height(); y += rows) {
    sum += numpy_sum(value, piece.data(), std::min(rows, quadrant.height() - y) * quadrant.width());
  }
  return sum / static_cast<double>(quadrant.size());
}

/// The structural similarity of prediction and truth within a quadrant.
double region_score(const Counts& counts, const Levels& value, const Quadrant& quadrant, int64_t image_width) {
  const auto pixels = static_cast<double>(quadrant.size());
  const double y = static_cast<double>(counts.total(1)) / pixels;
  double x = 0;
  std::size_t levels = 0;
  std::size_t last = 0;
  for (std::size_t level = 0; level < kLevels; ++level) {
    const int64_t count = counts.of[0][level] + counts.of[1][level];
    if (count == 0) continue;
    x += static_cast<double>(count) * value[level];
    last = level;
    ++levels;
  }
  x = levels == 1 ? numpy_mean_of_equal(value, static_cast<uint8_t>(last), quadrant, image_width) : x / pixels;
  double variance_x = 0;
  double variance_y = 0;
  double covariance = 0;
  for (int part = 0; part < 2; ++part) {
    const double b = part - y;
    for (std::size_t level = 0; level < kLevels; ++level) {
      const auto count = static_cast<double>(counts.of[part][level]);
      if (count == 0) continue;
      const double a = value[level] - x;
      variance_x += count * a * a;
      variance_y += count * b * b;
      covariance += count * a * b;
    }
  }
  const double freedom = pixels - 1 + kEpsilon;
  const double alpha = 4 * x * y * (covariance / freedom);
  const double beta = (x * x + y * y) * (variance_x / freedom + variance_y / freedom);
  if (alpha != 0) return alpha / (beta + kEpsilon);
  return beta == 0 ? 1 : 0;
}

double s_measure(const Pair& pair, const Levels& value, const Counts& all, const std::array<Quadrant, 4>& quadrants,
                 const std::array<Counts, 4>& counts, double mean) {
  constexpr double kAlpha = 0.5;
  if (pair.objects == 0) return 1 - mean;
  if (pair.objects == pair.size()) return mean;
  const auto size = static_cast<double>(pair.size());
  const double share = static_cast<double>(pair.objects) / size;
  const double object = share * object_score(all.of[1], [&](std::size_t level) { return value[level]; }) +
                        (1 - share) * object_score(all.of[0], [&](std::size_t level) { return 1 - value[level]; });
  double region = 0;
  for (std::size_t i = 0; i < quadrants.size(); ++i) {
    if (quadrants[i].size() == 0) continue;  // the centroid is at the edge
    region += static_cast<double>(quadrants[i].size()) / size * region_score(counts[i], value, quadrants[i], pair.width);
  }
  return std::max(0.0, kAlpha * object + (1 - kAlpha) * region);
}

// --- the weighted F-measure --------------------------------------------------------------------------------------------------------

constexpr int32_t kFar = 255;                 // pixels; from this distance on the weight of an error is 2 as near as float64 knows
constexpr int64_t kRadius = 3;                // of the Gaussian window
constexpr int64_t kWindow = 2 * kRadius + 1;  // pixels

/// The weight 2 - 2^(-distance / 5) of an error beside the object, by the squared distance to it.
const std::vector<double>& error_weights() {
  static const std::vector<double> weights = [] {
    std::vector<double> table(kFar * kFar + 1);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = 2 - std::exp(std::log(0.5) / 5 * std::sqrt(static_cast<double>(i)));
    return table;
  }();
  return weights;
}

/// The Gaussian window of sigma 5 along one axis; the window is the product of two.
std::array<double, kRadius + 1> window_weights() {
  constexpr double kSigma = 5;
  std::array<double, kRadius + 1> weights{};
  double sum = 0;
  for (int64_t i = 0; i <= kRadius; ++i) {
    weights[i] = std::exp(-static_cast<double>(i * i) / (2 * kSigma * kSigma));
    sum += i == 0 ? weights[i] : 2 * weights[i];
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// The nearest object pixel of every pixel beside the object: exact Euclidean distances, and among equally near pixels that of the leftmost
/// column, there the upper one. First the nearest of each column, then along each row the lower envelope of the parabolas that these give
/// (Felzenszwalb and Huttenlocher), cut at whole pixels.
class NearestObjects {
 public:
  explicit NearestObjects(const Pair& pair) : pair_(pair), above_(pair.size()), below_(pair.width, kFar), offset_(pair.width) {
    std::vector<uint8_t> distance(pair.width, kFar);
    for (int64_t y = 0; y < pair.height; ++y) {
      const uint8_t* object = pair.object.data() + y * pair.width;
      step(object, distance);
      std::copy(distance.begin(), distance.end(), above_.begin() + y * pair.width);
    }
    for (int64_t x = 0; x < pair.width; ++x) {
      if (pair.columns[x] > 0) columns_.push_back(x);
    }
    sites_.reserve(columns_.size());
  }

  /// Calls use(begin, end, row, column) for the runs of pixels in row y whose nearest object pixel is that one, from left to right; object
  /// pixels may lie in any run. Where no object is nearer than kFar, some place that is as far. Rows have to come from the last to the first.
  template <class Use>
  void row(int64_t y, Use&& use) {
    const uint8_t* above = above_.data() + y * pair_.width;
    step(pair_.object.data() + y * pair_.width, below_);
    const uint8_t* below = below_.data();
    int16_t* offset = offset_.data();
    for (int64_t x = 0; x < pair_.width; ++x) offset[x] = static_cast<int16_t>(above[x] <= below[x] ? -above[x] : below[x]);
    find_sites();
    if (sites_.empty()) use(0, pair_.width, y + kFar, 0);
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      const int64_t end = i + 1 < sites_.size() ? sites_[i + 1].start : pair_.width;
      use(sites_[i].start, end, y + offset_[sites_[i].column], sites_[i].column);
    }
  }

 private:
  /// Where a column's nearest pixel is the nearest of all: from `start` to the next site's.
  struct Site {
    int64_t column;
    int64_t height;  // the squared distance within the column
    int64_t start;
  };

  /// From one row to the next: the distance to the last object pixel passed.
  void step(const uint8_t* object, std::vector<uint8_t>& distances) const {
    uint8_t* distance = distances.data();
    const int64_t width = pair_.width;  // bytes written may be anything's, a member's, too: the compiler would read it again and again
    for (int64_t x = 0; x < width; ++x) {
      const auto next = static_cast<uint8_t>(std::min(distance[x] + 1, kFar));
      distance[x] = object[x] != 0 ? uint8_t{0} : next;
    }
  }

  void find_sites() {
    sites_.clear();
    for (const int64_t column : columns_) {
      const int64_t offset = offset_[column];
      if (offset == kFar || offset == -kFar) continue;
      // Inside the object a pixel is nearest to itself alone, and nobody asks.
      if (offset == 0 && column > 0 && offset_[column - 1] == 0 && column + 1 < pair_.width && offset_[column + 1] == 0) continue;
      Site site{.column = column, .height = offset * offset, .start = 0};
      bool seen = true;
      while (!sites_.empty()) {
        // The first x at which the new site is nearer than the last one; where they are equal the last one, which is to the left, stays.
        const Site& last = sites_.back();
        const int64_t rise = site.column * site.column + site.height - last.column * last.column - last.height;
        site.start = rise < 0 ? 0 : rise / (2 * (site.column - last.column)) + 1;
        if (site.start > last.start) {
          seen = site.start < pair_.width;
          break;
        }
        sites_.pop_back();
        site.start = 0;
      }
      if (seen) sites_.push_back(site);
    }
  }

  const Pair& pair_;
  std::vector<uint8_t> above_;    // distance to the nearest object pixel above or at each pixel, at most kFar
  std::vector<uint8_t> below_;    // the same below, of the row in work
  std::vector<int16_t> offset_;   // from the row in work to the nearest object pixel of each column
  std::vector<int64_t> columns_;  // those with object pixels
  std::vector<Site> sites_;
};

double weighted_f(const Pair& pair, const Levels& value) {
  if (pair.objects == 0) return 0;
  const auto is_used = [](int64_t count) { return count > 0; };
  const int64_t left = std::find_if(pair.columns.begin(), pair.columns.end(), is_used) - pair.columns.begin();
  const int64_t right = pair.width - (std::find_if(pair.columns.rbegin(), pair.columns.rend(), is_used) - pair.columns.rbegin());
  const int64_t top = (std::find(pair.object.begin(), pair.object.end(), 1) - pair.object.begin()) / pair.width;
  const int64_t bottom = pair.height - (std::find(pair.object.rbegin(), pair.object.rend(), 1) - pair.object.rbegin()) / pair.width;
  const int64_t width = right - left;

  std::array<double, 2 * kLevels> beside{};  // the error of a level beside the object; 0 on it
  std::copy(value.begin(), value.end(), beside.begin());
  std::vector<double> wrong_errors(pair.width);     // of the row in work, beside the object
  std::vector<double> errors(width + 2 * kRadius);  // of the row in work, from column left - kRadius on; 0 outside the image
  // The last rows smoothed along themselves, row y in place y mod kWindow; 0 outside the image.
  std::array<std::vector<double>, kWindow> smoothed;
  smoothed.fill(std::vector<double>(width));
  std::vector<double> means(width);  // over whole windows, of one row
  const auto place = [](int64_t y) { return static_cast<std::size_t>((y + kWindow) % kWindow); };
  const auto window = window_weights();
  const std::vector<double>& weights = error_weights();
  std::array<double, 4> wrong{};  // weighted errors beside the object; four sums in turn: one would have to wait for itself
  double missed = 0;              // errors on the object
  NearestObjects nearest(pair);
  for (int64_t y = pair.height - 1; y >= -kRadius; --y) {
    std::vector<double>& row_means = smoothed[place(y)];
    if (y < 0) {
      std::fill(row_means.begin(), row_means.end(), 0);
    } else {
      const uint8_t* level = pair.levels + y * pair.width;
      const uint8_t* object = pair.object.data() + y * pair.width;
      for (int64_t x = 0; x < pair.width; ++x) wrong_errors[x] = beside[object[x] * kLevels + level[x]];
      const bool in_reach = y >= top - kRadius && y < bottom + kRadius;  // of windows around object pixels
      nearest.row(y, [&](int64_t begin, int64_t end, int64_t row, int64_t column) {
        const int64_t dy = row - y;
        for (int64_t x = begin; x < end; ++x) {
          const int64_t distance = std::min<int64_t>(dy * dy + (x - column) * (x - column), kFar * kFar);
          wrong[static_cast<std::size_t>(x) % wrong.size()] += wrong_errors[x] * weights[distance];
        }
        if (!in_reach) return;
        const double error = 1 - value[pair.levels[row * pair.width + column]];
        const int64_t last = std::min(end, right + kRadius);
        for (int64_t x = std::max(begin, left - kRadius); x < last; ++x) errors[x - left + kRadius] = error;
      });
      if (in_reach) {
        for (int64_t x = left; x < right; ++x) {
          if (object[x] != 0) errors[x - left + kRadius] = 1 - value[level[x]];
        }
        for (int64_t i = 0; i < width; ++i) {
          const double* middle = errors.data() + i + kRadius;
          double sum = window[0] * *middle;
          for (int64_t j = 1; j <= kRadius; ++j) sum += window[j] * (middle[-j] + middle[j]);
          row_means[i] = sum;
        }
      }
    }

    // The last row whose window is complete: an object pixel counts with the mean error around it where that is smaller than its own.
    const int64_t done = y + kRadius;
    if (done < top || done >= bottom) continue;
    std::array<const double*, kWindow> rows{};
    for (int64_t j = 0; j < kWindow; ++j) rows[j] = smoothed[place(y + j)].data();
    for (int64_t i = 0; i < width; ++i) {
      double sum = window[0] * rows[kRadius][i];
      for (int64_t j = 1; j <= kRadius; ++j) sum += window[j] * (rows[kRadius - j][i] + rows[kRadius + j][i]);
      means[i] = sum;
    }
    const int64_t first = done * pair.width + left;
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      if (pair.object[first + i] != 0) sum += std::min(1 - value[pair.levels[first + i]], means[i]);
    }
    missed += sum;
  }

  const auto objects = static_cast<double>(pair.objects);
  const double found = objects - missed;
  const double r = 1 - missed / objects;
  const double p = found / (found + (wrong[0] + wrong[1] + wrong[2] + wrong[3]) + kEpsilon);
  return 2 * r * p / (r + p + kEpsilon);
}

void check_map(const at::Tensor& map, std::string_view what, int64_t least) {
  require(map.defined() && map.dim() == 2 && map.scalar_type() == at::kByte, kOrigin, "expected a ", what,
          " of shape (H, W) and type uint8, got ", map.defined() ? map.toString() : "nothing", " ",
          map.defined() ? map.sizes() : at::IntArrayRef(), ". Scale it to 0..255 and convert it with .to(at::kByte).");
  require(map.numel() >= least, kOrigin, "expected a ", what, " of at least ", least, least == 1 ? " pixel" : " pixels", ", got ",
          map.sizes(), ". Leave such maps out.");
}

double mean_of(const SegmentationScores::Curve& curve) {
  return std::accumulate(curve.begin(), curve.end(), 0.0) / static_cast<double>(curve.size());
}

double max_of(const SegmentationScores::Curve& curve) { return *std::max_element(curve.begin(), curve.end()); }

}  // namespace

double SegmentationScores::mean_f() const { return mean_of(f); }
double SegmentationScores::max_f() const { return max_of(f); }
double SegmentationScores::mean_e() const { return mean_of(e); }
double SegmentationScores::max_e() const { return max_of(e); }

SegmentationScores segmentation_scores(const at::Tensor& prediction, const at::Tensor& truth) {
  check_map(prediction, "prediction", 1);
  check_map(truth, "truth", 2);
  const at::Tensor predicted = prediction.cpu().contiguous();
  const at::Tensor true_map = truth.cpu().contiguous();
  const std::vector<uint8_t> resized =
      predicted.sizes() == true_map.sizes() ? std::vector<uint8_t>() : resize(predicted, truth.size(0), truth.size(1));
  const Pair pair(resized.empty() ? predicted.const_data_ptr<uint8_t>() : resized.data(), true_map);

  const std::array<Quadrant, 4> quadrants = quadrants_of(pair);
  std::array<Counts, 4> counts;
  Counts all;
  for (std::size_t i = 0; i < quadrants.size(); ++i) all += counts[i] = count(pair, quadrants[i]);
  const Levels value = stretch(all);
  const double mean = numpy_sum(value, pair.levels, pair.size()) / static_cast<double>(pair.size());
  const Truth sizes{.size = pair.size(), .objects = pair.objects};

  SegmentationScores scores;
  for (std::size_t level = 0; level < kLevels; ++level) {
    scores.mae += static_cast<double>(all.of[0][level]) * value[level] + static_cast<double>(all.of[1][level]) * (1 - value[level]);
  }
  scores.mae /= static_cast<double>(pair.size());
  const Found adaptive = found_from(all, value, std::min(2 * mean, 1.0));
  scores.adaptive_f = f_measure(adaptive, sizes);
  scores.adaptive_e = e_measure(adaptive, sizes);
  set_curves(all, value, sizes, scores);
  scores.s_measure = s_measure(pair, value, all, quadrants, counts, mean);
  scores.weighted_f = weighted_f(pair, value);
  return scores;
}

SegmentationScores mean_scores(std::span<const SegmentationScores> images) {
  require(!images.empty(), "mean_scores", "expected the scores of at least one image, got none.");
  SegmentationScores mean;
  const auto count = static_cast<double>(images.size());
  for (const auto score : {&SegmentationScores::mae, &SegmentationScores::s_measure, &SegmentationScores::weighted_f,
                           &SegmentationScores::adaptive_f, &SegmentationScores::adaptive_e}) {
    for (const SegmentationScores& image : images) mean.*score += image.*score / count;
  }
  for (const auto curve : {&SegmentationScores::f, &SegmentationScores::e, &SegmentationScores::precision, &SegmentationScores::recall}) {
    for (const SegmentationScores& image : images) {
      for (std::size_t i = 0; i < kLevels; ++i) (mean.*curve)[i] += (image.*curve)[i] / count;
    }
  }
  return mean;
}

}  // namespace invattn

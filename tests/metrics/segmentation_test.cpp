#include "invattn/metrics/segmentation.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

at::Tensor map_of(at::IntArrayRef sizes, const std::vector<int64_t>& levels) {
  return at::tensor(levels, at::kLong).view(sizes).to(at::kByte);
}

at::Tensor noise(int64_t height, int64_t width) { return at::randint(0, 256, {height, width}, at::kByte); }

/// Coordinates that broadcast to (H, W).
at::Tensor rows(int64_t height) { return at::arange(height, at::kDouble).view({-1, 1}); }
at::Tensor columns(int64_t width) { return at::arange(width, at::kDouble).view({1, -1}); }

at::Tensor in_ellipse(const at::Tensor& y, const at::Tensor& x, double middle_y, double middle_x, double limit) {
  return 2 * (y - middle_y).square() + (x - middle_x).square() < limit;
}

at::Tensor mask_of(const at::Tensor& object) { return object.to(at::kByte) * 255; }

// --- against the Python package ----------------------------------------------------------------------------------------------------

/// An ellipse with a texture on it, brighter than around; the prediction may have another size. The figures are of pysodmetrics 1.6.2.
struct KnownCase {
  int64_t prediction_height, prediction_width, height, width;
  double middle_y, middle_x, limit;
  int64_t a, b;
  double mae, s_measure, weighted_f, adaptive_f, mean_f, max_f, adaptive_e, mean_e, max_e;

  at::Tensor truth() const { return mask_of(in_ellipse(rows(height), columns(width), middle_y, middle_x, limit)); }
  at::Tensor prediction() const {
    const at::Tensor y = rows(prediction_height);
    const at::Tensor x = columns(prediction_width);
    const at::Tensor object =
        in_ellipse(y * height / prediction_height, x * width / prediction_width, middle_y, middle_x, limit).to(at::kDouble);
    return (30 + 120 * object + at::remainder(a * x + b * y + x * y, 90)).to(at::kByte);
  }
};

void PrintTo(const KnownCase& known, std::ostream* out) { *out << known.height << "x" << known.width; }

class KnownMaps : public ::testing::TestWithParam<KnownCase> {};

TEST_P(KnownMaps, HaveTheFiguresOfThePackage) {
  const KnownCase& known = GetParam();
  const SegmentationScores scores = segmentation_scores(known.prediction(), known.truth());
  EXPECT_NEAR(scores.mae, known.mae, 1e-12);
  EXPECT_NEAR(scores.s_measure, known.s_measure, 1e-12);
  EXPECT_NEAR(scores.weighted_f, known.weighted_f, 1e-12);
  EXPECT_NEAR(scores.adaptive_f, known.adaptive_f, 1e-12);
  EXPECT_NEAR(scores.mean_f(), known.mean_f, 1e-12);
  EXPECT_NEAR(scores.max_f(), known.max_f, 1e-12);
  EXPECT_NEAR(scores.adaptive_e, known.adaptive_e, 1e-12);
  EXPECT_NEAR(scores.mean_e(), known.mean_e, 1e-12);
  EXPECT_NEAR(scores.max_e(), known.max_e, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(
    All, KnownMaps,
    ::testing::Values(
        KnownCase{40, 60, 40, 60, 18, 33, 300, 37, 91, 0.213542663476874, 0.840219428813061, 0.616810928073072, 0.858179976363329,
                  0.694195728289632, 1, 0.800717083370558, 0.666468038072795, 1.00041684035014},
        KnownCase{41, 23, 41, 23, 5, 20, 120, 11, 7, 0.212089077412513, 0.662128654946909, 0.452612574264136, 0.975530179445351,
                  0.631799088500655, 1, 0.982412422502504, 0.641654847087264, 1.00106157112526},  // cut by the edge
        KnownCase{64, 64, 64, 64, 30, 30, 9000, 3, 5, 0.504207996839888, 0.495792003160112, 0.777754747627106, 0.0379996839943119,
                  0.724394596654094, 1, 0.00903540903540904, 0.495791361416361, 1.0002442002442},  // full
        KnownCase{17, 90, 17, 90, 8, 40, 1, 29, 13, 0.254530087897228, 0.4379079035954, 0.00272868563397973, 0.0909090909090909,
                  0.490894525632803, 1, 0.326117595151426, 0.616941389051714, 1.00065402197686},  // one pixel
        KnownCase{30, 50, 61, 45, 30, 20, 350, 17, 3, 0.22875649740104, 0.840293113050695, 0.58195943991771, 0.851361295069904,
                  0.654743051169055, 0.974833076527992, 0.794058949249652, 0.6493215467899, 0.982590442264049},  // resized by OpenCV
        KnownCase{50, 40, 50, 40, 30, 20, 0, 17, 3, 0.498876404494382, 0.501123595505618, 0, 0, 0, 0, 0.979989994997499, 0.501354192721361,
                  0.979989994997499}));  // empty

// --- by hand -----------------------------------------------------------------------------------------------------------------------

TEST(SegmentationScores, PrecisionRecallAndFByHand) {
  // Levels 0, 85, 170, 255 are 0, 1/3, 2/3, 1; the object has 85 and 255.
  const SegmentationScores scores = segmentation_scores(map_of({2, 2}, {0, 85, 170, 255}), map_of({2, 2}, {0, 255, 0, 255}));
  for (int t = 0; t < 256; ++t) {
    const double found = t == 0 ? 4 : t <= 85 ? 3 : t <= 170 ? 2 : 1;
    const double right = t <= 85 ? 2 : 1;
    const double p = right / found;
    const double r = right / 2;
    EXPECT_DOUBLE_EQ(scores.precision[t], p) << t;
    EXPECT_DOUBLE_EQ(scores.recall[t], r) << t;
    EXPECT_DOUBLE_EQ(scores.f[t], 1.3 * p * r / (0.3 * p + r)) << t;
  }
  EXPECT_DOUBLE_EQ(scores.mae, (0 + 2 / 3. + 2 / 3. + 0) / 4);
  EXPECT_DOUBLE_EQ(scores.adaptive_f, 1.3 * 1 * 0.5 / (0.3 * 1 + 0.5));  // twice the mean is 1: only the last pixel
}

TEST(SegmentationScores, EmptyTruthByHand) {
  const SegmentationScores scores = segmentation_scores(map_of({1, 4}, {0, 0, 0, 255}), map_of({1, 4}, {0, 0, 0, 128}));
  EXPECT_DOUBLE_EQ(scores.mae, 0.25);
  EXPECT_DOUBLE_EQ(scores.s_measure, 0.75);
  EXPECT_EQ(scores.weighted_f, 0);
  EXPECT_EQ(scores.max_f(), 0);
  EXPECT_EQ(scores.recall[0], 0);
  EXPECT_DOUBLE_EQ(scores.e[0], 0);        // everything is found, nothing is there
  EXPECT_DOUBLE_EQ(scores.e[1], 3 / 3.0);  // three of four are right, and the measure divides by one less than the pixels
  EXPECT_DOUBLE_EQ(scores.adaptive_e, 3 / 3.0);
}

TEST(SegmentationScores, FullTruthByHand) {
  const SegmentationScores scores = segmentation_scores(map_of({1, 4}, {0, 0, 0, 255}), map_of({1, 4}, {129, 255, 255, 200}));
  EXPECT_DOUBLE_EQ(scores.mae, 0.75);
  EXPECT_DOUBLE_EQ(scores.s_measure, 0.25);
  EXPECT_DOUBLE_EQ(scores.e[0], 4 / 3.0);
  EXPECT_DOUBLE_EQ(scores.e[1], 1 / 3.0);
  EXPECT_EQ(scores.precision[255], 1);
  EXPECT_DOUBLE_EQ(scores.recall[255], 0.25);
}

TEST(SegmentationScores, AConstantPredictionIsNotStretched) {
  const at::Tensor truth = map_of({2, 3}, {0, 255, 255, 0, 0, 0});
  for (const int64_t level : {0, 51, 255}) {
    const double value = static_cast<double>(level) / 255;
    const SegmentationScores scores = segmentation_scores(at::full({2, 3}, level, at::kByte), truth);
    EXPECT_NEAR(scores.mae, (2 * (1 - value) + 4 * value) / 6, 1e-15);
    EXPECT_EQ(scores.recall[level], 1);
    if (level < 255) {
      EXPECT_EQ(scores.recall[level + 1], 0);
    }
  }
}

TEST(SegmentationScores, ResizingIsBilinearBetweenCentres) {
  const at::Tensor truth = map_of({2, 4}, {0, 0, 255, 255, 0, 255, 255, 255});
  const SegmentationScores resized = segmentation_scores(map_of({1, 2}, {0, 255}), truth);
  const SegmentationScores given = segmentation_scores(map_of({2, 4}, {0, 64, 191, 255, 0, 64, 191, 255}), truth);
  EXPECT_EQ(resized.mae, given.mae);
  EXPECT_EQ(resized.weighted_f, given.weighted_f);
  EXPECT_EQ(resized.f, given.f);
  EXPECT_NE(resized.mae, segmentation_scores(map_of({2, 4}, {0, 63, 191, 255, 0, 64, 191, 255}), truth).mae);
}

// --- against the definitions, pixel by pixel ---------------------------------------------------------------------------------------

struct Pixels {
  int64_t height, width;
  std::vector<double> p;  // stretched prediction
  std::vector<bool> g;    // object

  Pixels(const at::Tensor& prediction, const at::Tensor& truth) : height(truth.size(0)), width(truth.size(1)) {
    const at::Tensor levels = prediction.to(at::kDouble);
    const double low = levels.min().item<double>();
    const double high = levels.max().item<double>();
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        const double level = levels[y][x].item<double>();
        p.push_back(low == high ? level / 255 : (level - low) / (high - low));
        g.push_back(truth[y][x].item<int64_t>() > 128);
      }
    }
  }
  std::size_t at(int64_t y, int64_t x) const { return static_cast<std::size_t>(y * width + x); }
};

double naive_weighted_f(const Pixels& m) {
  std::vector<double> error(m.p.size());
  for (std::size_t i = 0; i < error.size(); ++i) error[i] = std::abs(m.p[i] - (m.g[i] ? 1 : 0));
  std::vector<double> near = error;
  std::vector<double> weight(m.p.size(), 1);
  for (int64_t y = 0; y < m.height; ++y) {
    for (int64_t x = 0; x < m.width; ++x) {
      if (m.g[m.at(y, x)]) continue;
      auto best = std::make_tuple(std::numeric_limits<int64_t>::max(), int64_t{0}, int64_t{0});  // squared distance, column, row
      for (int64_t v = 0; v < m.height; ++v) {
        for (int64_t u = 0; u < m.width; ++u) {
          if (m.g[m.at(v, u)]) best = std::min(best, std::make_tuple((v - y) * (v - y) + (u - x) * (u - x), u, v));
        }
      }
      near[m.at(y, x)] = error[m.at(std::get<2>(best), std::get<1>(best))];
      weight[m.at(y, x)] = 2 - std::pow(0.5, std::sqrt(static_cast<double>(std::get<0>(best))) / 5);
    }
  }
  double total = 0;
  for (int64_t v = -3; v <= 3; ++v) {
    for (int64_t u = -3; u <= 3; ++u) total += std::exp(-static_cast<double>(v * v + u * u) / 50);
  }
  double objects = 0;
  double missed = 0;
  double wrong = 0;
  for (int64_t y = 0; y < m.height; ++y) {
    for (int64_t x = 0; x < m.width; ++x) {
      const std::size_t i = m.at(y, x);
      if (!m.g[i]) {
        wrong += error[i] * weight[i];
        continue;
      }
      double mean = 0;
      for (int64_t v = std::max<int64_t>(0, y - 3); v <= std::min(m.height - 1, y + 3); ++v) {
        for (int64_t u = std::max<int64_t>(0, x - 3); u <= std::min(m.width - 1, x + 3); ++u) {
          mean += near[m.at(v, u)] * std::exp(-static_cast<double>((v - y) * (v - y) + (u - x) * (u - x)) / 50) / total;
        }
      }
      objects += 1;
      missed += std::min(mean, error[i]);
    }
  }
  const double recall = 1 - missed / objects;
  const double precision = (objects - missed) / (objects - missed + wrong + kEpsilon);
  return 2 * recall * precision / (recall + precision + kEpsilon);
}

double naive_e(const Pixels& m, double threshold) {
  double map_mean = 0;
  double truth_mean = 0;
  for (std::size_t i = 0; i < m.p.size(); ++i) {
    map_mean += (m.p[i] >= threshold ? 1.0 : 0.0) / static_cast<double>(m.p.size());
    truth_mean += (m.g[i] ? 1.0 : 0.0) / static_cast<double>(m.p.size());
  }
  double sum = 0;
  for (std::size_t i = 0; i < m.p.size(); ++i) {
    const double a = (m.p[i] >= threshold ? 1.0 : 0.0) - map_mean;
    const double b = (m.g[i] ? 1.0 : 0.0) - truth_mean;
    sum += std::pow(2 * a * b / (a * a + b * b + kEpsilon) + 1, 2) / 4;
  }
  return sum / static_cast<double>(m.p.size() - 1);
}

/// Truths of many shapes: sparse points have nearest pixels far away and ties, blocks have runs.
std::vector<at::Tensor> odd_truths(int64_t height, int64_t width) {
  const at::Tensor y = rows(height);
  const at::Tensor x = columns(width);
  return {mask_of(at::rand({height, width}) < 0.03),
          mask_of(at::rand({height, width}) < 0.4),
          mask_of((at::floor_divide(y, 4) + at::floor_divide(x, 4)).remainder(2) == 0),
          mask_of((y == 0).logical_or(x == width - 1)),
          mask_of((y - height / 2).abs() + 0 * x > height / 3.0),
          mask_of(in_ellipse(y, x, height / 2.0, width / 3.0, 60.0))};
}

TEST(SegmentationScores, AreWhatTheDefinitionsSay) {
  at::manual_seed(3);
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{19, 31}, {33, 8}, {1, 40}, {27, 27}}) {
    for (const at::Tensor& truth : odd_truths(height, width)) {
      const int64_t objects = truth.gt(128).sum().item<int64_t>();
      if (objects == 0 || objects == truth.numel()) continue;
      const at::Tensor prediction = noise(height, width);
      prediction[0][0] = 0;  // so that stretching changes nothing, and the thresholds of the curve are levels
      prediction[0][1] = 255;
      const SegmentationScores scores = segmentation_scores(prediction, truth);
      const Pixels pixels(prediction, truth);
      EXPECT_NEAR(scores.weighted_f, naive_weighted_f(pixels), 1e-12) << truth.sizes() << objects;
      EXPECT_NEAR(scores.e[128], naive_e(pixels, 127.5 / 255), 1e-12) << truth.sizes() << objects;
      EXPECT_NEAR(scores.mae, (prediction.to(at::kDouble) / 255 - truth.gt(128).to(at::kDouble)).abs().mean().item<double>(), 1e-12);
    }
  }
}

// --- what must hold for any maps ---------------------------------------------------------------------------------------------------

TEST(SegmentationScores, APerfectMapIsPerfectAndItsInverseIsWorst) {
  at::manual_seed(4);
  for (const at::Tensor& truth : odd_truths(36, 45)) {
    const double last = static_cast<double>(truth.numel()) / static_cast<double>(truth.numel() - 1);  // the largest E
    const SegmentationScores perfect = segmentation_scores(truth, truth);
    EXPECT_EQ(perfect.mae, 0);
    EXPECT_NEAR(perfect.s_measure, 1, 1e-9);  // the definition keeps its denominators from 0
    EXPECT_NEAR(perfect.weighted_f, 1, 1e-12);
    EXPECT_EQ(perfect.adaptive_f, 1);
    EXPECT_EQ(perfect.max_f(), 1);
    EXPECT_NEAR(perfect.adaptive_e, last, 1e-12);
    EXPECT_NEAR(perfect.max_e(), last, 1e-12);
    const SegmentationScores inverse = segmentation_scores(255 - truth, truth);
    EXPECT_EQ(inverse.mae, 1);
    EXPECT_LT(inverse.s_measure, 0.3);
    EXPECT_LT(inverse.weighted_f, 0.1);  // not 0 where windows reach over the edge of the image, beyond which there is no error
    EXPECT_EQ(inverse.adaptive_f, 0);
    EXPECT_EQ(inverse.f[255], 0);
    EXPECT_LT(inverse.e[255], 1e-9);
  }
  const at::Tensor inside = odd_truths(36, 45).back();
  EXPECT_LT(segmentation_scores(255 - inside, inside).weighted_f, 1e-12);
}

TEST(SegmentationScores, CurvesDoNotDependOnWherePixelsAre) {
  at::manual_seed(5);
  const at::Tensor prediction = noise(24, 18);
  const at::Tensor truth = odd_truths(24, 18).back();
  const at::Tensor order = at::randperm(24 * 18);
  const auto shuffle = [&order](const at::Tensor& map) { return map.reshape({-1}).index_select(0, order).view({18, 24}); };
  const SegmentationScores before = segmentation_scores(prediction, truth);
  const SegmentationScores after = segmentation_scores(shuffle(prediction), shuffle(truth));
  EXPECT_EQ(before.f, after.f);
  EXPECT_EQ(before.e, after.e);
  EXPECT_EQ(before.precision, after.precision);
  EXPECT_EQ(before.recall, after.recall);
  EXPECT_EQ(before.adaptive_f, after.adaptive_f);
  EXPECT_EQ(before.mae, after.mae);
  EXPECT_GT(std::abs(before.s_measure - after.s_measure), 1e-3);
  EXPECT_GT(std::abs(before.weighted_f - after.weighted_f), 1e-3);
}

TEST(SegmentationScores, ContrastAndBrightnessDoNotMatter) {
  at::manual_seed(6);
  const at::Tensor truth = odd_truths(30, 40).back();
  const at::Tensor dim = at::randint(0, 84, {30, 40}, at::kByte);
  const SegmentationScores one = segmentation_scores(dim, truth);
  const SegmentationScores other = segmentation_scores(dim * 3 + 5, truth);
  EXPECT_NEAR(one.mae, other.mae, 1e-12);
  EXPECT_NEAR(one.s_measure, other.s_measure, 1e-12);
  EXPECT_NEAR(one.weighted_f, other.weighted_f, 1e-12);
  EXPECT_NEAR(one.adaptive_e, other.adaptive_e, 1e-12);
}

TEST(SegmentationScores, SDoesNotDependOnWhichAxisIsWhich) {
  at::manual_seed(7);
  const at::Tensor prediction = noise(21, 34);
  for (const at::Tensor& truth : odd_truths(21, 34)) {
    EXPECT_NEAR(segmentation_scores(prediction, truth).s_measure, segmentation_scores(prediction.t(), truth.t()).s_measure, 1e-12);
  }
}

TEST(SegmentationScores, AnObjectAtTheEdgeLeavesQuadrantsWithoutPixels) {
  at::manual_seed(8);
  const at::Tensor truth = at::zeros({9, 11}, at::kByte);
  truth[8][10] = 255;
  const SegmentationScores scores = segmentation_scores(noise(9, 11), truth);
  EXPECT_GE(scores.s_measure, 0);
  EXPECT_LE(scores.s_measure, 1);
  EXPECT_NEAR(segmentation_scores(truth, truth).s_measure, 1, 1e-9);
}

TEST(SegmentationScores, WideAndHighMapsBeyondTheDistanceTable) {
  for (const bool wide : {true, false}) {
    const at::Tensor truth = at::zeros({2, 3000}, at::kByte);
    truth[1][2990] = 255;
    const at::Tensor prediction = at::zeros({2, 3000}, at::kByte);
    prediction[0][3] = 255;  // one wrong pixel, far away: its weight is 2
    prediction[1][2990] = 255;
    const double f = segmentation_scores(wide ? prediction : prediction.t(), wide ? truth : truth.t()).weighted_f;
    EXPECT_NEAR(f, 2 * (1 / 3.0) / (1 + 1 / 3.0), 1e-12);
  }
}

TEST(SegmentationScores, TakeViews) {
  at::manual_seed(9);
  const at::Tensor prediction = noise(40, 60);
  const at::Tensor truth = odd_truths(40, 60).back();
  const SegmentationScores view = segmentation_scores(prediction.slice(1, 5, 50, 2), truth.slice(1, 5, 50, 2));
  const SegmentationScores copy = segmentation_scores(prediction.slice(1, 5, 50, 2).contiguous(), truth.slice(1, 5, 50, 2).contiguous());
  EXPECT_EQ(view.s_measure, copy.s_measure);
  EXPECT_EQ(view.weighted_f, copy.weighted_f);
  EXPECT_EQ(view.e, copy.e);
}

// --- means -------------------------------------------------------------------------------------------------------------------------

TEST(MeanScores, AreMeansOfScoresAndCurves) {
  at::manual_seed(10);
  const at::Tensor truth = odd_truths(12, 10)[2];
  const std::vector<SegmentationScores> images = {segmentation_scores(noise(12, 10), truth), segmentation_scores(noise(12, 10), truth),
                                                  segmentation_scores(noise(12, 10), truth)};
  const SegmentationScores mean = mean_scores(images);
  EXPECT_NEAR(mean.mae, (images[0].mae + images[1].mae + images[2].mae) / 3, 1e-15);
  EXPECT_NEAR(mean.s_measure, (images[0].s_measure + images[1].s_measure + images[2].s_measure) / 3, 1e-15);
  EXPECT_NEAR(mean.weighted_f, (images[0].weighted_f + images[1].weighted_f + images[2].weighted_f) / 3, 1e-15);
  EXPECT_NEAR(mean.adaptive_f, (images[0].adaptive_f + images[1].adaptive_f + images[2].adaptive_f) / 3, 1e-15);
  EXPECT_NEAR(mean.adaptive_e, (images[0].adaptive_e + images[1].adaptive_e + images[2].adaptive_e) / 3, 1e-15);
  for (const int t : {0, 77, 255}) {
    EXPECT_NEAR(mean.f[t], (images[0].f[t] + images[1].f[t] + images[2].f[t]) / 3, 1e-15);
    EXPECT_NEAR(mean.e[t], (images[0].e[t] + images[1].e[t] + images[2].e[t]) / 3, 1e-15);
    EXPECT_NEAR(mean.precision[t], (images[0].precision[t] + images[1].precision[t] + images[2].precision[t]) / 3, 1e-15);
    EXPECT_NEAR(mean.recall[t], (images[0].recall[t] + images[1].recall[t] + images[2].recall[t]) / 3, 1e-15);
  }
}

TEST(MeanScores, TheBestThresholdIsOneForAllImages) {
  SegmentationScores one;
  SegmentationScores other;
  one.f[10] = 1;
  other.f[20] = 1;
  other.e[255] = 0.5;
  const std::vector<SegmentationScores> images = {one, other};
  EXPECT_EQ(mean_scores(images).max_f(), 0.5);
  EXPECT_EQ(mean_scores(images).mean_f(), 1.0 / 256);
  EXPECT_EQ(mean_scores(images).max_e(), 0.25);
  EXPECT_EQ(mean_scores(images).mean_e(), 0.25 / 256);
}

// --- bad input ---------------------------------------------------------------------------------------------------------------------

template <class Call>
std::string usage_error(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "expected an Error, got none";
  return "";
}

TEST(SegmentationScores, RefuseWhatAreNoMaps) {
  const at::Tensor good = at::zeros({4, 5}, at::kByte);
  for (const at::Tensor& bad :
       {at::Tensor(), at::zeros({4, 5}), at::zeros({1, 4, 5}, at::kByte), at::zeros({4, 5}, at::kBool), at::zeros({0, 5}, at::kByte)}) {
    EXPECT_TRUE(usage_error([&] { segmentation_scores(bad, good); }).starts_with("[segmentation_scores] expected a prediction"));
    EXPECT_TRUE(usage_error([&] { segmentation_scores(good, bad); }).starts_with("[segmentation_scores] expected a truth"));
  }
  EXPECT_TRUE(usage_error([&] { segmentation_scores(good, at::zeros({1, 1}, at::kByte)); }).ends_with("Leave such maps out."));
  EXPECT_NO_THROW(segmentation_scores(at::zeros({1, 1}, at::kByte), good));
}

TEST(MeanScores, RefuseNoImages) {
  EXPECT_TRUE(usage_error([] { mean_scores({}); }).starts_with("[mean_scores] expected the scores of at least one image"));
}

}  // namespace
}  // namespace invattn

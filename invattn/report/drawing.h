#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace invattn::reporting {

/// Red, green, blue, 0 to 1.
using Colour = std::array<double, 3>;

// The palette of Okabe and Ito, which colour-blind readers can tell apart; darkened where white paper asks for it.
inline constexpr Colour kBlue{0.00, 0.45, 0.70};
inline constexpr Colour kVermilion{0.84, 0.37, 0.00};
inline constexpr Colour kGreen{0.00, 0.55, 0.40};
inline constexpr Colour kPurple{0.67, 0.27, 0.60};
inline constexpr Colour kOchre{0.54, 0.43, 0.00};
inline constexpr Colour kInk{0.13, 0.15, 0.18};
inline constexpr Colour kMuted{0.42, 0.45, 0.50};
inline constexpr Colour kRule{0.87, 0.88, 0.90};

/// Of the curves of a chart, in order; after the fifth they come again.
const Colour& series_colour(std::size_t index);

/// Around a sheet.
inline constexpr double kMargin = 24;

enum class Align { kLeft, kCentre, kRight };

/// A sheet of white paper to draw on, in pixels from the upper left corner.
class Drawing {
 public:
  Drawing(std::int64_t width, std::int64_t height);
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;
  ~Drawing();

  struct TextStyle {
    double size = 13;
    Colour colour = kInk;
    Align align = Align::kLeft;
    bool bold = false;
    bool upright = false;  ///< turned by a quarter, reading upwards
  };
  /// With `y` at the base line.
  void text(double x, double y, const std::string& text, const TextStyle& style);

  struct LineStyle {
    Colour colour = kInk;
    double width = 1;
    bool dashed = false;
  };
  void line(const std::vector<std::pair<double, double>>& points, const LineStyle& style);
  void area(const std::vector<std::pair<double, double>>& corners, const Colour& fill, double opacity = 1);

  /// (3, H, W) or (1, H, W) uint8, each pixel as a square of `zoom`.
  void image(double x, double y, const at::Tensor& pixels, double zoom);

  double width() const;

  /// The sheet as the bytes of a PNG file.
  std::string png() const;

 private:
  struct Surface;
  std::unique_ptr<Surface> surface_;
};

/// Names of values along an axis, and where they lie.
struct Axis {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<std::pair<double, std::string>> ticks{};
  std::vector<std::string> behind{};  ///< of a vertical one: texts at the other side, one per tick

  /// 0 at low, 1 at high.
  double place(double value) const;
};

/// Around the values, with a handful of round ticks; what is not finite (or on a logarithmic axis not positive) is passed over.
Axis axis_around(const std::vector<double>& values, bool logarithmic);

/// A panel with axes; draws into the rectangle given, labels outside it.
class Plot {
 public:
  Plot(Drawing& drawing, double x, double y, double width, double height, Axis horizontal, Axis vertical);

  void labels(const std::string& title, const std::string& below, const std::string& beside);
  void curve(const std::vector<double>& x, const std::vector<double>& y, const Drawing::LineStyle& style);
  /// Also of a single value, which makes no curve.
  void dots(const std::vector<double>& x, const std::vector<double>& y, const Colour& colour, double size = 5);
  /// Below a curve.
  void area(const std::vector<double>& x, const std::vector<double>& y, const Colour& colour, double opacity);
  /// A line across the panel at a value of the horizontal axis, or of the vertical one; none where it lies outside.
  void mark(bool horizontal, double value, const std::string& label, const Drawing::LineStyle& style);

 private:
  /// Where values lie on the sheet, at the edge where they are beyond it; those that are not finite are left out.
  std::vector<std::pair<double, double>> points(const std::vector<double>& x, const std::vector<double>& y) const;
  double px(double value) const { return x_ + width_ * horizontal_.place(value); }
  double py(double value) const { return y_ + height_ * (1 - vertical_.place(value)); }

  Drawing& drawing_;
  double x_;
  double y_;
  double width_;
  double height_;
  Axis horizontal_;
  Axis vertical_;
};

/// The title of a sheet, and below it what its lines stand for.
void heading(Drawing& drawing, const std::string& title, const std::vector<std::pair<std::string, Drawing::LineStyle>>& legend);

/// Four panels beside each other at most, then the next line.
struct Panels {
  explicit Panels(std::size_t count) : columns(std::min<std::size_t>(count, 4)), lines((count + columns - 1) / columns) {}

  static constexpr double kWidth = 250;
  static constexpr double kHeight = 190;
  static constexpr double kAcross = kWidth + 74;
  static constexpr double kDown = kHeight + 84;

  std::int64_t width() const { return std::max<std::int64_t>(680, static_cast<std::int64_t>(40 + kAcross * static_cast<double>(columns))); }
  std::int64_t height() const { return static_cast<std::int64_t>(92 + kDown * static_cast<double>(lines)); }
  double x(std::size_t i) const { return 82 + kAcross * static_cast<double>(i % columns); }
  double y(std::size_t i) const {
    const std::size_t line = i / columns;
    return 110 + kDown * static_cast<double>(line);
  }

  std::size_t columns;
  std::size_t lines;
};

}  // namespace invattn::reporting

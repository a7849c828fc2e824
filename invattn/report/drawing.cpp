#include "invattn/report/drawing.h"

#include <ATen/ATen.h>
#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <new>
#include <numbers>

namespace invattn::reporting {

const Colour& series_colour(std::size_t index) {
  static constexpr std::array<Colour, 5> kColours{kBlue, kVermilion, kGreen, kPurple, kOchre};
  return kColours[index % kColours.size()];
}

struct Drawing::Surface {
  Surface(std::int64_t width, std::int64_t height)
      : image(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width), static_cast<int>(height))),
        pen(cairo_create(image)) {}
  Surface(const Surface&) = delete;
  Surface& operator=(const Surface&) = delete;
  ~Surface() {
    cairo_destroy(pen);
    cairo_surface_destroy(image);
  }

  /// cairo remembers its first error; of these only want of memory can happen here.
  void check() const {
    if (cairo_status(pen) != CAIRO_STATUS_SUCCESS) throw std::bad_alloc();
  }

  cairo_surface_t* image;
  cairo_t* pen;
};

Drawing::Drawing(std::int64_t width, std::int64_t height) : surface_(std::make_unique<Surface>(width, height)) {
  cairo_set_source_rgb(surface_->pen, 1, 1, 1);
  cairo_paint(surface_->pen);
  surface_->check();
}

Drawing::~Drawing() = default;

void Drawing::text(double x, double y, const std::string& text, const TextStyle& style) {
  cairo_t* pen = surface_->pen;
  cairo_save(pen);
  cairo_select_font_face(pen, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL, style.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(pen, style.size);
  cairo_text_extents_t extents{};
  cairo_text_extents(pen, text.c_str(), &extents);
  const double shift = style.align == Align::kLeft ? 0 : style.align == Align::kCentre ? extents.x_advance / 2 : extents.x_advance;
  cairo_translate(pen, x, y);
  if (style.upright) cairo_rotate(pen, -std::numbers::pi / 2);
  cairo_move_to(pen, -shift, 0);
  cairo_set_source_rgb(pen, style.colour[0], style.colour[1], style.colour[2]);
  cairo_show_text(pen, text.c_str());
  cairo_restore(pen);
  surface_->check();
}

void Drawing::line(const std::vector<std::pair<double, double>>& points, const LineStyle& style) {
  cairo_t* pen = surface_->pen;
  cairo_save(pen);
  cairo_set_source_rgb(pen, style.colour[0], style.colour[1], style.colour[2]);
  cairo_set_line_width(pen, style.width);
  cairo_set_line_join(pen, CAIRO_LINE_JOIN_ROUND);
  constexpr std::array<double, 2> kDashes{5, 4};
  if (style.dashed) cairo_set_dash(pen, kDashes.data(), static_cast<int>(kDashes.size()), 0);
  cairo_new_path(pen);  // text leaves the pen where it ended
  for (const auto& [x, y] : points) cairo_line_to(pen, x, y);
  cairo_stroke(pen);
  cairo_restore(pen);
  surface_->check();
}

void Drawing::area(const std::vector<std::pair<double, double>>& corners, const Colour& fill, double opacity) {
  cairo_t* pen = surface_->pen;
  cairo_set_source_rgba(pen, fill[0], fill[1], fill[2], opacity);
  cairo_new_path(pen);
  for (const auto& [x, y] : corners) cairo_line_to(pen, x, y);
  cairo_fill(pen);
  surface_->check();
}

double Drawing::width() const { return cairo_image_surface_get_width(surface_->image); }

void Drawing::image(double x, double y, const at::Tensor& pixels, double zoom) {
  const at::Tensor colour = pixels.expand({3, pixels.size(1), pixels.size(2)}).contiguous();
  const std::int64_t height = colour.size(1);
  const std::int64_t width = colour.size(2);
  const Surface source(width, height);
  unsigned char* rows = cairo_image_surface_get_data(source.image);
  source.check();
  const std::int64_t stride = cairo_image_surface_get_stride(source.image);
  cairo_surface_flush(source.image);
  const std::uint8_t* red = colour.data_ptr<std::uint8_t>();
  for (std::int64_t r = 0; r < height; ++r) {
    auto* row = reinterpret_cast<std::uint32_t*>(rows + r * stride);
    for (std::int64_t c = 0; c < width; ++c) {
      const std::uint8_t* place = red + r * width + c;
      row[c] = (std::uint32_t{place[0]} << 16U) | (std::uint32_t{place[height * width]} << 8U) | std::uint32_t{place[2 * height * width]};
    }
  }
  cairo_surface_mark_dirty(source.image);
  cairo_t* pen = surface_->pen;
  cairo_save(pen);
  cairo_translate(pen, x, y);
  cairo_scale(pen, zoom, zoom);
  cairo_set_source_surface(pen, source.image, 0, 0);
  cairo_pattern_set_filter(cairo_get_source(pen), zoom < 1 ? CAIRO_FILTER_GOOD : CAIRO_FILTER_NEAREST);
  cairo_rectangle(pen, 0, 0, static_cast<double>(width), static_cast<double>(height));
  cairo_fill(pen);
  cairo_restore(pen);
  surface_->check();
}

std::string Drawing::png() const {
  std::string bytes;
  const auto append = [](void* out, const unsigned char* data, unsigned int length) {
    static_cast<std::string*>(out)->append(reinterpret_cast<const char*>(data), length);
    return CAIRO_STATUS_SUCCESS;
  };
  if (cairo_surface_write_to_png_stream(surface_->image, append, &bytes) != CAIRO_STATUS_SUCCESS) throw std::bad_alloc();
  return bytes;
}

double Axis::place(double value) const {
  return logarithmic ? (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low)) : (value - low) / (high - low);
}

Axis axis_around(const std::vector<double>& values, bool logarithmic) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double value : values) {
    if (!std::isfinite(value) || (logarithmic && value <= 0)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (low > high) low = logarithmic ? 0.1 : 0, high = 1;
  Axis axis{.logarithmic = logarithmic};
  std::array<char, 32> text{};
  if (logarithmic) {
    constexpr double kRounding = 1e-9;  // an end that is a power of ten stays
    const double first = std::floor(std::log10(low) + kRounding);
    const double last = std::max(std::ceil(std::log10(high) - kRounding), first + 1);
    axis.low = std::pow(10.0, first);
    axis.high = std::pow(10.0, last);
    const double step = std::max(1.0, std::ceil((last - first) / 6));
    for (double power = first; power <= last; power += step) {
      std::snprintf(text.data(), text.size(), "1e%d", static_cast<int>(power));
      axis.ticks.emplace_back(std::pow(10.0, power), text.data());
    }
    return axis;
  }
  if (low == high) high = low + 1;
  const double rough = (high - low) / 5;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double step = power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
  axis.low = std::floor(low / step + 1e-9) * step;
  axis.high = std::ceil(high / step - 1e-9) * step;
  const auto count = static_cast<int>(std::lround((axis.high - axis.low) / step));
  for (int i = 0; i <= count; ++i) {
    const double value = axis.low + i * step;
    std::snprintf(text.data(), text.size(), "%.4g", std::abs(value) < step / 1000 ? 0 : value);
    axis.ticks.emplace_back(value, text.data());
  }
  return axis;
}

Plot::Plot(Drawing& drawing, double x, double y, double width, double height, Axis horizontal, Axis vertical)
    : drawing_(drawing), x_(x), y_(y), width_(width), height_(height), horizontal_(std::move(horizontal)), vertical_(std::move(vertical)) {
  for (const auto& [value, name] : vertical_.ticks) {
    drawing_.line({{x_, py(value)}, {x_ + width_, py(value)}}, {.colour = kRule});
    drawing_.text(x_ - 7, py(value) + 4, name, {.size = 11, .colour = kMuted, .align = Align::kRight});
  }
  for (std::size_t i = 0; i < std::min(vertical_.behind.size(), vertical_.ticks.size()); ++i)
    drawing_.text(x_ + width_ + 12, py(vertical_.ticks[i].first) + 4, vertical_.behind[i], {.size = 11, .colour = kMuted});
  for (const auto& [value, name] : horizontal_.ticks) {
    drawing_.line({{px(value), y_ + height_}, {px(value), y_ + height_ + 4}}, {.colour = kMuted});
    drawing_.text(px(value), y_ + height_ + 17, name, {.size = 11, .colour = kMuted, .align = Align::kCentre});
  }
  drawing_.line({{x_, y_ + height_}, {x_ + width_, y_ + height_}}, {.colour = kMuted});
}

void Plot::labels(const std::string& title, const std::string& below, const std::string& beside) {
  drawing_.text(x_, y_ - 10, title, {.size = 13, .bold = true});
  drawing_.text(x_ + width_ / 2, y_ + height_ + 36, below, {.size = 12, .colour = kMuted, .align = Align::kCentre});
  if (!beside.empty())
    drawing_.text(x_ - 52, y_ + height_ / 2, beside, {.size = 12, .colour = kMuted, .align = Align::kCentre, .upright = true});
}

void Plot::curve(const std::vector<double>& x, const std::vector<double>& y, const Drawing::LineStyle& style) {
  drawing_.line(points(x, y), style);
}

void Plot::dots(const std::vector<double>& x, const std::vector<double>& y, const Colour& colour, double size) {
  const double half = size / 2;
  for (const auto& [across, down] : points(x, y)) {
    drawing_.area({{across - half, down - half}, {across + half, down - half}, {across + half, down + half}, {across - half, down + half}},
                  colour);
  }
}

std::vector<std::pair<double, double>> Plot::points(const std::vector<double>& x, const std::vector<double>& y) const {
  std::vector<std::pair<double, double>> result;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    const bool outside = (horizontal_.logarithmic && !(x[i] > 0)) || (vertical_.logarithmic && y[i] <= 0);
    if (!std::isfinite(x[i]) || !std::isfinite(y[i]) || outside) continue;
    result.emplace_back(px(x[i]), std::clamp(py(y[i]), y_, y_ + height_));
  }
  return result;
}

void Plot::area(const std::vector<double>& x, const std::vector<double>& y, const Colour& colour, double opacity) {
  std::vector<std::pair<double, double>> corners = points(x, y);
  if (corners.empty()) return;
  const double ground = y_ + height_;
  corners.insert(corners.begin(), {corners.front().first, ground});
  corners.emplace_back(corners.back().first, ground);
  drawing_.area(corners, colour, opacity);
}

void Plot::mark(bool horizontal, double value, const std::string& label, const Drawing::LineStyle& style) {
  const double place = (horizontal ? horizontal_ : vertical_).place(value);
  if (!(place >= 0 && place <= 1)) return;
  if (!horizontal) {
    drawing_.line({{x_, py(value)}, {x_ + width_, py(value)}}, style);
    drawing_.text(x_ + width_ - 4, py(value) - 5, label, {.size = 11, .colour = style.colour, .align = Align::kRight});
    return;
  }
  drawing_.line({{px(value), y_}, {px(value), y_ + height_}}, style);
  const bool left = place > 0.6;
  drawing_.text(px(value) + (left ? -4 : 4), y_ + (style.dashed ? 24 : 10), label,
                {.size = 11, .colour = style.colour, .align = left ? Align::kRight : Align::kLeft});
}

void heading(Drawing& drawing, const std::string& title, const std::vector<std::pair<std::string, Drawing::LineStyle>>& legend) {
  drawing.text(kMargin, 30, title, {.size = 15, .bold = true});
  double x = kMargin;
  double y = 54;
  for (const auto& [name, style] : legend) {
    const double wide = 52 + 7.4 * static_cast<double>(name.size());
    if (x > kMargin && x + wide > drawing.width()) x = kMargin, y += 18;
    drawing.line({{x, y}, {x + 26, y}}, style);
    drawing.text(x + 32, y + 4, name, {.size = 12, .colour = kMuted});
    x += wide;
  }
}

}  // namespace invattn::reporting

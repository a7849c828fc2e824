#include "invattn/solver/report.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <numeric>

#include "invattn/core/error.h"

namespace invattn {
namespace {

constexpr size_t kWorstSamplesShown = 5;

std::string scientific(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1e", value);
  return text.data();
}

std::string seconds_text(double seconds) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.3f s", seconds);
  return text.data();
}

std::string counted(int64_t number, const std::string& singular) {
  return std::to_string(number) + " " + singular + (number == 1 ? "" : "s");
}

/// ", 1 diverged, 2 stagnated": everything but the good ends, the worst first.
std::string failures(const InverseReport& report) {
  std::string text;
  for (auto entry = EnumNames<SampleStatus>::kNames.rbegin(); entry != EnumNames<SampleStatus>::kNames.rend(); ++entry) {
    const int64_t number = report.count(entry->first);
    if (number > 0 && !is_converged(entry->first)) text += ", " + std::to_string(number) + " " + std::string(entry->second);
  }
  return text;
}

template <class T>
std::vector<T> to_vector(const at::Tensor& values) {
  return {values.const_data_ptr<T>(), values.const_data_ptr<T>() + values.numel()};
}

/// Samples ordered by status, then residual, the worst first.
std::vector<int64_t> worst_first(const InverseReport& report) {
  const auto residual = to_vector<double>(report.residual);
  std::vector<int64_t> order(report.statuses.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
    return std::pair(report.statuses[left], residual[left]) > std::pair(report.statuses[right], residual[right]);
  });
  return order;
}

/// The value below or at which a part of the values lie; one of the values itself.
template <class T>
T quantile(const std::vector<T>& sorted, double part) {
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

template <class T, class Print>
std::string quantiles(const at::Tensor& values, const char* least, const char* most, Print print) {
  auto sorted = to_vector<T>(values);
  std::sort(sorted.begin(), sorted.end());
  return std::string(least) + " " + print(sorted.front()) + ", median " + print(quantile(sorted, 0.5)) + ", 90% " +
         print(quantile(sorted, 0.9)) + ", " + most + " " + print(sorted.back());
}

std::string indented(const std::string& text, const std::string& indent) {
  std::string result;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    result += indent + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return result;
}

/// The different methods in their order, those with a closed inverse only where there is no other.
std::string combined_method(const std::vector<InverseReport>& reports) {
  const bool all_exact = std::all_of(reports.begin(), reports.end(),
                                     [](const InverseReport& report) { return report.count(SampleStatus::kExact) == report.batch(); });
  std::vector<std::string> names;
  for (const auto& report : reports) {
    const bool exact = report.count(SampleStatus::kExact) == report.batch();
    if ((all_exact || !exact) && std::find(names.begin(), names.end(), report.method) == names.end()) names.push_back(report.method);
  }
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : " + ") + name;
  return text;
}

}  // namespace

InverseReport::InverseReport(std::string method, int64_t batch)
    : method(std::move(method)),
      residual(at::full({batch}, std::numeric_limits<double>::infinity(), at::kDouble)),
      iterations(at::zeros({batch}, at::kLong)),
      statuses(static_cast<size_t>(batch), SampleStatus::kNotConverged) {}

InverseReport InverseReport::exact(int64_t batch, std::string method) {
  InverseReport report(std::move(method), batch);
  report.residual.zero_();
  report.statuses.assign(static_cast<size_t>(batch), SampleStatus::kExact);
  return report;
}

InverseReport InverseReport::combine(std::vector<InverseReport> reports) {
  require(!reports.empty(), "InverseReport.combine", "expected at least one report, got none.");
  InverseReport combined = exact(reports.front().batch(), combined_method(reports));
  for (size_t part = 0; part < reports.size(); ++part) {
    const InverseReport& report = reports[part];
    require(report.residual.defined() && report.batch() == combined.batch(), "InverseReport.combine", "expected reports of the same ",
            combined.batch(), " samples, got ", report.batch(), " samples in part ", part + 1, ".");
    combined.tolerance = std::max(combined.tolerance, report.tolerance);
    combined.residual = at::maximum(combined.residual, report.residual);
    combined.iterations = combined.iterations + report.iterations;
    for (size_t sample = 0; sample < combined.statuses.size(); ++sample) {
      combined.statuses[sample] = std::max(combined.statuses[sample], report.statuses[sample]);
    }
    combined.evaluations += report.evaluations;
    combined.sample_evaluations += report.sample_evaluations;
    combined.seconds += report.seconds;
    for (const auto& note : report.notes) combined.notes.push_back("part " + std::to_string(part + 1) + ": " + note);
  }
  combined.parts = std::move(reports);
  return combined;
}

InverseReport InverseReport::gather(const InverseReport& others, std::vector<InverseReport> reports,
                                    const std::vector<at::Tensor>& samples) {
  InverseReport result = others;
  std::size_t steps = 0;
  for (const auto& report : reports) steps = std::max(steps, report.trace.size());
  for (std::size_t step = 0; step < steps; ++step) result.trace.push_back(others.residual.clone());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    auto& report = reports[i];
    const auto rows = samples.at(i).cpu();
    result.method = report.method;
    result.options = report.options;
    result.tolerance = report.tolerance;
    result.residual = result.residual.index_copy(0, rows, report.residual);
    result.iterations = result.iterations.index_copy(0, rows, report.iterations);
    for (int64_t row = 0; row < rows.numel(); ++row) {
      result.statuses[static_cast<std::size_t>(rows[row].item<int64_t>())] = report.statuses[static_cast<std::size_t>(row)];
    }
    result.evaluations += report.evaluations;
    result.sample_evaluations += report.sample_evaluations;
    result.seconds += report.seconds;
    for (std::size_t step = 0; step < steps; ++step) {
      if (report.trace.empty()) continue;  // its samples were out at once
      result.trace[step].index_copy_(0, rows, report.trace[std::min(step, report.trace.size() - 1)]);
    }
    std::move(report.notes.begin(), report.notes.end(), std::back_inserter(result.notes));
  }
  return result;
}

int64_t InverseReport::count(SampleStatus status) const { return std::count(statuses.begin(), statuses.end(), status); }

int64_t InverseReport::converged_count() const { return std::count_if(statuses.begin(), statuses.end(), is_converged); }

bool InverseReport::usable() const { return residual.defined() && converged_count() == batch(); }

double InverseReport::largest_residual() const { return batch() == 0 ? 0.0 : residual.max().item<double>(); }

int64_t InverseReport::most_iterations() const { return batch() == 0 ? 0 : iterations.max().item<int64_t>(); }

int64_t InverseReport::worst_sample() const { return batch() == 0 ? -1 : worst_first(*this).front(); }

void InverseReport::throw_unless_usable(OnFailure on_failure) const {
  if (on_failure == OnFailure::kReport || usable()) return;
  fail(ErrorKind::kNotConverged, method, "expected every sample to converge, got ", brief(),
       ". Use on_failure = report for the full report and the best iterates, or try another method.");
}

std::string InverseReport::brief() const {
  if (!residual.defined()) return "nothing was inverted";
  const std::string share = std::to_string(converged_count()) + "/" + std::to_string(batch());
  if (batch() > 0 && count(SampleStatus::kExact) == batch()) return method + ": " + share + " exact, " + seconds_text(seconds);
  const std::string effort = "in at most " + counted(most_iterations(), "iteration");
  if (usable()) {
    return method + ": " + share + " converged " + effort + ", residual " + scientific(largest_residual()) + ", " + seconds_text(seconds);
  }
  return method + ": " + share + " converged" + failures(*this) + "; largest residual " + scientific(largest_residual()) + " (sample " +
         std::to_string(residual.argmax().item<int64_t>()) + ") " + effort + ", " + seconds_text(seconds);
}

std::string InverseReport::full() const {
  std::string text = brief() + "\n";
  const auto line = [&text](std::string_view label, const std::string& content) {
    std::string padded(label);
    padded.resize(16, ' ');
    text += "  " + padded + content + "\n";
  };
  if (tolerance > 0) line("rule", "rms(x + g(x) - y) / (1 + rms(y)) <= " + scientific(tolerance));
  if (!options.empty()) line("options", options);
  if (batch() > 0) {
    const int64_t exact_count = count(SampleStatus::kExact);
    line("samples", (exact_count > 0 ? std::to_string(exact_count) + " exact, " : "") + std::to_string(count(SampleStatus::kConverged)) +
                        " converged" + failures(*this));
    line("residual", quantiles<double>(residual, "smallest", "largest", scientific));
    line("iterations", quantiles<int64_t>(iterations, "fewest", "most", [](int64_t value) { return std::to_string(value); }));
  }
  line("evaluations", counted(evaluations, "call") + " of g or J v, " + counted(sample_evaluations, "sample") + " in all");
  if (!usable() && batch() > 0) {
    const auto order = worst_first(*this);
    for (size_t rank = 0; rank < std::min(order.size(), kWorstSamplesShown); ++rank) {
      const int64_t sample = order[rank];
      if (is_converged(statuses[sample])) break;
      line(rank == 0 ? "worst samples" : "", "sample " + std::to_string(sample) + ": " + std::string(to_string(statuses[sample])) +
                                                 ", residual " + scientific(residual[sample].item<double>()) + " after " +
                                                 counted(iterations[sample].item<int64_t>(), "iteration"));
    }
  }
  for (size_t index = 0; index < notes.size(); ++index) line(index == 0 ? "notes" : "", notes[index]);
  for (size_t index = 0; index < parts.size(); ++index) {
    text += "  part " + std::to_string(index + 1) + "\n" + indented(parts[index].full(), "    ");
  }
  return text;
}

}  // namespace invattn

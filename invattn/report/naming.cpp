#include "invattn/report/naming.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "invattn/core/fnv.h"

namespace invattn::reporting {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kDatasets{
    {{"cifar10", "CIFAR-10"}, {"svhn", "SVHN"}, {"celeba", "CelebA"}, {"synthetic", "synthetic"}}};

}  // namespace

std::size_t rank_of_dataset(const std::string& name) {
  return static_cast<std::size_t>(
      std::find_if(kDatasets.begin(), kDatasets.end(), [&name](const auto& entry) { return entry.first == name; }) - kDatasets.begin());
}

std::string View::title() const {
  const std::size_t rank = rank_of_dataset(dataset);
  std::string text = rank < kDatasets.size() ? std::string(kDatasets[rank].second) : dataset;
  constexpr std::int64_t kSmall = 32;
  if (height != kSmall || width != kSmall) text.append(" ").append(std::to_string(height)).append("x").append(std::to_string(width));
  return text;
}

std::string View::slug() const { return reporting::slug(dataset) + "-" + std::to_string(height) + "x" + std::to_string(width); }

std::string slug(std::string_view name) {
  std::string result;
  for (const char character : name) {
    const auto letter = static_cast<unsigned char>(character);
    if (letter < 0x80 && std::isalnum(letter) != 0) {
      result += static_cast<char>(std::tolower(letter));
    } else if (!result.empty() && result.back() != '-') {
      result += '-';
    }
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  constexpr std::size_t kLongest = 80;  // it becomes the name of a file
  if (result.size() > kLongest) return result.substr(0, kLongest) + "-" + std::to_string(fnv1a(name));
  return result.empty() ? "unnamed" : result;
}

std::string with_commas(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (!text.empty() && text != "-" && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace invattn::reporting

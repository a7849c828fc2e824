#include "invattn/io/output_paths.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

using std::filesystem::path;

class OutputPaths : public FileTest {
 protected:
  void refused(const std::vector<path>& outputs, const std::vector<path>& inputs, const char* part) const {
    expect_contains(error_of([&] { require_separate_outputs(outputs, inputs, "test"); }, ErrorKind::kUsage), part);
  }
};

/// Any way to write the path of a file that is there, and of one that is not.
TEST_F(OutputPaths, AnInputIsKnownByWhateverName) {
  std::filesystem::create_directories(folder / "a/b");
  write_plainly(folder / "a/b/photo.png", "photo");
  std::filesystem::create_symlink("a", folder / "link");
  std::filesystem::create_symlink("photo.png", folder / "a/b/other.png");
  std::filesystem::create_hard_link(folder / "a/b/photo.png", folder / "hard.png");
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  const std::vector<std::string> starts = {"a/", "link/", "a/../a/", "./a/", "a//", "link/../link/"};
  const std::vector<std::string> middles = {"b/", "b/./", "b//", "../a/b/", "b/../b/"};
  const auto some = [&](const std::vector<std::string>& from) { return from[random() % from.size()]; };
  for (int i = 0; i < 200; ++i) {
    for (const char* name : {"photo.png", "other.png"}) {
      const path output = folder / (some(starts) + some(middles) + name);
      refused({folder / "free.png", output}, {folder / (some(starts) + some(middles) + "photo.png")}, "written over the input");
    }
    const path first = folder / (some(starts) + some(middles) + "new.png");
    refused({first, folder / (some(starts) + some(middles) + "new.png")}, {}, "for two of them");
  }
  refused({"not-there.png", "./not-there.png"}, {}, "for two of them");
  refused({"not-there/../not-there.png"}, {std::filesystem::current_path() / "not-there.png"}, "written over the input");
  refused({folder / "hard.png"}, {folder / "a/b/photo.png"}, "written over the input");
}

TEST_F(OutputPaths, OthersPass) {
  write_plainly(folder / "photo.png", "photo");
  write_plainly(folder / "old_map.png", "map");
  std::filesystem::create_symlink("round", folder / "round");  // a link to itself leads nowhere
  EXPECT_NO_THROW(require_separate_outputs({folder / "old_map.png", folder / "photo_overlay.png", folder / "round"},
                                           {folder / "photo.png", folder / "missing.png", path()}, "test"));
}

}  // namespace
}  // namespace invattn::test

#include "invattn/experiments/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "invattn/core/error.h"
#include "invattn/train/metrics_log.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

class RunFolderTest : public FileTest {
 protected:
  RunSettings settings(bool resume = false) const { return {.folder = folder / "run", .resume = resume}; }
  OpenRunFolder open(bool resume = false) const { return {settings(resume), "test"}; }
  void make_run() const {
    std::filesystem::create_directories(folder / "run");
    write_plainly(folder / "run/config.toml", "seed = 1\n");
  }
};

TEST_F(RunFolderTest, OneProcessWorksInItAndTheOtherIsToldWho) {
  make_run();
  {
    const auto mine = open(true);
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 0;
      try {
        const OpenRunFolder other(settings(true), "test");
      } catch (const Error& error) {
        const bool told = std::string(error.what()).find("process " + std::to_string(::getppid()) + " is working") != std::string::npos;
        code = told && error.kind() == ErrorKind::kUsage ? 42 : 1;
      }
      ::_exit(code);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 42);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run/.invattn.lock"));
  EXPECT_NO_THROW(open(true));
}

TEST_F(RunFolderTest, AKilledOwnerHoldsNothing) {
  make_run();
  const pid_t child = ::fork();
  if (child == 0) {
    const OpenRunFolder held(settings(true), "test");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/.invattn.lock"));
  EXPECT_NO_THROW(open(true));
}

TEST_F(RunFolderTest, AStartIsRefusedWhereItWouldOverwriteAnything) {
  for (const char* name :
       {"metrics.jsonl", "results.json", "checkpoint.safetensors", "weights.safetensors", "model.safetensors", "evaluation.json",
        "pictures.safetensors", "report.html", "cells/mine", "maps/mine", "samples/mine", "tables/mine", "figures/mine"}) {
    std::filesystem::create_directories((folder / "run" / name).parent_path());
    write_plainly(folder / "run" / name, "mine");
    expect_contains(error_of([&] { open(); }, ErrorKind::kUsage), "would be overwritten");
    EXPECT_EQ(read_plainly(folder / "run" / name), "mine");
    std::filesystem::remove_all(folder / "run");
  }
  std::filesystem::create_directories(folder / "run");
  std::filesystem::create_symlink("nowhere", folder / "run/model.safetensors");
  expect_contains(error_of([&] { open(); }, ErrorKind::kUsage), "would be overwritten");
  std::filesystem::remove(folder / "run/model.safetensors");
  write_plainly(folder / "run/notes.txt", "mine");
  std::filesystem::create_directories(folder / "run/samples");
  EXPECT_NO_THROW(open()) << "a start that failed may have left an empty folder";
}

TEST_F(RunFolderTest, ResumingRemovesWhatAKilledProcessLeftHalfWrittenAndNothingElse) {
  make_run();
  std::filesystem::create_directories(folder / "run/cells/one");
  for (const char* name : {".invattn-1.tmp", "cells/one/.invattn-22.tmp"}) write_plainly(folder / "run" / name, "half");
  for (const char* name : {"invattn-1.tmp", ".invattn-1.txt", "cells/one/cell.json"}) write_plainly(folder / "run" / name, "whole");
  open(true);
  EXPECT_FALSE(std::filesystem::exists(folder / "run/.invattn-1.tmp"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/cells/one/.invattn-22.tmp"));
  for (const char* name : {"invattn-1.tmp", ".invattn-1.txt", "cells/one/cell.json"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / "run" / name)) << name;
  }
}

TEST_F(RunFolderTest, MetricsThatAreNoRegularFileAreRefusedAtOnce) {
  make_run();
  const auto path = folder / "run/metrics.jsonl";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_contains(error_of([&] { trim_metrics(folder / "run", 3, "test"); }), "got a pipe");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  expect_contains(error_of([&] { trim_metrics(folder / "run", 3, "test"); }), "got a folder");
}

}  // namespace
}  // namespace invattn::test

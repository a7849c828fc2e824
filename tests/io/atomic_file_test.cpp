#include "invattn/io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "invattn/io/posix_file.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "test";

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

class AtomicFile : public FileTest {
 protected:
  mode_t mode_of(const std::filesystem::path& path) const {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 07777U;
  }
};

TEST_F(AtomicFile, WritesPiecesInOrder) {
  const std::array pieces{bytes_of("one"), bytes_of(""), bytes_of(std::string_view("\0two", 4))};
  write_file_atomically(folder / "file", pieces, kOrigin);
  EXPECT_EQ(read_plainly(folder / "file"), std::string("one\0two", 7));
  write_file_atomically(folder / "file", "", kOrigin);
  EXPECT_EQ(read_plainly(folder / "file"), "");
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(AtomicFile, RelativePathWithoutFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  write_file_atomically("plain", "text", kOrigin);
  std::filesystem::current_path(before);
  EXPECT_EQ(read_plainly(folder / "plain"), "text");
}

TEST_F(AtomicFile, LongestNameIsStillPossible) {
  const std::string name(255, 'n');
  write_file_atomically(folder / name, "text", kOrigin);
  EXPECT_EQ(read_plainly(folder / name), "text");
  expect_contains(error_of([&] { write_file_atomically(folder / (name + "n"), "text", kOrigin); }), "shorter name");
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(AtomicFile, NewFileFollowsUmaskAndExistingKeepsMode) {
  const mode_t old_mask = ::umask(027);
  write_file_atomically(folder / "new", "text", kOrigin);
  ::umask(old_mask);
  EXPECT_EQ(mode_of(folder / "new"), 0640U);

  write_plainly(folder / "existing", "old");
  ASSERT_EQ(::chmod((folder / "existing").c_str(), 0604), 0);
  write_file_atomically(folder / "existing", "new", kOrigin);
  EXPECT_EQ(mode_of(folder / "existing"), 0604U);
  EXPECT_EQ(read_plainly(folder / "existing"), "new");
}

TEST_F(AtomicFile, SymbolicLinkStaysAndItsTargetIsReplaced) {
  std::filesystem::create_directory(folder / "elsewhere");
  write_plainly(folder / "elsewhere" / "target", "old");
  std::filesystem::create_symlink("elsewhere/target", folder / "link");
  write_file_atomically(folder / "link", "new", kOrigin);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_plainly(folder / "elsewhere" / "target"), "new");

  std::filesystem::create_symlink("nowhere", folder / "dangling");
  expect_contains(error_of([&] { write_file_atomically(folder / "dangling", "new", kOrigin); }), "following the symbolic link");
}

TEST_F(AtomicFile, OpenReaderKeepsTheOldFileWhole) {
  const std::string old_content(100000, 'o');
  write_plainly(folder / "file", old_content);
  const FileDescriptor reader(::open((folder / "file").c_str(), O_RDONLY));
  std::string seen(old_content.size() + 1, '\0');
  const auto buffer = std::as_writable_bytes(std::span(seen.data(), seen.size()));
  ASSERT_EQ(read_fully(reader.get(), buffer.first(500)).bytes, 500U);
  write_file_atomically(folder / "file", "new", kOrigin);
  EXPECT_EQ(read_fully(reader.get(), buffer.subspan(500)).bytes, old_content.size() - 500);
  seen.pop_back();
  EXPECT_EQ(seen, old_content);
  EXPECT_EQ(read_plainly(folder / "file"), "new");
}

TEST_F(AtomicFile, ConcurrentWritersAndReadersNeverSeeAPart) {
  const std::string first(200000, 'a');
  const std::string second(100000, 'b');
  write_plainly(folder / "file", first);
  std::atomic<int> running = 2;
  const auto writer = [&](const std::string& content) {
    for (int i = 0; i < 20; ++i) write_file_atomically(folder / "file", content, kOrigin);
    --running;
  };
  std::thread first_writer(writer, std::cref(first));
  std::thread second_writer(writer, std::cref(second));
  int parts = 0;
  while (running > 0) {
    const std::string seen = read_plainly(folder / "file");
    if (seen != first && seen != second) ++parts;
  }
  first_writer.join();
  second_writer.join();
  EXPECT_EQ(parts, 0);
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(AtomicFile, FullDiskLeavesTheOldFileAndNothingElse) {
  write_plainly(folder / "file", "old");
  const std::string content(100000, 'n');
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = error_of([&] { write_file_atomically(folder / "file", content, kOrigin); });
  }
  expect_contains(message, "[test] expected to write " + (folder / "file").string());
  expect_contains(message, errno_text(EFBIG));
  expect_contains(message, "while writing. Raise the file size limit");
  EXPECT_EQ(read_plainly(folder / "file"), "old");
  EXPECT_EQ(files_in_folder(), 1U);
  write_file_atomically(folder / "file", content, kOrigin);
  EXPECT_EQ(read_plainly(folder / "file"), content);
}

TEST_F(AtomicFile, UnwritableFolder) {
  write_plainly(folder / "file", "old");
  ASSERT_EQ(::chmod(folder.c_str(), 0555), 0);
  std::string message;
  {
    const WithoutRoot unprivileged;
    if (::access(folder.c_str(), W_OK) == 0 && ::geteuid() == 0) GTEST_SKIP() << "root that cannot stop being root may write everywhere";
    message = error_of([&] { write_file_atomically(folder / "file", "new", kOrigin); });
  }
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  expect_contains(message, (folder / "file").string());
  expect_contains(message, errno_text(EACCES));
  expect_contains(message, "Make the folder writable");
  EXPECT_EQ(read_plainly(folder / "file"), "old");
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(AtomicFile, WrongPaths) {
  expect_contains(error_of([&] { write_file_atomically(folder / "missing" / "file", "text", kOrigin); }), "Make the folder first");
  write_plainly(folder / "file", "text");
  expect_contains(error_of([&] { write_file_atomically(folder / "file" / "below", "text", kOrigin); }), errno_text(ENOTDIR));
  expect_contains(error_of([&] { write_file_atomically(folder, "text", kOrigin); }), "which is a folder");
  expect_contains(error_of([&] { write_file_atomically("", "text", kOrigin); }), "expected the name of a file");
  expect_contains(error_of([&] { write_file_atomically("/dev/full", "text", kOrigin); }), "a device, pipe or socket");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST(PosixFile, WriteFullyReportsAFullDevice) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full);
  const TransferResult result = write_fully(full.get(), bytes_of("text"));
  EXPECT_EQ(result.error, ENOSPC);
  EXPECT_EQ(result.bytes, 0U);
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    out = FileDescriptor(ends[0]);
    in = FileDescriptor(ends[1]);
  }
  FileDescriptor out;
  FileDescriptor in;
};

TEST(PosixFile, ReadFullyStopsAtTheEndWithoutError) {
  Pipe pipe;
  ASSERT_EQ(write_fully(pipe.in.get(), bytes_of("12345")).bytes, 5U);
  pipe.in.close();
  std::array<std::byte, 8> buffer{};
  const TransferResult result = read_fully(pipe.out.get(), buffer);
  EXPECT_EQ(result.bytes, 5U);
  EXPECT_EQ(result.error, 0);
}

TEST(PosixFile, ReadFullyReportsErrors) {
  std::array<std::byte, 8> buffer{};
  EXPECT_EQ(read_fully(-1, buffer).error, EBADF);
}

std::atomic<int> interruptions = 0;

TEST(PosixFile, TransfersSurviveInterruptionsAndShortCounts) {
  struct sigaction action {};
  struct sigaction old_action {};
  action.sa_handler = [](int) { ++interruptions; };  // without SA_RESTART: the system call answers EINTR
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old_action), 0);

  Pipe pipe;
  const std::string content(1 << 20, 'x');  // larger than the pipe, so that both ends wait and transfer parts
  std::string seen(content.size(), '\0');
  std::atomic<bool> written = false;
  TransferResult write_result;
  std::thread writer([&] {
    write_result = write_fully(pipe.in.get(), bytes_of(content));
    written = true;
  });
  while (interruptions < 5) {  // the pipe is full and nobody reads: the writer is waiting in write()
    ::pthread_kill(writer.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  EXPECT_FALSE(written);
  const TransferResult read_result = read_fully(pipe.out.get(), std::as_writable_bytes(std::span(seen.data(), seen.size())));
  writer.join();
  ASSERT_EQ(::sigaction(SIGUSR1, &old_action, nullptr), 0);
  EXPECT_EQ(write_result.bytes, content.size());
  EXPECT_EQ(write_result.error, 0);
  EXPECT_EQ(read_result.bytes, content.size());
  EXPECT_EQ(read_result.error, 0);
  EXPECT_EQ(seen, content);
}

}  // namespace
}  // namespace invattn

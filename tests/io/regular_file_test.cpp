#include "invattn/io/regular_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

constexpr WantedFile kWanted{.origin = "test", .what = "a list"};

class RegularFileTest : public FileTest {
 protected:
  std::string refusal(const std::filesystem::path& path) const {
    return error_of([&] { read_regular_file(path, kWanted, 1000); });
  }
};

TEST_F(RegularFileTest, ReadsAllOrParts) {
  write_plainly(folder / "file", "0123456789");
  EXPECT_EQ(read_regular_file(folder / "file", kWanted, 10), "0123456789");
  std::filesystem::create_symlink("file", folder / "link");
  const RegularFile file(folder / "link", kWanted);
  EXPECT_EQ(file.size(), 10U);
  std::string part(4, '\0');
  file.read_at(3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "3456");
  write_plainly(folder / "empty", "");
  EXPECT_EQ(read_regular_file(folder / "empty", kWanted, 10), "");
}

TEST_F(RegularFileTest, RefusesEverythingElseAtOnce) {
  const std::string start = "[test] expected a list at ";
  EXPECT_EQ(refusal(folder / "none"),
            start + (folder / "none").string() + ", got 'No such file or directory'. Check the path and its permissions.");
  EXPECT_EQ(refusal(folder), start + folder.string() + ", got a folder. Check the path and its permissions.");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_contains(refusal(folder / "pipe"), ", got a pipe.");
  std::filesystem::create_symlink("pipe", folder / "link");
  expect_contains(refusal(folder / "link"), ", got a pipe.");
  for (const char* device : {"/dev/zero", "/dev/null", "/dev/tty"}) expect_contains(refusal(device), "got a device.");
  std::filesystem::create_symlink("circle", folder / "circle");
  expect_contains(refusal(folder / "circle"), "Too many levels of symbolic links");
  expect_contains(refusal(folder / std::string(300, 'a')), "File name too long");

  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = (folder / "socket").string();
  ASSERT_LT(name.size(), sizeof address.sun_path);
  std::memcpy(static_cast<void*>(address.sun_path), name.c_str(), name.size());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_contains(refusal(folder / "socket"), "got a socket.");
}

TEST_F(RegularFileTest, NoPermission) {
  write_plainly(folder / "file", "text");
  std::filesystem::permissions(folder / "file", std::filesystem::perms::none);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  const WithoutRoot nobody;
  expect_contains(refusal(folder / "file"), ", got 'Permission denied'. Check its permissions.");
}

TEST_F(RegularFileTest, TooLargeOrChanged) {
  write_plainly(folder / "file", std::string(1001, 'x'));
  expect_contains(refusal(folder / "file"), ": expected a list of at most 1000 bytes, got 1001.");
  const RegularFile file(folder / "file", kWanted);
  file.check_unchanged();
  std::filesystem::resize_file(folder / "file", 10);
  std::string part(20, '\0');
  expect_contains(error_of([&] { file.read_at(0, std::as_writable_bytes(std::span(part))); }), "Somebody is writing to it");
  expect_contains(error_of([&] { file.check_unchanged(); }), "Somebody is writing to it");
}

TEST_F(RegularFileTest, NamesArePrintedEscaped) {
  const std::string message = refusal(folder / "\x1B[31mred\xFF");
  expect_contains(message, "\\x1b[31mred\\xff");
  EXPECT_EQ(message.find('\x1B'), std::string::npos);
}

}  // namespace
}  // namespace invattn

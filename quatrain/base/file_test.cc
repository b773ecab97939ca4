// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FileTest : public ::testing::Test {
 protected:
  FileTest()
      : folder_(fs::path(::testing::TempDir()) / ("quatrain_file_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~FileTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(FileTest, WritesAndReadsBack) {
  const fs::path path = folder_ / "x.bin";
  std::string content(100000, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31);
  write_file_atomically(path, content);
  EXPECT_EQ(read_file(path), content);
  write_file_atomically(path, "short");
  EXPECT_EQ(read_file(path), "short");
  write_file_atomically(path, "");
  EXPECT_EQ(read_file(path), "");
}

TEST_F(FileTest, LeavesNoTemporary) {
  write_file_atomically(folder_ / "x", "1");
  fs::create_directory(folder_ / "taken");
  EXPECT_THROW(write_file_atomically(folder_ / "taken", "2"), StorageError);
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++entries;
  EXPECT_EQ(entries, 2U);
  EXPECT_EQ(read_file(folder_ / "x"), "1");
}

TEST_F(FileTest, ErrorsNamePathAndReason) {
  const fs::path missing = folder_ / "none" / "x";
  const auto names = AllOf(HasSubstr(missing.string()), HasSubstr("No such file"));
  EXPECT_THAT([&] { read_file(missing); }, ThrowsMessage<StorageError>(names));
  EXPECT_THAT([&] { write_file_atomically(missing, "x"); }, ThrowsMessage<StorageError>(names));
  EXPECT_THAT([&] { MappedFile map(missing); }, ThrowsMessage<StorageError>(names));
  EXPECT_THAT([&] { read_file(folder_); }, ThrowsMessage<StorageError>(HasSubstr("directory")));
  EXPECT_THAT([&] { MappedFile map(folder_); },
              ThrowsMessage<StorageError>(HasSubstr("directory")));
}

TEST_F(FileTest, ReadsFilesWithoutASize) {
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Name:"));
}

TEST_F(FileTest, MapsMoveAndMayBeEmpty) {
  write_file_atomically(folder_ / "a", "abc");
  write_file_atomically(folder_ / "empty", "");
  MappedFile map(folder_ / "a");
  ASSERT_EQ(map.size(), 3);
  EXPECT_EQ(std::memcmp(map.bytes().data(), "abc", 3), 0);
  MappedFile moved(std::move(map));
  EXPECT_EQ(moved.size(), 3);
  EXPECT_EQ(moved.path(), folder_ / "a");
  MappedFile empty(folder_ / "empty");
  EXPECT_TRUE(empty.bytes().empty());
  empty = std::move(moved);
  EXPECT_EQ(empty.bytes()[2], std::byte{'c'});
}

}  // namespace
}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// Whole reads and writes over calls that fail, on the real file system and in memory.
#include "quatrain/checkpoint/storage.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "quatrain/base/error.h"
#include "quatrain/base/scratch_folder.h"
#include "quatrain/checkpoint/testing/faulty_file_system.h"
#include "quatrain/checkpoint/testing/memory_file_system.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;
using testing::FaultyFileSystem;
using testing::FileCall;
using testing::FileFault;
using ::testing::HasSubstr;
using testing::MemoryFileSystem;

void write_text(FileSystem& files, const std::filesystem::path& path, std::string_view text) {
  OutputFile file(files, path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

// What any file system must do.
void expect_files(FileSystem& files, const std::filesystem::path& root) {
  const std::filesystem::path folder = root / "a" / "b";
  make_folders(files, folder);
  make_folders(files, folder);
  const std::string large(3 << 20, 'x');
  {
    OutputFile file(files, folder / "x");
    for (const std::string_view part : {"12", "3456"}) file.write(std::as_bytes(std::span(part)));
    file.write(std::as_bytes(std::span(large)));
    file.write({});
    file.finish();
  }
  write_text(files, folder / "y", "");
  EXPECT_EQ(read_text(files, folder / "x"), "123456" + large);
  EXPECT_EQ(read_text(files, folder / "y"), "");
  EXPECT_EQ(read_text(files, folder / "z"), std::nullopt);
  EXPECT_EQ(read_text(files, folder / "x" / "z"), std::nullopt);
  EXPECT_THAT(*list_folder(files, folder), ElementsAre("x", "y"));
  EXPECT_EQ(list_folder(files, root / "c"), std::nullopt);
  InputFile input(files, folder / "x");
  std::string some(4, ' ');
  input.read(std::as_writable_bytes(std::span(some)), 2);
  EXPECT_EQ(some, "3456");
  EXPECT_THROW(input.read(std::as_writable_bytes(std::span(some)), input.size() - 3), DataError);
  rename_file(files, folder / "x", folder / "y");
  EXPECT_THAT(*list_folder(files, folder), ElementsAre("y"));
  EXPECT_FALSE(remove_folder(files, folder));
  remove_file(files, folder / "y");
  remove_file(files, folder / "y");
  EXPECT_TRUE(remove_folder(files, folder));
  sync_folder(files, root);
  EXPECT_GT(files.free_bytes(root), 0);
}

TEST(Storage, WorksOnDisk) {
  const ScratchFolder root;
  PosixFileSystem files;
  expect_files(files, root.path());
}

TEST(Storage, WorksInMemory) {
  MemoryFileSystem files;
  expect_files(files, "/");
  EXPECT_EQ(files.open_files(), 0);
}

TEST(Storage, NamesOperationPathAndReason) {
  PosixFileSystem files;
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
      return "";
    } catch (const StorageError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message([&] { OutputFile(files, "/nowhere/x"); }),
            "cannot create /nowhere/x: No such file or directory");
  EXPECT_EQ(message([&] { write_text(files, "/dev/full", "x"); }),
            "cannot write /dev/full: No space left on device");
  EXPECT_EQ(message([&] { InputFile(files, "/"); }), "cannot read /: Is a directory");
  EXPECT_EQ(message([&] { make_folders(files, "/dev/null/x"); }),
            "cannot make folder /dev/null/x: Not a directory");
}

TEST(Storage, GoesOnAfterInterruptedAndShortCalls) {
  for (const FileCall call : {FileCall::kCreate, FileCall::kOpen, FileCall::kWrite, FileCall::kRead,
                              FileCall::kSize, FileCall::kSync, FileCall::kClose}) {
    for (const int error : {EINTR, FileFault::kShort}) {
      MemoryFileSystem memory;
      FaultyFileSystem files(memory, {call, 1, error});
      write_text(files, "/x", "some text");
      EXPECT_EQ(read_text(files, "/x"), "some text") << testing::name(call);
      EXPECT_TRUE(files.struck());
      EXPECT_EQ(memory.open_files(), 0);
    }
  }
}

// After a failed sync the system may have dropped what it could not write.
TEST(Storage, NeverSyncsAgain) {
  MemoryFileSystem memory;
  FaultyFileSystem files(memory, {FileCall::kSync, 1, EIO});
  EXPECT_THROW(write_text(files, "/x", "some text"), StorageError);
  EXPECT_EQ(files.calls(FileCall::kSync), 1);
}

}  // namespace
}  // namespace quatrain

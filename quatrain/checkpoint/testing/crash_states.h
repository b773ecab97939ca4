// SPDX-License-Identifier: Apache-2.0
// What a power loss may leave of a file system, from what was promised and no more: a file's bytes
// are safe after its sync, a name in a folder after the folder's. Before that a file may have lost
// its writes, or parts of them in blocks of 512 B or 4 KiB, or all its bytes; and names may be
// there or not in any combination, whatever the order in which they were made.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/checkpoint/testing/memory_file_system.h"
#include "quatrain/checkpoint/testing/recording_file_system.h"

namespace quatrain::testing {

class CrashStates {
 public:
  // `durable`: what was safe before the operations.
  CrashStates(const MemoryFileSystem::Files& durable, std::vector<FileOperation> operations);

  std::size_t operations() const { return operations_.size(); }
  // One of the states after the first `done` operations, drawn by `number`.
  MemoryFileSystem::Files state(std::size_t done, std::uint64_t number) const;

 private:
  using Inode = std::size_t;
  struct File {
    std::string durable;
    std::string content;  // with writes that are not
  };
  // One change of a folder's names: these names become those files, or none.
  using NameChange = std::vector<std::pair<std::string, std::optional<Inode>>>;
  struct Disk {
    std::vector<File> files;                                 // by inode
    std::map<std::string, Inode> names;                      // now
    std::map<std::string, Inode> safe_names;                 // durable; folders are inode 0
    std::map<std::string, std::vector<NameChange>> changes;  // by folder, not durable
  };

  Disk disk_after(std::size_t done) const;
  static void apply(Disk& disk, const FileOperation& operation);
  static void change(Disk& disk, const std::string& folder, NameChange change);

  Disk start_;
  std::vector<FileOperation> operations_;
};

}  // namespace quatrain::testing

// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/testing/crash_states.h"

#include <algorithm>
#include <filesystem>

#include "quatrain/checkpoint/testing/draws.h"

namespace quatrain::testing {
namespace {

using Kind = FileOperation::Kind;

constexpr std::size_t kFolder = 0;  // the inode of every folder

std::string parent(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// `content` in blocks, each there or as it was in `durable` (or zeros), cut anywhere in the new.
std::string torn(const std::string& durable, const std::string& content, std::size_t block,
                 Draws& draws) {
  std::string left = content;
  for (std::size_t begin = 0; begin < left.size(); begin += block) {
    if (draws.below(2) == 0) continue;
    for (std::size_t at = begin; at < std::min(begin + block, left.size()); ++at) {
      left[at] = at < durable.size() ? durable[at] : '\0';
    }
  }
  if (draws.below(2) == 0)
    left.resize(
        static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(left.size() / block) + 1)) *
        block);
  return left;
}

std::string content_after(const std::string& durable, const std::string& content, Draws& draws) {
  if (content == durable) return content;
  switch (draws.below(6)) {
    case 0:
      return durable;
    case 1:
      return content;
    case 2:
      return "";
    case 3:
      return std::string(content.size(), '\0');
    case 4:
      return torn(durable, content, 512, draws);
    default:
      return torn(durable, content, 4096, draws);
  }
}

}  // namespace

CrashStates::CrashStates(const MemoryFileSystem::Files& durable,
                         std::vector<FileOperation> operations)
    : operations_(std::move(operations)) {
  start_.files.emplace_back();
  for (const auto& [path, content] : durable) {
    start_.names[path] = start_.files.size();
    start_.files.push_back({content, content});
    for (std::string up = parent(path); up != "/"; up = parent(up)) start_.names[up] = kFolder;
  }
  start_.safe_names = start_.names;
}

void CrashStates::change(Disk& disk, const std::string& folder, NameChange change) {
  for (const auto& [name, inode] : change) {
    if (inode) {
      disk.names[name] = *inode;
    } else {
      disk.names.erase(name);
    }
  }
  disk.changes[folder].push_back(std::move(change));
}

void CrashStates::apply(Disk& disk, const FileOperation& operation) {
  const std::string& path = operation.path;
  const std::string folder = parent(path);
  switch (operation.kind) {
    case Kind::kCreate: {
      const auto there = disk.names.find(path);
      if (there != disk.names.end()) {
        disk.files[there->second].content.clear();
        return;
      }
      disk.files.emplace_back();
      return change(disk, folder, {{path, disk.files.size() - 1}});
    }
    case Kind::kWrite:
      disk.files[disk.names.at(path)].content += operation.bytes;
      return;
    case Kind::kSync: {
      File& file = disk.files[disk.names.at(path)];
      file.durable = file.content;
      return;
    }
    case Kind::kMakeFolder:
      return change(disk, folder, {{path, kFolder}});
    case Kind::kRename: {
      const Inode inode = disk.names.at(path);
      return change(disk, folder, {{path, std::nullopt}, {operation.to, inode}});
    }
    case Kind::kRemove:
      return change(disk, folder, {{path, std::nullopt}});
    case Kind::kSyncFolder:
      for (const NameChange& done : disk.changes[path]) {
        for (const auto& [name, inode] : done) {
          if (inode) {
            disk.safe_names[name] = *inode;
          } else {
            disk.safe_names.erase(name);
          }
        }
      }
      disk.changes[path].clear();
      return;
  }
}

CrashStates::Disk CrashStates::disk_after(std::size_t done) const {
  Disk disk = start_;
  for (std::size_t i = 0; i < done; ++i) apply(disk, operations_[i]);
  return disk;
}

MemoryFileSystem::Files CrashStates::state(std::size_t done, std::uint64_t number) const {
  const Disk disk = disk_after(done);
  Draws draws(number, "crash state");
  std::map<std::string, Inode> names = disk.safe_names;
  // Of the changes that are not durable all, none, or some.
  const std::int64_t chance = 4 * draws.below(3);  // of 8
  for (const auto& [folder, changes] : disk.changes) {
    for (const NameChange& maybe : changes) {
      if (draws.below(8) >= chance) continue;
      for (const auto& [name, inode] : maybe) {
        if (inode) {
          names[name] = *inode;
        } else {
          names.erase(name);
        }
      }
    }
  }
  std::vector<std::string> contents;
  for (const File& file : disk.files) {
    contents.push_back(content_after(file.durable, file.content, draws));
  }
  MemoryFileSystem::Files files;
  for (const auto& [name, inode] : names) {
    bool reachable = inode != kFolder;
    for (std::string up = parent(name); up != "/"; up = parent(up)) {
      reachable = reachable && names.contains(up);
    }
    if (reachable) files[name] = contents[inode];
  }
  return files;
}

}  // namespace quatrain::testing

// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/step_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/checkpoint/storage.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = "manifest.json.tmp";
constexpr int kFewestKept = 2;

bool is_ours(std::string_view name) {
  return name == kManifestName || name == kTemporary ||
         (name.starts_with("rank-") && name.ends_with(".safetensors"));
}

std::vector<std::int64_t> steps_in(FileSystem& files, const fs::path& run, bool with_manifest) {
  std::vector<std::int64_t> steps;
  const std::vector<std::string> folders =
      list_folder(files, run).value_or(std::vector<std::string>{});
  for (const std::string& name : folders) {
    const auto step = step_from_folder_name(name);
    if (!step) continue;
    const auto names = list_folder(files, run / name);
    if (!names) continue;
    const bool has = std::binary_search(names->begin(), names->end(), kManifestName);
    if (has == with_manifest) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

void check_files(FileSystem& files, const fs::path& checkpoint, const Manifest& manifest) {
  const auto names = list_folder(files, checkpoint);
  for (const FileRecord& file : manifest.files) {
    if (!names || !std::binary_search(names->begin(), names->end(), file.name)) {
      throw DataError(fmt::format("{} is not there", (checkpoint / file.name).string()));
    }
    const std::int64_t size = InputFile(files, checkpoint / file.name).size();
    if (size != file.bytes) {
      throw DataError(fmt::format("{} has {} bytes where {} were written ({})",
                                  (checkpoint / file.name).string(), size, file.bytes,
                                  size < file.bytes ? "truncated" : "extra"));
    }
  }
}

}  // namespace

std::string step_folder_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<std::int64_t> step_from_folder_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (step_folder_name(step) != name) return std::nullopt;
  return step;
}

std::vector<std::int64_t> list_steps(FileSystem& files, const fs::path& run) {
  return steps_in(files, run, true);
}

Manifest read_manifest(FileSystem& files, const fs::path& checkpoint) {
  const auto text = read_text(files, checkpoint / kManifestName);
  if (!text) {
    throw DataError(
        fmt::format("{} is no checkpoint: it has no {}", checkpoint.string(), kManifestName));
  }
  try {
    Manifest manifest = manifest_from_json(*text);
    check_complete(manifest);
    return manifest;
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", (checkpoint / kManifestName).string(), error.what()));
  }
}

Manifest open_checkpoint(FileSystem& files, const fs::path& checkpoint) {
  Manifest manifest = read_manifest(files, checkpoint);
  check_files(files, checkpoint, manifest);
  return manifest;
}

std::optional<std::int64_t> newest_valid(FileSystem& files, const fs::path& run) {
  for (const std::int64_t step : list_steps(files, run)) {
    try {
      open_checkpoint(files, run / step_folder_name(step));
      return step;
    } catch (const DataError& error) {
      log_warning(fmt::format("checkpoint of step {} is damaged: {}", step, error.what()));
    }
  }
  return std::nullopt;
}

void write_manifest(FileSystem& files, const fs::path& checkpoint, const Manifest& manifest) {
  const std::string text = to_json(manifest);
  OutputFile file(files, checkpoint / kTemporary);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  // Why: the names of the data files must be durable before a manifest that lists them.
  sync_folder(files, checkpoint);
  rename_file(files, checkpoint / kTemporary, checkpoint / kManifestName);
  sync_folder(files, checkpoint);
}

void remove_checkpoint(FileSystem& files, const fs::path& checkpoint) {
  const auto names = list_folder(files, checkpoint);
  if (!names) return;
  if (std::binary_search(names->begin(), names->end(), kManifestName)) {
    remove_file(files, checkpoint / kManifestName);
    sync_folder(files, checkpoint);
  }
  for (const std::string& name : *names) {
    if (is_ours(name)) remove_file(files, checkpoint / name);
  }
  remove_folder(files, checkpoint);
}

void remove_unfinished(FileSystem& files, const fs::path& run) {
  for (const std::int64_t step : steps_in(files, run, false)) {
    remove_checkpoint(files, run / step_folder_name(step));
  }
}

void remove_old(FileSystem& files, const fs::path& run, std::int64_t step, int keep) {
  int valid = 0;
  for (const std::int64_t old : list_steps(files, run)) {
    if (old > step) continue;
    const fs::path checkpoint = run / step_folder_name(old);
    if (valid >= std::max(keep, kFewestKept)) {
      remove_checkpoint(files, checkpoint);
      continue;
    }
    try {
      open_checkpoint(files, checkpoint);
      ++valid;
    } catch (const DataError&) {
    }
  }
}

}  // namespace quatrain

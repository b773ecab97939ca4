// SPDX-License-Identifier: Apache-2.0
// The folder of a run's checkpoints: "step-00000100/" each, of which only those with a manifest are
// checkpoints. Nothing here is collective.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/manifest.h"

namespace quatrain {

std::string step_folder_name(std::int64_t step);  // "step-00000100"
std::optional<std::int64_t> step_from_folder_name(std::string_view name);

// The steps that have a manifest, newest first. None when there is no such folder.
std::vector<std::int64_t> list_steps(FileSystem& files, const std::filesystem::path& run);

// The manifest, whole and complete. DataError naming the folder and what is wrong: also when it is
// no checkpoint.
Manifest read_manifest(FileSystem& files, const std::filesystem::path& checkpoint);
// The same, with all files there and of the right size; their content is not read.
Manifest open_checkpoint(FileSystem& files, const std::filesystem::path& checkpoint);

// The newest step that open_checkpoint() takes. A warning in the log for each that it does not.
std::optional<std::int64_t> newest_valid(FileSystem& files, const std::filesystem::path& run);

// Makes the manifest durable as the last file of its checkpoint: after it, and not before, the
// folder is one.
void write_manifest(FileSystem& files, const std::filesystem::path& checkpoint,
                    const Manifest& manifest);

// Removes what a save leaves: first the manifest, durably, then the rest. Files of other names stay
// and keep the folder.
void remove_checkpoint(FileSystem& files, const std::filesystem::path& checkpoint);
// Removes folders of steps that have no manifest: saves that did not come to their end. No save may
// be going on.
void remove_unfinished(FileSystem& files, const std::filesystem::path& run);
// Removes the checkpoints that are older than the newest `keep` valid ones (at least two) among
// those up to `step`.
void remove_old(FileSystem& files, const std::filesystem::path& run, std::int64_t step, int keep);

}  // namespace quatrain

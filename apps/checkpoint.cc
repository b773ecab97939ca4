// SPDX-License-Identifier: Apache-2.0
// quatrain checkpoint inspect | verify | diff.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/step_folder.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::string folder;
  bool tensors = false;
  bool json = false;
};

Json kinds_of(const Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, std::int64_t> counts;
  for (const TensorRecord& tensor : manifest.tensors) ++counts[{tensor.id.kind, tensor.dtype}];
  Json kinds = Json::array();
  for (const auto& [kind, count] : counts) {
    kinds.push_back({{"kind", kind.first}, {"dtype", kind.second}, {"tensors", count}});
  }
  return kinds;
}

Json tensors_of(const Manifest& manifest) {
  Json tensors = Json::array();
  for (const TensorRecord& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.id.name},
                       {"kind", tensor.id.kind},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"pieces", tensor.pieces.size()}});
  }
  return tensors;
}

Json facts_of(const fs::path& folder, const Manifest& manifest, bool tensors) {
  const TrainingState& state = manifest.state;
  Json facts;
  facts["checkpoint"] = folder.string();
  facts["step"] = state.step;
  facts["tokens"] = state.tokens;
  facts["seed"] = state.seed;
  facts["optimizer_steps"] = state.optimizer_steps;
  facts["data_cursor"] = state.data_cursor;
  facts["library"] = state.library;
  facts["plan"] = Json::parse(state.plan);
  facts["plan_hash"] = state.plan_hash;
  facts["extra"] = state.extra;
  facts["bytes"] = manifest.bytes();
  facts["files"] = manifest.files.size();
  facts["kinds"] = kinds_of(manifest);
  if (tensors) facts["tensors"] = tensors_of(manifest);
  return facts;
}

int inspect_checkpoint(const InspectOptions& options) {
  Console console(options.json);
  PosixFileSystem files;
  const fs::path folder = find_checkpoint(files, options.folder);
  const Manifest manifest = read_manifest(files, folder);
  if (options.json) {
    console.document(facts_of(folder, manifest, options.tensors));
  } else {
    console.line(folder.string() + "\n" + describe(manifest, options.tensors));
  }
  return kDone;
}

struct VerifyOptions {
  std::string folder;
  bool json = false;
};

int verify_folder(const VerifyOptions& options) {
  Console console(options.json);
  PosixFileSystem files;
  const fs::path given(options.folder);
  // A step that has lost its manifest is a finding, not a wrong path.
  const bool step = fs::is_directory(given) && step_from_folder_name(given.filename().string());
  const fs::path folder = step ? given : find_checkpoint(files, given);
  const Problems found = verify_checkpoint(files, folder);
  Json problems = Json::array();
  for (const Problem& problem : found) {
    console.line(to_string(Problems{problem}));
    problems.push_back({{"where", problem.where}, {"what", problem.what}});
  }
  if (found.empty()) console.line(fmt::format("{}: whole", folder.string()));
  console.document({{"ok", found.empty()}, {"problems", problems}});
  return found.empty() ? kDone : kCheckSaidNo;
}

struct DiffOptions {
  std::string first;
  std::string second;
  bool json = false;
};

std::string table_of(const CheckpointDifference& difference) {
  Table table({"tensor", "difference", "elements", "largest"});
  for (const TensorDifference& tensor : difference.tensors) {
    const bool values = tensor.elements > 0;
    table.add({to_string(tensor.id), tensor.what, values ? with_commas(tensor.elements) : "",
               values ? fmt::format("{:.3g}", tensor.max_difference) : ""});
  }
  return table.to_string();
}

Json document_of(const CheckpointDifference& difference) {
  Json tensors = Json::array();
  for (const TensorDifference& tensor : difference.tensors) {
    tensors.push_back({{"name", tensor.id.name},
                       {"kind", tensor.id.kind},
                       {"difference", tensor.what},
                       {"elements", tensor.elements},
                       {"largest", tensor.max_difference}});
  }
  return {{"equal", difference.empty()}, {"state", difference.state}, {"tensors", tensors}};
}

int diff_folders(const DiffOptions& options) {
  Console console(options.json);
  PosixFileSystem files;
  const fs::path first = find_checkpoint(files, options.first);
  const fs::path second = find_checkpoint(files, options.second);
  const CheckpointDifference difference = diff_checkpoints(files, first, second);
  for (const std::string& line : difference.state) console.line(line);
  if (!difference.tensors.empty()) console.line(table_of(difference));
  if (difference.empty()) console.line("equal");
  console.document(document_of(difference));
  return difference.empty() ? kDone : kCheckSaidNo;
}

constexpr const char* kFolderHelp =
    "a step's folder; or of checkpoints, or of a run: its newest valid step";

void add_json(CLI::App& parser, bool& json) {
  parser.add_flag("--json", json, "one JSON document on stdout, the rest on stderr");
}

}  // namespace

Registered add_checkpoint_inspect(CLI::App& checkpoint) {
  CLI::App* parser = checkpoint.add_subcommand("inspect", "What a checkpoint holds");
  auto options = std::make_shared<InspectOptions>();
  parser->add_option("folder", options->folder, kFolderHelp)->required();
  parser->add_flag("--tensors", options->tensors, "a line for each tensor");
  add_json(*parser, options->json);
  parser->footer("Example:\n  quatrain checkpoint inspect runs/demo --tensors");
  return {parser, [options] { return inspect_checkpoint(*options); }};
}

Registered add_checkpoint_verify(CLI::App& checkpoint) {
  CLI::App* parser =
      checkpoint.add_subcommand("verify", "Reads all of a checkpoint and compares its checksums");
  auto options = std::make_shared<VerifyOptions>();
  parser->add_option("folder", options->folder, kFolderHelp)->required();
  add_json(*parser, options->json);
  parser->footer(
      "Exits with 1 when something is damaged.\n"
      "Example:\n  quatrain checkpoint verify runs/demo/checkpoints/step-00000100");
  return {parser, [options] { return verify_folder(*options); }};
}

Registered add_checkpoint_diff(CLI::App& checkpoint) {
  CLI::App* parser = checkpoint.add_subcommand(
      "diff", "How two checkpoints differ, whatever geometries saved them");
  auto options = std::make_shared<DiffOptions>();
  parser->add_option("first", options->first, kFolderHelp)->required();
  parser->add_option("second", options->second, "another")->required();
  add_json(*parser, options->json);
  parser->footer(
      "Exits with 1 when they differ.\n"
      "Example:\n  quatrain checkpoint diff runs/a/checkpoints/step-00000100 runs/b");
  return {parser, [options] { return diff_folders(*options); }};
}

}  // namespace quatrain::apps

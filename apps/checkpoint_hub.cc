// SPDX-License-Identifier: Apache-2.0
// quatrain checkpoint export | import: Hugging Face folders out and in.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "apps/saver.h"
#include "apps/weights.h"
#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/data/tokenizer.h"
#include "quatrain/hub/export.h"
#include "quatrain/hub/import.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

std::optional<at::ScalarType> dtype_of(const std::string& text) {
  if (text == "float32") return at::kFloat;
  if (text == "bfloat16") return at::kBFloat16;
  if (text == "float16") return at::kHalf;
  return std::nullopt;
}

struct ExportArguments {
  std::string checkpoint;
  std::string out;
  std::string dtype;
  std::string max_shard_size = "5GB";
  bool json = false;
};

// Weights are worth having without it.
void carry_tokenizer(const std::string& tokenizer, const fs::path& out) {
  if (tokenizer.empty()) return;
  if (fs::is_directory(tokenizer)) {
    carry_small_files(tokenizer, out);
  } else if (tokenizer == "bytes" || fs::exists(tokenizer)) {
    open_tokenizer(tokenizer)->save(out);
  } else {
    log_warning(fmt::format("the tokenizer {} is gone: {} has none", tokenizer, out.string()));
  }
}

void refuse_checkpoints(const fs::path& out) {
  for (const fs::path& folder : {out, out / "checkpoints"}) {
    PosixFileSystem files;
    if (!fs::exists(out / kManifestName) && list_steps(files, folder).empty()) continue;
    throw ConfigError(fmt::format("{} holds checkpoints; give a folder of its own", out.string()));
  }
}

bool are_one(const fs::path& a, const fs::path& b) {
  return fs::exists(a) && fs::exists(b) && fs::equivalent(a, b);
}

// Under whatever name: what an export replaces must not be what the model came from.
void refuse_sources(const fs::path& out, const WeightOrigin& origin,
                    const std::string& hub_folder) {
  if (are_one(out, origin.tokenizer)) {
    throw ConfigError(fmt::format("{} holds the tokenizer that the run names; give another folder",
                                  out.string()));
  }
  if (are_one(out, hub_folder)) {
    throw ConfigError(fmt::format("{} is the folder that the model came from; give another folder",
                                  out.string()));
  }
}

std::string entry_of(const TrainingState& state, const char* name) {
  const auto found = state.extra.find(name);
  return found == state.extra.end() ? "" : found->second;
}

int export_folder(const ExportArguments& arguments) {
  Console console(arguments.json);
  const ExportOptions options{dtype_of(arguments.dtype),
                              shard_size_from_text(arguments.max_shard_size)};
  PosixFileSystem files;
  const fs::path folder = find_checkpoint(files, arguments.checkpoint);
  const fs::path out = arguments.out;
  refuse_checkpoints(out);
  CheckpointReader reader(files, folder);
  const TrainingState& state = reader.manifest().state;
  const WeightOrigin origin = origin_of(state, folder);
  refuse_sources(out, origin, entry_of(state, kHubFolderEntry));
  CheckpointWeights weights(reader, origin.spec);
  const ExportReport report = export_weights(files, weights, origin.spec, out, options);
  carry_tokenizer(origin.tokenizer, out);
  const std::string first = parameters(origin.spec).front().name;
  write_hub_config(origin.spec, export_dtype(weights, first, options), out,
                   entry_of(state, kHubConfigEntry));
  const std::string fault = export_fault(weights, origin.spec, out, options);
  console.line(fmt::format("{} tensors, {} in {} files -> {}", report.tensors,
                           human_bytes(report.bytes), report.files, out.string()));
  console.line(fault.empty() ? "read back: equal to the checkpoint"
                             : "read back: not what the checkpoint holds: " + fault);
  console.document({{"checkpoint", folder.string()},
                    {"out", out.string()},
                    {"tensors", report.tensors},
                    {"bytes", report.bytes},
                    {"files", report.files},
                    {"ok", fault.empty()},
                    {"fault", fault}});
  return fault.empty() ? kDone : kCheckSaidNo;
}

struct ImportArguments {
  std::string folder;
  std::string out;
  std::string dtype;
  bool ignore_stored_head = false;
  bool json = false;
};

// A checkpoint of no run: its configuration says what the model is, and nothing of training.
TrainingState state_of(const ModelSpec& spec, const fs::path& from, const std::string& tokenizer) {
  RunConfig config;
  config.model = spec;
  config.data.tokenizer = tokenizer;
  config.training.seq_len = std::min(config.training.seq_len, spec.max_positions);
  config.training.micro_batch = config.training.accumulation = config.training.global_batch = 1;
  TrainingState state;
  state.seed = config.run.seed;
  state.plan = to_json(make_plan(config));
  state.plan_hash = hash(make_plan(config));
  state.library = std::string("quatrain ") + QUATRAIN_VERSION;
  state.extra = hub_entries(from.string());
  state.extra[kConfigEntry] = to_toml(config);
  return state;
}

// Where data.tokenizer of the imported model lies; empty when the folder has none.
std::string carried_tokenizer(const fs::path& from, const fs::path& out) {
  const fs::path carried = out / kCarriedTokenizer;
  if (carry_small_files(from, carried) == 0) return "";
  return fs::absolute(carried).lexically_normal().string();
}

int import_folder(const ImportArguments& arguments) {
  Console console(arguments.json);
  PosixFileSystem files;
  const fs::path from = find_weights(arguments.folder).weights;
  const fs::path out = arguments.out;
  refuse_checkpoints(out);
  if (are_one(from, out)) {
    throw ConfigError(fmt::format("{} is the folder to import; give another", out.string()));
  }
  const ModelSpec spec = read_hub_spec(from);
  ImportOptions options;
  options.match.ignore_stored_head = arguments.ignore_stored_head;
  options.dtype = dtype_of(arguments.dtype);
  check_match(from, spec, options.match);
  const TrainingState state = state_of(spec, from, carried_tokenizer(from, out));
  const fs::path step = out / step_folder_name(0);
  const ImportReport report = import_weights(files, from, spec, step, state, options);
  console.line(fmt::format("{} parameters, {} -> {}", report.parameters, human_bytes(report.bytes),
                           step.string()));
  if (!report.ignored.empty()) {
    console.line(fmt::format("left out: {} tensors, such as {}", report.ignored.size(),
                             report.ignored.front()));
  }
  console.document({{"checkpoint", step.string()},
                    {"parameters", report.parameters},
                    {"bytes", report.bytes},
                    {"ignored", report.ignored}});
  return kDone;
}

void add_common(CLI::App& parser, std::string& dtype, bool& json) {
  parser.add_option("--dtype", dtype, "of the weights; default: each as it is")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  parser.add_flag("--json", json, "one JSON document on stdout, the rest on stderr");
}

}  // namespace

Registered add_checkpoint_export(CLI::App& checkpoint) {
  CLI::App* parser =
      checkpoint.add_subcommand("export", "Write a checkpoint's weights as a Hugging Face folder");
  auto options = std::make_shared<ExportArguments>();
  parser
      ->add_option("checkpoint", options->checkpoint,
                   "a step's folder; or of checkpoints, or of a run: its newest valid step")
      ->required();
  parser->add_option("out", options->out, "the folder to write")->required();
  parser
      ->add_option("--max-shard-size", options->max_shard_size,
                   "of one file, with B, KB, MB or GB (decimal)")
      ->capture_default_str();
  add_common(*parser, options->dtype, options->json);
  parser->footer(
      "What was written is read back and compared: exits with 1 when it differs.\n"
      "Example:\n  quatrain checkpoint export runs/demo exported --dtype bfloat16");
  return {parser, [options] { return export_folder(*options); }};
}

Registered add_checkpoint_import(CLI::App& checkpoint) {
  CLI::App* parser =
      checkpoint.add_subcommand("import", "Make a checkpoint of a Hugging Face folder's weights");
  auto options = std::make_shared<ImportArguments>();
  parser->add_option("folder", options->folder, "config.json and *.safetensors")->required();
  parser->add_option("out", options->out, "the folder to write: step-00000000 and the tokenizer")
      ->required();
  parser->add_flag("--ignore-stored-head", options->ignore_stored_head,
                   "where the model is tied and a stored head differs: tie");
  add_common(*parser, options->dtype, options->json);
  parser->footer(
      "Training starts from it with model.weights=OUT.\n"
      "Example:\n  quatrain checkpoint import models/qwen3-0.6b imported");
  return {parser, [options] { return import_folder(*options); }};
}

}  // namespace quatrain::apps

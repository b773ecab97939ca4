// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/import.h"

#include <utility>

#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/ownership.h"
#include "quatrain/checkpoint/piece.h"
#include "quatrain/checkpoint/rank_file.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/storage.h"
#include "quatrain/hub/export.h"
#include "quatrain/hub/match.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

// Writes whole parameters, a batch of them into each file.
class BatchWriter {
 public:
  BatchWriter(FileSystem& files, const fs::path& folder, std::int64_t batch_bytes)
      : files_(files), folder_(folder), batch_bytes_(batch_bytes) {}

  void add(const ParameterInfo& info, at::Tensor values) {
    const auto bytes = static_cast<std::int64_t>(values.nbytes());
    if (!held_.empty() && held_bytes_ + bytes > batch_bytes_) flush();
    held_.push_back({{info.name, "weight"}, info.shape, whole_box(info.shape), std::move(values)});
    held_bytes_ += bytes;
  }

  Manifest finish() {
    flush();
    return merge(std::move(parts_));
  }

 private:
  void flush() {
    if (held_.empty()) return;
    std::vector<OwnedBox> owned;
    for (const HeldPiece& piece : held_) owned.push_back({owned.size(), piece.box});
    const int file = static_cast<int>(parts_.size());
    parts_.push_back(write_rank_file(files_, folder_, file, file_pieces(held_, owned)));
    held_.clear();
    held_bytes_ = 0;
  }

  FileSystem& files_;
  fs::path folder_;
  std::int64_t batch_bytes_;
  std::vector<HeldPiece> held_;
  std::int64_t held_bytes_ = 0;
  std::vector<Manifest> parts_;
};

// The parameters of the tensor `name`.
void add_parts(const HubParts& parts, const WeightFiles& files, const std::string& name,
               const ImportOptions& options, BatchWriter& out) {
  const bool transposed = parts.front().info.hub.transposed;
  const at::Tensor whole = transposed ? files.tensor(name).t() : at::Tensor();
  for (const HubPart& part : parts) {
    const std::int64_t rows = part.info.shape[0];
    at::Tensor values =
        // Why: a view would keep the parameters beside it in memory too.
        transposed ? whole.narrow(0, part.info.hub.begin, rows).contiguous()
                   : file_rows(part, files, name, 0, rows);
    if (options.dtype && !keeps_dtype(part.info.name)) values = values.to(*options.dtype);
    out.add(part.info, std::move(values));
  }
}

}  // namespace

void check_match(const fs::path& hub_folder, const ModelSpec& spec, const LoadOptions& options) {
  const WeightFiles weights(hub_folder, options.allow_extra);
  const HubSources sources = fused_as_in(hub_sources(spec), weights);
  const HubMatch match(spec, sources, weights, options);
}

ImportReport import_weights(FileSystem& files, const fs::path& hub_folder, const ModelSpec& spec,
                            const fs::path& checkpoint, const TrainingState& state,
                            const ImportOptions& options) {
  const WeightFiles weights(hub_folder, options.match.allow_extra);
  const HubSources sources = fused_as_in(hub_sources(spec), weights);
  const HubMatch match(spec, sources, weights, options.match);
  make_folders(files, checkpoint);
  BatchWriter out(files, checkpoint, options.batch_bytes);
  ImportReport report{0, 0, match.ignored()};
  for (const auto& [tensor, parts] : sources) {
    add_parts(parts, weights, match.name_in_file(tensor), options, out);
    report.parameters += std::ssize(parts);
  }
  sync_folder(files, checkpoint);
  Manifest manifest = out.finish();
  manifest.state = state;
  check_complete(manifest);
  report.bytes = manifest.bytes();
  write_manifest(files, checkpoint, manifest);
  return report;
}

}  // namespace quatrain

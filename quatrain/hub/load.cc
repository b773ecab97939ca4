// SPDX-License-Identifier: Apache-2.0
// Weights from a folder into a model. First everything is compared, then everything is copied.
#include <utility>

#include "quatrain/hub/hub.h"
#include "quatrain/hub/match.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

class Loader {
 public:
  Loader(Model& model, const WeightFiles& files, const LoadOptions& options)
      : model_(model),
        files_(files),
        options_(options),
        sources_(fused_as_in(hub_sources(model), files)),
        match_(model.spec(), sources_, files, options) {}

  LoadReport run() {
    for (const auto& unit : model_.units()) fill(*unit);
    return {loaded_, match_.ignored(), match_.missing()};
  }

 private:
  void fill(ParamUnit& unit) {
    if (options_.open) options_.open(unit);
    for (const auto& [tensor, parts] : sources_) {
      const HubParts here = parts_of(unit, parts);
      if (here.empty() || !match_.has(tensor)) continue;
      fill_from_file(here, files_, match_.name_in_file(tensor));
      loaded_ += std::ssize(here);
    }
    if (options_.close) options_.close(unit);
  }

  // Of a tensor of all experts, those of this rank.
  static HubParts parts_of(ParamUnit& unit, const HubParts& parts) {
    const auto params = unit.params();
    HubParts here;
    for (const HubPart& part : parts) {
      if (part.param >= params.data() && part.param < params.data() + params.size()) {
        here.push_back(part);
      }
    }
    return here;
  }

  Model& model_;
  const WeightFiles& files_;
  const LoadOptions& options_;
  HubSources sources_;
  HubMatch match_;
  std::int64_t loaded_ = 0;
};

}  // namespace

at::Tensor file_rows(const HubPart& part, const WeightFiles& files, const std::string& name,
                     std::int64_t begin, std::int64_t end) {
  begin += part.info.hub.begin;
  end += part.info.hub.begin;
  return part.blocks > 0 ? files.merged_rows(name, begin, end) : files.rows(name, begin, end);
}

void fill_from_file(const HubParts& parts, const WeightFiles& files, const std::string& name) {
  const bool transposed = parts.front().info.hub.transposed;
  const at::Tensor whole = transposed ? files.tensor(name).t() : at::Tensor();
  for (const HubPart& part : parts) {
    Param* param = part.param;
    const std::int64_t begin = param->begin[0];
    const std::int64_t rows = param->local_shape[0];
    at::Tensor piece = transposed ? whole.narrow(0, part.info.hub.begin + begin, rows)
                                  : file_rows(part, files, name, begin, begin + rows);
    if (piece.dim() == 2) piece = piece.narrow(1, param->begin[1], param->local_shape[1]);
    param->value.copy_(piece);
  }
}

LoadReport load_weights(Model& model, const fs::path& folder, const LoadOptions& options) {
  const WeightFiles files(find_weights(folder).weights, options.allow_extra);
  return Loader(model, files, options).run();
}

}  // namespace quatrain

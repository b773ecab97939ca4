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
        sources_(hub_sources(model)),
        match_(model.spec(), sources_, files, options) {}

  LoadReport run() {
    for (const auto& unit : model_.units()) fill(*unit);
    return {loaded_, match_.ignored(), match_.missing()};
  }

 private:
  // A file tensor is of one unit.
  void fill(ParamUnit& unit) {
    if (options_.open) options_.open(unit);
    const auto params = unit.params();
    for (const auto& [tensor, parts] : sources_) {
      const Param* first = parts.front().param;
      const bool here = first >= params.data() && first < params.data() + params.size();
      if (!here || !match_.has(tensor)) continue;
      fill_from_file(parts, files_, match_.name_in_file(tensor));
      loaded_ += std::ssize(parts);
    }
    if (options_.close) options_.close(unit);
  }

  Model& model_;
  const WeightFiles& files_;
  const LoadOptions& options_;
  HubSources sources_;
  HubMatch match_;
  std::int64_t loaded_ = 0;
};

}  // namespace

void fill_from_file(const HubParts& parts, const WeightFiles& files, const std::string& name) {
  const bool transposed = parts.front().info.hub.transposed;
  const at::Tensor whole = transposed ? files.tensor(name).t() : at::Tensor();
  for (const auto& [info, param] : parts) {
    const std::int64_t begin = info.hub.begin + param->begin[0];
    const std::int64_t rows = param->local_shape[0];
    at::Tensor piece =
        transposed ? whole.narrow(0, begin, rows) : files.rows(name, begin, begin + rows);
    if (piece.dim() == 2) piece = piece.narrow(1, param->begin[1], param->local_shape[1]);
    param->value.copy_(piece);
  }
}

LoadReport load_weights(Model& model, const fs::path& folder, const LoadOptions& options) {
  const WeightFiles files(find_weights(folder).weights, options.allow_extra);
  return Loader(model, files, options).run();
}

}  // namespace quatrain

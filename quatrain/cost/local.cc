// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/local.h"

#include <algorithm>

#include "quatrain/base/check.h"
#include "quatrain/mesh/placement.h"

namespace quatrain {

std::vector<LocalParameter> trained_parameters(const ModelSpec& model, const TensorSplit& split,
                                               const std::vector<std::string>& trainable) {
  std::vector<LocalParameter> list = local_parameters(model, split);
  throw_if_any(set_trainable(list, trainable));
  return list;
}

LocalSizes local_sizes(const ModelSpec& model, const TensorSplit& split) {
  const auto share = [&](std::int64_t size) {
    return piece(size, split.degree, split.rank).size();
  };
  LocalSizes own{model.heads / split.degree,
                 std::max<std::int64_t>(model.kv_heads / split.degree, 1), share(model.ffn),
                 share(model.vocab)};
  if (model.experts) {
    const ExpertSplit place = split.expert_split();
    own.expert_ffn = piece(model.experts->ffn, place.etp, place.etp_rank).size();
    own.shared_ffn = share(model.experts->ffn * model.experts->num_shared);
  }
  return own;
}

ExpertLoad expert_load(const ModelSpec& model, const WorkShape& shape) {
  if (shape.experts) return *shape.experts;
  return even_load(*model.experts, shape.split, shape.batch * shape.seq);
}

bool cuts_rows(const TensorSplit& split) { return split.sequence_parallel && split.degree > 1; }

const StageLayers& layers_of(std::span<const StageLayers> stages, int stage) {
  const auto found = std::find_if(stages.begin(), stages.end(),
                                  [stage](const StageLayers& s) { return s.stage == stage; });
  CHECK(found != stages.end(), "stage {} is another rank's", stage);
  return *found;
}

Mesh tensor_mesh(const TensorSplit& split) {
  Mesh::Degrees degrees;
  degrees.fill(1);
  degrees[static_cast<std::size_t>(Axis::kTp)] = split.degree;
  return Mesh(degrees, split.rank);
}

bool gathers_again(const WorkShape& shape) {
  return cuts_rows(shape.split) && (shape.gather_again || shape.recompute == Recompute::kSelective);
}

}  // namespace quatrain

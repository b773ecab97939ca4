// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/checkpoint_weights.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/hub/few_names.h"

namespace quatrain {

CheckpointWeights::CheckpointWeights(CheckpointReader& reader, const ModelSpec& spec)
    : reader_(reader) {
  const Manifest& manifest = reader.manifest();
  std::vector<std::string> extra;
  for (const TensorRecord& tensor : manifest.tensors) {
    if (tensor.id.kind == "weight") places_[tensor.id.name].weight = &tensor;
  }
  std::map<std::string, Place> wanted;
  std::vector<std::string> missing;
  std::vector<std::string> misfits;
  for (const ParameterInfo& info : parameters(spec)) {
    auto found = places_.extract(info.name);
    if (found.empty()) {
      missing.push_back(info.name);
      continue;
    }
    Place& place = found.mapped();
    if (place.weight->shape != info.shape) {
      misfits.push_back(fmt::format("{} is [{}], the model's [{}]", info.name,
                                    join(place.weight->shape, ", "), join(info.shape, ", ")));
    }
    const TensorRecord* master = manifest.find({info.name, "master"});
    place.best = master == nullptr ? place.weight : master;
    wanted.insert(std::move(found));
  }
  for (const auto& [name, place] : places_) extra.push_back(name);
  for (std::string& name : missing) {
    const std::vector<std::string> near = nearest(name, extra, 1);
    if (!near.empty()) name += fmt::format(" (is it {}?)", near[0]);
  }
  const std::string text = few_names("missing", missing) + few_names("not in the model", extra) +
                           few_names("that do not fit", misfits);
  if (!text.empty()) {
    throw DataError(fmt::format("{}: not the weights of its own configuration's model{}",
                                reader.path().string(), text));
  }
  places_ = std::move(wanted);
}

at::ScalarType CheckpointWeights::dtype(const std::string& name) const {
  const auto scalar = find_safetensors_dtype(places_.at(name).weight->dtype)->scalar;
  CHECK(scalar.has_value(), "{} has values that cannot be read", name);
  return *scalar;
}

at::Tensor CheckpointWeights::rows(const ParameterInfo& info, std::int64_t begin, std::int64_t end,
                                   at::ScalarType dtype) {
  const TensorRecord& record = *places_.at(info.name).best;
  Box box = whole_box(record.shape);
  box.begin[0] = begin;
  box.size[0] = end - begin;
  const at::Tensor values = at::empty(box.size, *find_safetensors_dtype(record.dtype)->scalar);
  const HeldPiece piece{record.id, record.shape, box, values};
  reader_.read({&piece, 1});
  return values.to(dtype);
}

}  // namespace quatrain

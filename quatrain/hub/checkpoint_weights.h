// SPDX-License-Identifier: Apache-2.0
// The parameters of a model in a checkpoint: of each its master where it has one, else its weight.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "quatrain/checkpoint/reader.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {

class CheckpointWeights {
 public:
  // Throws DataError with counts and nearest names when the checkpoint's weights are not those of
  // the model. `reader` outlives it.
  CheckpointWeights(CheckpointReader& reader, const ModelSpec& spec);

  at::ScalarType dtype(const std::string& name) const;  // of the weight
  // Rows [begin, end) of the first dim, in `dtype`.
  at::Tensor rows(const ParameterInfo& info, std::int64_t begin, std::int64_t end,
                  at::ScalarType dtype);
  const std::filesystem::path& path() const { return reader_.path(); }

 private:
  struct Place {
    const TensorRecord* weight = nullptr;
    const TensorRecord* best = nullptr;  // what values are read from
  };
  CheckpointReader& reader_;
  std::map<std::string, Place> places_;
};

}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// Text out of a model: prompt to ids, ids from infer/, ids to text.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "quatrain/data/tokenizer.h"
#include "quatrain/model/model.h"

namespace quatrain::apps {

struct TextRequest {
  std::string prompt;
  std::int64_t tokens = 200;
  double temperature = 0.8;
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1.0;
  std::uint64_t seed = 0;
  std::function<at::Tensor(const Pass& pass)> forward = nullptr;  // GenerateOptions'
};
// The prompt and its continuation.
std::string generate_text(Model& model, const Tokenizer& tokenizer, const TextRequest& request);

}  // namespace quatrain::apps

// SPDX-License-Identifier: Apache-2.0
// Continues token sequences with a key-value cache: the prompt in one pass, then a position a pass.
// Shapes: B sequences, T prompt tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "quatrain/infer/sample.h"
#include "quatrain/model/model.h"

namespace quatrain {

struct GenerateOptions {
  std::int64_t max_tokens = 128;  // new ones, of each sequence
  SamplingOptions sampling{};
  // The token of sequence b at position p is chosen with draw p of the stream (seed, "sample <b>"):
  // the same prompt, weights and seed give the same text.
  std::uint64_t seed = 0;
  std::vector<std::int64_t> stop_ids{};  // end a sequence; not returned
  std::int64_t context = 0;              // positions that the model may see; 0: the spec's maximum
  // Runs a pass in kDecode: logits of the last position [B, V]. Empty: forward_all(), where this
  // rank has the whole model.
  std::function<at::Tensor(const Pass& pass)> forward{};
  // Called with (sequence, id) as tokens come; may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_token{};
};

// The new ids of each of the B sequences (prompts of one length, T >= 1). Where prompt and new
// tokens outgrow the context, the model goes on with the last half of it, read again from position
// 0; of a prompt longer than the context it sees the last half alone. Both are logged as warnings.
// Throws ConfigError for options out of range, DataError for ids outside the vocabulary.
std::vector<std::vector<std::int64_t>> generate(Model& model, const at::Tensor& prompt_BT,
                                                const GenerateOptions& options);

// One sequence.
std::vector<std::int64_t> generate(Model& model, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options);

}  // namespace quatrain

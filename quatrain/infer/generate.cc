// SPDX-License-Identifier: Apache-2.0
// The decoding loop. `seen` rows hold prompt and new tokens; the cache holds a suffix of them.
#include "quatrain/infer/generate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/base/rng.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/kv_cache.h"

namespace quatrain {
namespace {

using Rows = std::vector<std::vector<std::int64_t>>;

KvCache make_cache(const Model& model, std::int64_t batch, std::int64_t positions) {
  return KvCache(KvCache::size_of(model.spec(), model.local_kv_heads(), batch, positions),
                 model.dtype(), model.device());
}

Rows rows_of(const at::Tensor& prompt_BT, std::int64_t vocab) {
  CHECK(prompt_BT.dim() == 2 && prompt_BT.scalar_type() == at::kLong && prompt_BT.size(0) > 0,
        "prompts are int64 [B, T]");
  if (prompt_BT.size(1) == 0) throw ConfigError("the prompt is empty: give at least one token");
  Rows rows;
  const at::Tensor cpu = prompt_BT.to(at::kCPU);
  const auto ids = cpu.accessor<std::int64_t, 2>();
  for (std::int64_t b = 0; b < ids.size(0); ++b) {
    auto& row = rows.emplace_back();
    for (std::int64_t t = 0; t < ids.size(1); ++t) {
      if (ids[b][t] < 0 || ids[b][t] >= vocab) {
        throw DataError(
            fmt::format("prompt token {} is id {}, outside the model's vocabulary of {}: is this "
                        "its tokenizer?",
                        t, ids[b][t], vocab));
      }
      row.push_back(ids[b][t]);
    }
  }
  return rows;
}

class Decoder {
 public:
  Decoder(Model& model, Rows seen, std::int64_t context, const GenerateOptions& options)
      : model_(model),
        options_(options),
        seen_(std::move(seen)),
        context_(context),
        cache_(make_cache(model, batch(), std::min(context, length() + options.max_tokens))) {
    if (length() > context_) {
      begin_ = length() - kept_after_sliding();
      log_warning(
          fmt::format("the prompt's {} tokens do not fit the context of {}: its last {} count",
                      length(), context_, length() - begin_));
    }
  }

  // Logits of the next position, float64 [B, V], after running what the cache has not seen.
  at::Tensor next_logits() {
    if (length() - begin_ > context_) slide();
    const std::int64_t first = begin_ + cached_;
    cached_ = length() - begin_;
    std::vector<std::int64_t> ids;
    for (const auto& row : seen_) ids.insert(ids.end(), row.begin() + first, row.end());
    const at::Tensor tokens_BT =
        at::tensor(ids, at::TensorOptions(at::kLong)).view({batch(), -1}).to(model_.device());
    Pass pass;
    pass.mode = Mode::kDecode;
    pass.cache = &cache_;
    pass.tokens_BT = tokens_BT;
    pass.positions_BT = at::arange(first - begin_, length() - begin_, tokens_BT.options())
                            .expand({batch(), -1})
                            .contiguous();
    std::vector<Stash> stashes;
    const at::Tensor logits_BV =
        options_.forward ? options_.forward(pass) : forward_all(model_, tokens_BT, pass, stashes);
    return logits_BV.to(at::kCPU, at::kDouble).contiguous();
  }

  void append(std::size_t row, std::int64_t id) { seen_[row].push_back(id); }
  std::int64_t batch() const { return static_cast<std::int64_t>(seen_.size()); }
  std::int64_t length() const { return static_cast<std::int64_t>(seen_[0].size()); }

 private:
  std::int64_t kept_after_sliding() const { return std::max<std::int64_t>(context_ / 2, 1); }
  void slide() {
    begin_ = length() - kept_after_sliding();
    cache_.truncate(0);
    cached_ = 0;
    if (!std::exchange(has_slid_, true)) {
      log_warning(
          fmt::format("the text outgrows the context of {} tokens: from here on its last "
                      "{} are read again whenever it is full",
                      context_, kept_after_sliding()));
    }
  }

  Model& model_;
  const GenerateOptions& options_;
  Rows seen_;
  std::int64_t context_;
  KvCache cache_;
  std::int64_t begin_ = 0;   // first token that the cache stands for
  std::int64_t cached_ = 0;  // tokens that it holds, of layers on any rank
  bool has_slid_ = false;
};

void check(const GenerateOptions& options, std::int64_t max_positions) {
  check(options.sampling);
  if (options.max_tokens < 0) {
    throw ConfigError(fmt::format("tokens: {} cannot be made; give 0 or more", options.max_tokens));
  }
  if (options.context < 0 || options.context > max_positions) {
    throw ConfigError(fmt::format("context: {} positions, where the model has {}", options.context,
                                  max_positions));
  }
}

std::vector<double> row_of(const at::Tensor& logits_BV, std::int64_t b) {
  const auto row = logits_BV.accessor<double, 2>()[b];
  std::vector<double> out(static_cast<std::size_t>(row.size(0)));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = row[static_cast<std::int64_t>(i)];
  return out;
}

}  // namespace

Rows generate(Model& model, const at::Tensor& prompt_BT, const GenerateOptions& options) {
  const ModelSpec& spec = model.spec();
  check(options, spec.max_positions);
  const std::int64_t context = options.context > 0 ? options.context : spec.max_positions;
  Decoder decoder(model, rows_of(prompt_BT, spec.vocab), context, options);
  const auto batch = static_cast<std::size_t>(decoder.batch());
  std::vector<RandomStream> streams;
  for (std::size_t b = 0; b < batch; ++b) {
    streams.emplace_back(options.seed, fmt::format("sample {}", b));
  }
  Rows made(batch);
  std::vector<bool> done(batch, false);
  for (std::int64_t count = 0; count < options.max_tokens; ++count) {
    if (std::find(done.begin(), done.end(), false) == done.end()) break;
    const auto position = static_cast<std::uint64_t>(decoder.length());
    const at::Tensor logits_BV = decoder.next_logits();
    for (std::size_t b = 0; b < batch; ++b) {
      const auto row = static_cast<std::int64_t>(b);
      const std::int64_t id =
          sample(row_of(logits_BV, row), options.sampling, streams[b].uniform(position));
      decoder.append(b, id);
      done[b] = done[b] || std::find(options.stop_ids.begin(), options.stop_ids.end(), id) !=
                               options.stop_ids.end();
      if (done[b]) continue;
      made[b].push_back(id);
      if (options.on_token) options.on_token(row, id);
    }
  }
  return made;
}

std::vector<std::int64_t> generate(Model& model, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options) {
  const at::Tensor prompt_BT = at::tensor(prompt, at::TensorOptions(at::kLong)).view({1, -1});
  return generate(model, prompt_BT, options)[0];
}

}  // namespace quatrain

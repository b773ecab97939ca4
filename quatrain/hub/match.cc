// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/hub/few_names.h"

namespace quatrain {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

bool is_float(std::string_view dtype) {
  constexpr std::array<std::string_view, 4> kFloats{"F32", "BF16", "F16", "F64"};
  return std::find(kFloats.begin(), kFloats.end(), dtype) != kFloats.end();
}

// Layers behind the last, which predict further tokens (DeepSeek-V3, arXiv:2412.19437, section
// 2.2): they are no part of the model.
bool is_of_later_layer(std::string_view name, std::int64_t layers) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  std::int64_t layer = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), layer);
  return parsed.ec == std::errc() && layer >= layers;
}

// Causal masks and rotary tables that older files carry along, and what else is left out.
bool is_left_out(std::string_view name, const ModelSpec& spec) {
  if (spec.family == Family::kGpt2) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }
  return name.ends_with(".rotary_emb.inv_freq") ||
         (spec.family == Family::kDeepseekV3 && is_of_later_layer(name, spec.layers));
}

// Their values are meaningless without the scales beside them.
void refuse_fp8(const WeightFiles& files, const TensorEntry& entry) {
  if (!entry.dtype.starts_with("F8")) return;
  throw DataError(fmt::format(
      "{}: {} is {}: weights in fp8 with block scales cannot be read; convert them to bfloat16 "
      "first (each 128 x 128 block of `weight` times its `weight_scale_inv`)",
      files.folder().string(), entry.name, entry.dtype));
}

}  // namespace

HubMatch::HubMatch(const ModelSpec& spec, const HubSources& sources, const WeightFiles& files,
                   const LoadOptions& options)
    : spec_(spec), sources_(sources), files_(files), options_(options) {
  drop_prefix();
  compare_parameters();
  compare_names();
  check_tied_head();
  refuse();
}

// "transformer." and "model." are absent in files of the bare model.
void HubMatch::drop_prefix() {
  const std::string& first = sources_.begin()->first;
  prefix_ = first.substr(0, first.find('.') + 1);
  if (!files_.has(first) && files_.has(first.substr(prefix_.size()))) prefixed_ = false;
}
std::string HubMatch::name_in_file(const std::string& tensor) const {
  if (prefixed_ || !tensor.starts_with(prefix_)) return tensor;
  return tensor.substr(prefix_.size());
}

void HubMatch::compare_parameters() {
  for (const auto& [tensor, parts] : sources_) {
    const std::string name = name_in_file(tensor);
    expected_.insert(name);
    if (!files_.has(name)) {
      missing_.push_back(name);
      continue;
    }
    const TensorEntry& entry = files_.entry(name);
    refuse_fp8(files_, entry);
    const std::vector<std::int64_t> shape = file_shape(parts);
    if (entry.shape != shape) {
      misfits_.push_back(fmt::format("{} is [{}], the model's [{}]", name, join(entry.shape, ", "),
                                     join(shape, ", ")));
    } else if (!is_float(entry.dtype)) {
      misfits_.push_back(fmt::format("{} has dtype {}", name, entry.dtype));
    }
  }
}

void HubMatch::compare_names() {
  for (const std::string& name : files_.names()) {
    if (expected_.contains(name)) continue;
    if (is_left_out(name, spec_)) {
      ignored_.push_back(name);
    } else if (!(spec_.tied && name == kHead)) {
      extra_.push_back(name);
    }
  }
}

// Tied and stored: the same as the embedding, or the file contradicts its config.
void HubMatch::check_tied_head() {
  if (!spec_.tied || !files_.has(kHead)) return;
  ignored_.emplace_back(kHead);
  const std::string table = name_in_file(sources_.begin()->first);
  if (options_.ignore_stored_head || !files_.has(table)) return;
  const at::Tensor head = files_.tensor(kHead);
  const at::Tensor embedding = files_.tensor(table);
  if (head.sizes() == embedding.sizes() && head.to(embedding.scalar_type()).equal(embedding)) {
    return;
  }
  throw DataError(fmt::format(
      "{}: config.json ties the head to the embedding (tie_word_embeddings), but {} differs from "
      "{}; set tie_word_embeddings = false to use it, or remove it from the file to tie",
      files_.folder().string(), kHead, table));
}

void HubMatch::refuse() {
  std::string text;
  if (!options_.allow_missing) text += few_names("missing", with_nearest());
  if (!options_.allow_extra) text += few_names("not in the model", extra_);
  text += few_names("that do not fit", misfits_);
  if (!text.empty()) {
    throw DataError(
        fmt::format("{}: {} of the model's {} tensors can be loaded{}", files_.folder().string(),
                    expected_.size() - missing_.size() - misfits_.size(), expected_.size(), text));
  }
  ignored_.insert(ignored_.end(), extra_.begin(), extra_.end());
  for (const std::string& name : missing_) log_warning("not in the files: " + name);
  for (const std::string& name : extra_) log_warning("not in the model: " + name);
}

std::vector<std::string> HubMatch::with_nearest() const {
  std::vector<std::string> out;
  for (const std::string& name : missing_) {
    const bool shown = out.size() < kNamesShown;
    const std::vector<std::string> near =
        shown ? nearest(name, extra_, 1) : std::vector<std::string>{};
    out.push_back(near.empty() ? name : fmt::format("{} (is it {}?)", name, near[0]));
  }
  return out;
}

}  // namespace quatrain

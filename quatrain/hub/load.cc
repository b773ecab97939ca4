// SPDX-License-Identifier: Apache-2.0
// Weights from a folder into a model. First everything is compared, then everything is copied.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/hub/hub.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::size_t kNamesShown = 5;

bool is_float(std::string_view dtype) {
  constexpr std::array<std::string_view, 4> kFloats{"F32", "BF16", "F16", "F64"};
  return std::find(kFloats.begin(), kFloats.end(), dtype) != kFloats.end();
}

// Causal masks and rotary tables that older files carry along.
bool is_buffer(std::string_view name, Family family) {
  if (family == Family::kGpt2) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }
  return name.ends_with(".rotary_emb.inv_freq");
}

class Loader {
 public:
  Loader(Model& model, const WeightFiles& files, const LoadOptions& options)
      : model_(model), files_(files), options_(options), sources_(hub_sources(model)) {
    drop_prefix();
  }

  LoadReport run() {
    compare_parameters();
    compare_names();
    check_tied_head();
    refuse();
    for (const auto& unit : model_.units()) fill(*unit);
    return std::move(report_);
  }

 private:
  // "transformer." and "model." are absent in files of the bare model.
  void drop_prefix() {
    const std::string& first = sources_.begin()->first;
    prefix_ = first.substr(0, first.find('.') + 1);
    if (!files_.has(first) && files_.has(first.substr(prefix_.size()))) prefixed_ = false;
  }
  std::string name_in_file(const std::string& tensor) const {
    if (prefixed_ || !tensor.starts_with(prefix_)) return tensor;
    return tensor.substr(prefix_.size());
  }

  void compare_parameters() {
    for (const auto& [tensor, parts] : sources_) {
      const std::string name = name_in_file(tensor);
      expected_.insert(name);
      if (!files_.has(name)) {
        report_.missing.push_back(name);
        continue;
      }
      const TensorEntry& entry = files_.entry(name);
      const std::vector<std::int64_t> shape = file_shape(parts);
      if (entry.shape != shape) {
        misfits_.push_back(fmt::format("{} is [{}], the model's [{}]", name,
                                       join(entry.shape, ", "), join(shape, ", ")));
      } else if (!is_float(entry.dtype)) {
        misfits_.push_back(fmt::format("{} has dtype {}", name, entry.dtype));
      }
    }
  }

  void compare_names() {
    const ModelSpec& spec = model_.spec();
    for (const std::string& name : files_.names()) {
      if (expected_.contains(name)) continue;
      if (is_buffer(name, spec.family)) {
        report_.ignored.push_back(name);
      } else if (!(spec.tied && name == kHead)) {
        extra_.push_back(name);
      }
    }
  }

  // Tied and stored: the same as the embedding, or the file contradicts its config.
  void check_tied_head() {
    if (!model_.spec().tied || !files_.has(kHead)) return;
    report_.ignored.emplace_back(kHead);
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

  void refuse() {
    std::string text;
    auto add = [&text](std::string_view what, const std::vector<std::string>& names) {
      if (names.empty()) return;
      const std::size_t shown = std::min(names.size(), kNamesShown);
      text += fmt::format("; {} {}: {}{}", names.size(), what,
                          join(std::span(names).first(shown), ", "),
                          shown < names.size() ? ", ..." : "");
    };
    if (!options_.allow_missing) add("missing", with_nearest());
    if (!options_.allow_extra) add("not in the model", extra_);
    add("that do not fit", misfits_);
    if (!text.empty()) {
      throw DataError(fmt::format(
          "{}: {} of the model's {} tensors can be loaded{}", files_.folder().string(),
          expected_.size() - report_.missing.size() - misfits_.size(), expected_.size(), text));
    }
    report_.ignored.insert(report_.ignored.end(), extra_.begin(), extra_.end());
    for (const std::string& name : report_.missing) log_warning("not in the files: " + name);
    for (const std::string& name : extra_) log_warning("not in the model: " + name);
  }

  std::vector<std::string> with_nearest() const {
    std::vector<std::string> out;
    for (const std::string& name : report_.missing) {
      const bool shown = out.size() < kNamesShown;
      const std::vector<std::string> near =
          shown ? nearest(name, extra_, 1) : std::vector<std::string>{};
      out.push_back(near.empty() ? name : fmt::format("{} (is it {}?)", name, near[0]));
    }
    return out;
  }

  // A file tensor is of one unit.
  void fill(ParamUnit& unit) {
    if (options_.open) options_.open(unit);
    const auto params = unit.params();
    for (const auto& [tensor, parts] : sources_) {
      const Param* first = parts.front().param;
      const bool here = first >= params.data() && first < params.data() + params.size();
      if (here && files_.has(name_in_file(tensor))) copy(tensor, parts);
    }
    if (options_.close) options_.close(unit);
  }

  void copy(const std::string& tensor, const HubParts& parts) {
    const std::string name = name_in_file(tensor);
    const bool transposed = parts.front().info.hub.transposed;
    const at::Tensor whole = transposed ? files_.tensor(name).t() : at::Tensor();
    for (const auto& [info, param] : parts) {
      const std::int64_t begin = info.hub.begin + param->begin[0];
      const std::int64_t rows = param->local_shape[0];
      at::Tensor piece =
          transposed ? whole.narrow(0, begin, rows) : files_.rows(name, begin, begin + rows);
      if (piece.dim() == 2) piece = piece.narrow(1, param->begin[1], param->local_shape[1]);
      param->value.copy_(piece);
      ++report_.loaded;
    }
  }

  Model& model_;
  const WeightFiles& files_;
  const LoadOptions& options_;
  HubSources sources_;
  std::string prefix_;
  bool prefixed_ = true;
  std::set<std::string> expected_;
  std::vector<std::string> extra_;
  std::vector<std::string> misfits_;
  LoadReport report_;
};

}  // namespace

LoadReport load_weights(Model& model, const fs::path& folder, const LoadOptions& options) {
  const WeightFiles files(find_weights(folder).weights, options.allow_extra);
  return Loader(model, files, options).run();
}

}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// The table of a run's keys. Types and defaults are those of RunConfig's fields.
#include "quatrain/spec/run_keys.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace quatrain {
namespace {

constexpr double kMaxSeed = 9223372036854775807.0;

void run_section(std::vector<Key>& keys) {
  using S = RunConfig::Run;
  constexpr auto kIn = &RunConfig::run;
  // clang-format off
  keys.insert(keys.end(), {
    {"run", "name", "", "name of the run", field<kIn, &S::name>},
    {"run", "folder", "", "where the run writes; empty: runs/<name>", field<kIn, &S::folder>, {},
     {}, "output_dir out_dir dump_folder save_dir"},
    {"run", "seed", "", "of initialisation, data order and dropout", field<kIn, &S::seed>,
     Bounds{.least = 0, .most = kMaxSeed}, {}, "random_seed"},
    {"run", "threads", "threads",
     "compute threads a rank; 0: the cores of this host over its ranks", field<kIn, &S::threads>,
     Bounds{.least = 0, .most = 4096}, {}, "num_threads"},
  });
  // clang-format on
}

void model_section(std::vector<Key>& keys) {
  Key name{"model", "name", "", "a catalogue entry; keys given beside it override its own",
           [](RunDraft& draft) -> Field { return &draft.model_name; }};
  name.input_only = true;
  Key hf{"model", "hf", "",
         "a Hugging Face folder whose config.json gives the shape; relative to this file",
         [](RunDraft& draft) -> Field { return &draft.model_hf; }};
  hf.also = "path pretrained";
  hf.input_only = true;
  keys.push_back(name);
  keys.push_back(hf);
  Key weights{"model", "weights", "", "none, or a run, checkpoint or Hugging Face folder",
              [](RunDraft& draft) -> Field { return &draft.config.weights; }};
  weights.also = "checkpoint_path initial_load_path";
  keys.push_back(weights);
  keys.push_back({"model", "label", "", "what messages call the model",
                  [](RunDraft& draft) -> Field { return &draft.config.model.name; }});
}

void data_section(std::vector<Key>& keys) {
  using S = RunConfig::Data;
  constexpr auto kIn = &RunConfig::data;
  // clang-format off
  keys.insert(keys.end(), {
    {"data", "train", "", "[{ path, weight }, ...], or paths", field<kIn, &S::train>, {}, {},
     "dataset datasets train_data dataset_path data_path"},
    {"data", "validation", "", "[{ path, weight }, ...], or paths", field<kIn, &S::validation>,
     {}, {}, "valid eval val test"},
    {"data", "format", "", "of the files", field<kIn, &S::format>, {},
     {"auto", "megatron", "llmc", "nanogpt", "text"}},
    {"data", "tokenizer", "", "bytes, or a tokenizer's file or folder", field<kIn, &S::tokenizer>,
     {}, {}, "tokenizer_path tokenizer_model"},
    {"data", "mask_documents", "", "attention and loss stay inside documents",
     field<kIn, &S::mask_documents>, {}, {}, "reset_attention_mask"},
    {"data", "prefetch", "steps", "batches made ahead", field<kIn, &S::prefetch>,
     Bounds{.least = 0, .most = 1024}, {}, "prefetch_factor num_workers"},
  });
  // clang-format on
}

void training_section(std::vector<Key>& keys) {
  using S = RunConfig::Training;
  constexpr auto kIn = &RunConfig::training;
  // clang-format off
  keys.insert(keys.end(), {
    {"training", "steps", "steps", "optimizer steps", field<kIn, &S::steps>, kPositive, {},
     "max_steps train_iters num_steps max_iters iterations"},
    {"training", "seq_len", "tokens", "length of a sequence", field<kIn, &S::seq_len>, kPositive,
     {}, "sequence_length seq_length block_size context_length max_seq_len"},
    {"training", "micro_batch", "sequences", "a rank's sequences at once; 0: derived",
     field<kIn, &S::micro_batch>, kCount, {}, "micro_batch_size batch_size local_batch_size"},
    {"training", "accumulation", "micro-batches", "micro-batches a step and rank; 0: derived",
     field<kIn, &S::accumulation>, kCount, {},
     "gradient_accumulation_steps grad_accumulation accumulate"},
    {"training", "global_batch", "sequences", "sequences a step over all ranks; 0: derived",
     field<kIn, &S::global_batch>, kCount, {}, "global_batch_size"},
    {"training", "dtype", "", "of compute", field<kIn, &S::dtype>, {},
     {"float32", "bfloat16", "float64"}, "precision mixed_precision"},
    {"training", "recompute", "", "what the backward pass computes again",
     field<kIn, &S::recompute>, {}, {"none", "selective", "full"},
     "activation_checkpointing gradient_checkpointing"},
    {"training", "trainable", "", "patterns (* and ?) of parameters to train; empty: all",
     field<kIn, &S::trainable>, {}, {}, "freeze frozen"},
    {"training", "z_loss", "", "weight of log(Z)^2 in the loss", field<kIn, &S::z_loss>, kCount,
     {}, "z_loss_coef"},
    {"training", "router_z_loss", "", "weight of log(Z)^2 of routers' logits in the loss",
     field<kIn, &S::router_z_loss>, kCount, {}, "router_z_loss_coef moe_z_loss_coeff"},
    {"training", "router_bias_rate", "", "a step of experts' selection biases; 0: they stay",
     field<kIn, &S::router_bias_rate>, kCount, {},
     "bias_update_speed moe_router_bias_update_rate"},
    {"training", "router_balance", "", "whose choices the load-balance loss of routers counts",
     field<kIn, &S::router_balance>, {}, {"sequence", "micro_batch", "global_batch"},
     "moe_router_load_balancing_type balance_loss"},
    {"training", "router_jitter", "", "routers read x times numbers of 1 - this to 1 + this",
     field<kIn, &S::router_jitter>, Bounds{.least = 0, .most = 0.5}, {},
     "router_jitter_noise moe_input_jitter_eps"},
    {"training", "expert_capacity", "",
     "room of an expert over its even share of a micro-batch; 0: no limit",
     field<kIn, &S::expert_capacity>, kCount, {}, "capacity_factor moe_expert_capacity_factor"},
    {"training", "expert_drop", "", "which choices find room: the first, or the likeliest",
     field<kIn, &S::expert_drop>, {}, {"position", "probability"}, "moe_token_drop_policy"},
    {"training", "head_chunk_tokens", "tokens", "positions whose logits exist at once",
     field<kIn, &S::head_chunk_tokens>, kPositive, {}, "loss_chunk_size"},
  });
  // clang-format on
}

std::vector<Key> all_keys() {
  std::vector<Key> keys;
  run_section(keys);
  model_section(keys);
  data_section(keys);
  training_section(keys);
  add_job_keys(keys);
  return keys;
}

}  // namespace

const std::vector<Key>& run_keys() {
  static const std::vector<Key> keys = all_keys();
  return keys;
}

const std::vector<std::string_view>& run_sections() {
  static const std::vector<std::string_view> sections = [] {
    std::vector<std::string_view> result;
    for (const Key& key : run_keys()) {
      if (result.empty() || result.back() != key.section) result.push_back(key.section);
    }
    return result;
  }();
  return sections;
}

const Key* find_run_key(std::string_view section, std::string_view name) {
  for (const Key& key : run_keys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

std::string allowed(const Key& key) {
  if (!key.choices.empty()) {
    return fmt::format(
        "one of {}",
        fmt::join(key.choices.begin() + (key.choices[0].empty() ? 1 : 0), key.choices.end(), ", "));
  }
  if (!key.range) return "";
  const Bounds& range = *key.range;
  const std::string left =
      range.least == -kInf ? "" : fmt::format("{} {} ", range.least, range.least_open ? "<" : "<=");
  const std::string right = range.most == kInf || range.most >= 1 << 24
                                ? ""
                                : fmt::format(" {} {}", range.most_open ? "<" : "<=", range.most);
  return fmt::format("{}{}{}", left, key.name, right);
}

}  // namespace quatrain

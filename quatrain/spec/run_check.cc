// SPDX-License-Identifier: Apache-2.0
// Rules of a resolved configuration beyond single keys: how numbers fit together, and what the
// runtime cannot do yet.
#include "quatrain/spec/run_check.h"

#include <fmt/core.h>

#include <numeric>
#include <utility>

#include "quatrain/base/text.h"
#include "quatrain/spec/context_split.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/parameters.h"
#include "quatrain/spec/run_keys.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {
namespace {

std::string fitting(std::int64_t number) {
  return "divisors that fit: " + join(divisors(number), " ");
}

void set_context(Plan& plan, const RunConfig::Parallel& p) {
  plan.cp_style = p.cp_style;
  plan.cp_heads = p.cp_style == "hybrid" ? p.cp_heads : 1;
  plan.cp_zigzag = p.cp_balance == "zigzag";
}

class RunChecker {
 public:
  explicit RunChecker(const RunConfig& config) : c_(config), p_(config.parallel) {}

  Problems run(bool model_known) {
    problems_ = check_table(c_);
    batch();
    steps();
    data();
    optimizer();
    if (model_known) {
      Problems own = check(c_.model);
      const bool sound = own.empty();
      for (Problem& problem : own) problems_.push_back(std::move(problem));
      if (sound) model();
    }
    unsupported();
    return std::move(problems_);
  }

 private:
  void add(std::string where, std::string what, std::string hint = "") {
    problems_.push_back({std::move(where), std::move(what), std::move(hint)});
  }
  bool degrees_positive() const {
    return p_.dp_replicate > 0 && p_.dp_shard > 0 && p_.tp > 0 && p_.pp > 0 && p_.cp > 0 &&
           p_.chunks > 0 && p_.ep > 0 && p_.etp > 0;
  }

  void batch() {
    RunConfig copy = c_;
    for (Problem& problem : resolve_numbers(copy, 0)) problems_.push_back(std::move(problem));
  }

  void steps() {
    const auto& t = c_.training;
    const auto& s = c_.lr_schedule;
    if (s.warmup_steps > t.steps) {
      add("lr_schedule.warmup_steps",
          fmt::format("warmup_steps = {} is more than steps = {}", s.warmup_steps, t.steps),
          fmt::format("at most {}", t.steps));
    } else if (s.type == "wsd" && s.decay_steps == 0) {
      add("lr_schedule.decay_steps", "wsd needs decay_steps",
          fmt::format("the length of its final decay: 1 to {}", t.steps - s.warmup_steps));
    } else if (s.decay_steps > 0 && s.warmup_steps + s.decay_steps > t.steps && s.type == "wsd") {
      add("lr_schedule.decay_steps",
          fmt::format("warmup_steps {} + decay_steps {} is more than steps = {}", s.warmup_steps,
                      s.decay_steps, t.steps),
          fmt::format("decay_steps at most {}", t.steps - s.warmup_steps));
    }
  }

  void data() {
    const auto& d = c_.data;
    for (const auto& [list, key] :
         {std::pair{&d.train, "data.train"}, {&d.validation, "data.validation"}}) {
      for (const DataPath& item : *list) {
        if (item.path.empty()) add(key, "a path is empty", "give a file");
      }
    }
    if (d.format == "text" && d.tokenizer.empty()) {
      add("data.tokenizer", "format = \"text\" needs a tokenizer",
          "tokenizer = \"bytes\", or a path");
    }
    if (c_.metrics.sample_every > 0 && d.tokenizer.empty()) {
      add("metrics.sample_every", "samples of text need data.tokenizer",
          "give one, or sample_every = 0");
    }
    if (c_.metrics.eval_every > 0 && d.validation.empty()) {
      add("metrics.eval_every", "validation needs data.validation", "give it, or eval_every = 0");
    }
  }

  void optimizer() {
    const auto& o = c_.optimizer;
    if (o.name != "sgd" && o.momentum != 0.0) {
      add("optimizer.momentum", fmt::format("momentum = {} belongs to sgd", o.momentum),
          "adamw has beta1; or name = \"sgd\"");
    }
    if (o.nesterov && (o.name != "sgd" || o.momentum == 0.0)) {
      add("optimizer.nesterov", "nesterov needs sgd with momentum", "give momentum, often 0.9");
    }
  }

  void model() {
    const ModelSpec& m = c_.model;
    if (c_.training.seq_len > m.max_positions) {
      add("training.seq_len",
          fmt::format("seq_len = {} is longer than the model's {} positions", c_.training.seq_len,
                      m.max_positions),
          fmt::format("at most {}, or model.max_position_embeddings = {}", m.max_positions,
                      c_.training.seq_len));
    }
    if (m.attention_dropout > 0.0) {
      add("model.attention_dropout",
          fmt::format("attention_dropout = {} is not supported in training", m.attention_dropout),
          "set it to 0; resid_pdrop and embd_pdrop are supported");
    }
    if (!c_.training.trainable.empty()) {
      auto list = parameters(m);
      for (Problem& problem : set_trainable(list, c_.training.trainable)) {
        problems_.push_back(std::move(problem));
      }
    }
    if (!degrees_positive()) return;
    tensor(m);
    context(m);
    pipeline(m);
    experts(m);
  }

  void tensor(const ModelSpec& m) {
    const TensorSplit split{.degree = p_.tp, .experts = ExpertSplit{.ep = p_.ep, .etp = p_.etp}};
    for (Problem& problem : check_split(m, split)) problems_.push_back(std::move(problem));
    if (p_.gather_again && !p_.sequence_parallel) {
      add("parallel.gather_again", "gather_again belongs to sequence_parallel",
          "sequence_parallel = true, or gather_again = false");
    }
  }

  void context(const ModelSpec& m) {
    Plan plan;
    set_context(plan, p_);
    plan.degrees[static_cast<std::size_t>(Axis::kCp)] = p_.cp;
    const ContextSplit split = context_split(plan, 0);
    for (Problem& problem : check_context(m, p_.tp, split, c_.training.seq_len)) {
      problems_.push_back(std::move(problem));
    }
    if (p_.cp_heads != 1 && p_.cp_style != "hybrid") {
      add("parallel.cp_heads", "cp_heads belongs to cp_style = \"hybrid\"",
          "cp_style = \"hybrid\", or cp_heads = 1");
    }
    if (p_.cp > 1 && c_.training.expert_capacity > 0.0) {
      add("training.expert_capacity",
          "which choices find room is decided over whole sequences, which ranks of cp do not see",
          "expert_capacity = 0, or cp = 1");
    }
  }

  void pipeline(const ModelSpec& m) {
    const std::int64_t stages = std::int64_t{p_.pp} * p_.chunks;
    if (p_.layers_per_stage.empty()) {
      if (stages <= m.layers) return;
      add("parallel.pp",
          fmt::format("pp {} x chunks {} = {} stages for {} layers", p_.pp, p_.chunks, stages,
                      m.layers),
          fmt::format("at most {} stages, or layers_per_stage with a 0 for each empty one",
                      m.layers));
      return;
    }
    const auto listed = static_cast<std::int64_t>(p_.layers_per_stage.size());
    std::int64_t sum = 0;
    bool negative = false;
    for (std::int64_t layers : p_.layers_per_stage) {
      sum += layers;
      negative = negative || layers < 0;
    }
    if (listed != stages || sum != m.layers || negative) {
      add("parallel.layers_per_stage",
          fmt::format("{} numbers with sum {} for {} stages and {} layers", listed, sum, stages,
                      m.layers),
          "one number a stage, none negative, that add up to the layers; or leave it out");
    }
  }

  void experts(const ModelSpec& m) {
    if (!m.experts) {
      if (c_.training.router_z_loss > 0.0) {
        add("training.router_z_loss", "the model has no experts", "router_z_loss = 0");
      }
      if (c_.training.router_bias_rate > 0.0) {
        add("training.router_bias_rate", "the model has no experts", "router_bias_rate = 0");
      }
      if (c_.training.router_balance != "sequence") {
        add("training.router_balance", "the model has no experts", "router_balance = \"sequence\"");
      }
      if (c_.training.router_jitter > 0.0) {
        add("training.router_jitter", "the model has no experts", "router_jitter = 0");
      }
      if (c_.training.expert_capacity > 0.0) {
        add("training.expert_capacity", "the model has no experts", "expert_capacity = 0");
      }
      if (p_.ep > 1) add("parallel.ep", "the model has no experts", "ep = 1");
      if (p_.etp > 1) add("parallel.etp", "the model has no experts", "etp = 1");
      return;
    }
    router(m);
    const double capacity = c_.training.expert_capacity;
    if (capacity > 0.0 && capacity < 1.0) {
      add("training.expert_capacity",
          fmt::format("expert_capacity = {} has no room for an even load", capacity),
          "1 or more, or 0 for no limit");
    }
    const std::int64_t ranks = data_ranks(p_) * p_.cp * p_.tp;
    if (ranks % (std::int64_t{p_.ep} * p_.etp) != 0) {
      add("parallel.ep",
          fmt::format("ep {} x etp {} does not divide the {} ranks of a stage", p_.ep, p_.etp,
                      ranks),
          fitting(ranks));
    }
  }

  void router(const ModelSpec& m) {
    if (c_.training.router_balance == "global_batch" && p_.post_validation) {
      add("training.router_balance",
          "post_validation begins a step before the last one's loads are known",
          "router_balance = \"sequence\" or \"micro_batch\", or post_validation = false");
    }
    if (c_.training.router_bias_rate == 0.0) return;
    if (!m.experts->selection_bias) {
      add("training.router_bias_rate",
          fmt::format("the routers of {} have no selection bias", name(m.family)),
          "router_bias_rate = 0; deepseek_v3 has biases");
    }
    if (p_.post_validation) {
      add("training.router_bias_rate",
          "post_validation begins a step before the last one's loads are known",
          "router_bias_rate = 0, or post_validation = false");
    }
  }

  // What the runtime does not have yet. Goes when it does.
  void unsupported() {
    const auto refuse = [&](bool given, const char* key, const char* remedy) {
      if (given) add(key, fmt::format("{} is not supported yet", key), remedy);
    };
    if (c_.comm.backend == "self" && data_ranks(p_) * model_ranks(p_) > 1) {
      add("comm.backend",
          fmt::format("backend = \"self\" is one rank, the degrees multiply to {}",
                      data_ranks(p_) * model_ranks(p_)),
          "backend = \"thread\", or start under mpirun");
    }
    refuse(c_.comm.backend == "nccl", "comm.backend", "backend = \"thread\" or \"mpi\"");
  }

  const RunConfig& c_;
  const RunConfig::Parallel& p_;
  Problems problems_;
};

}  // namespace

Problems check_run(const RunConfig& config, bool model_known) {
  return RunChecker(config).run(model_known);
}

Problems check(const RunConfig& config) { return check_run(config, true); }

Plan make_plan(const RunConfig& config) {
  const auto& p = config.parallel;
  Plan plan;
  plan.degrees = {p.pp, p.dp_replicate, p.dp_shard, p.cp, p.tp, 1, 1, p.ep, p.etp};
  if (p.ep * p.etp > 1) {
    const int ranks = p.dp_replicate * p.dp_shard * p.cp * p.tp / (p.ep * p.etp);
    const int replicas = std::gcd(p.dp_replicate, ranks);
    plan.degrees[5] = replicas;
    plan.degrees[6] = ranks / replicas;
  }
  plan.seq_len = config.training.seq_len;
  plan.microbatch_size = config.training.micro_batch;
  plan.num_microbatches = config.training.accumulation;
  plan.stage_begin =
      first_layers(p.layers_per_stage.empty() ? even_layers(config.model.layers, p.pp * p.chunks)
                                              : p.layers_per_stage);
  plan.schedule = p.schedule;
  plan.chunks = p.chunks;
  plan.zero_stage = p.zero;
  plan.prefetch = p.prefetch;
  plan.reduce_once = p.reduce_once;
  plan.gather_once = p.gather_once;
  plan.sequence_parallel = p.sequence_parallel && p.tp > 1;
  plan.gather_again = plan.sequence_parallel && p.gather_again;
  plan.overlap_chunks = p.tp > 1 ? p.overlap_chunks : 1;
  const bool rows_move = config.model.experts && (p.ep > 1 || p.etp > p.tp);
  plan.ep_chunks = rows_move ? p.ep_chunks : 1;
  set_context(plan, p);
  plan.recompute = config.training.recompute;
  plan.dtype = config.training.dtype;
  return plan;
}

}  // namespace quatrain

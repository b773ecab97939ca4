// SPDX-License-Identifier: Apache-2.0
// The table of a run's keys, from [parallel] on.
#include "quatrain/spec/run_keys.h"

namespace quatrain {
namespace {

const Bounds kDegree{.least = 1, .most = 1 << 24};

void parallel_section(std::vector<Key>& keys) {
  using S = RunConfig::Parallel;
  constexpr auto kIn = &RunConfig::parallel;
  // clang-format off
  keys.insert(keys.end(), {
    {"parallel", "dp_replicate", "ranks", "data-parallel replicas of the state",
     field<kIn, &S::dp_replicate>, kDegree, {}, "data_parallel_replicate_degree dp"},
    {"parallel", "dp_shard", "ranks", "data-parallel ranks that share the state; -1: the rest",
     field<kIn, &S::dp_shard>,
     Bounds{.least = -1, .most = 1 << 24}, {}, "data_parallel_shard_degree fsdp"},
    {"parallel", "zero", "", "ZeRO stage", field<kIn, &S::zero>, Bounds{.least = 0, .most = 3},
     {}, "zero_stage"},
    {"parallel", "prefetch", "units", "gathered ahead of the layer that computes; zero = 3",
     field<kIn, &S::prefetch>, Bounds{.least = 0, .most = 1 << 20}, {}, "forward_prefetch"},
    {"parallel", "reduce_once", "", "gradients stay whole until the last micro-batch; zero >= 2",
     field<kIn, &S::reduce_once>, {}, {}, "no_sync"},
    {"parallel", "gather_once", "", "zero = 3: a unit stays gathered while the row stays in its "
     "stage, instead of once a pass of a micro-batch", field<kIn, &S::gather_once>},
    {"parallel", "tp", "ranks", "tensor parallelism", field<kIn, &S::tp>, kDegree, {},
     "tensor_parallel_degree tensor_model_parallel_size"},
    {"parallel", "sequence_parallel", "", "norms and dropout split over tp's ranks",
     field<kIn, &S::sequence_parallel>},
    {"parallel", "gather_again", "", "weight gradients gather their inputs once more, none is kept "
     "whole; sequence_parallel", field<kIn, &S::gather_again>},
    {"parallel", "overlap_chunks", "pieces", "of a row-parallel product, each summed over tp under "
     "the next", field<kIn, &S::overlap_chunks>, Bounds{.least = 1, .most = 1024}},
    {"parallel", "pp", "ranks", "pipeline parallelism", field<kIn, &S::pp>, kDegree, {},
     "pipeline_parallel_degree pipeline_model_parallel_size"},
    {"parallel", "schedule", "", "of the pipeline; file:PATH is a CSV of quatrain schedule check",
     field<kIn, &S::schedule>, {}, runnable_schedules(), "pipeline_parallel_schedule pp_engine"},
    {"parallel", "chunks", "stages", "pipeline stages a rank", field<kIn, &S::chunks>, kDegree,
     {}, "virtual_stages"},
    {"parallel", "post_validation", "", "a step begins before all stages have agreed on the last "
     "one's norm; what does not stand is made again; metrics come with metrics.log_every",
     field<kIn, &S::post_validation>},
    {"parallel", "layers_per_stage", "layers", "blocks of each stage; empty: balanced",
     field<kIn, &S::layers_per_stage>},
    {"parallel", "cp", "ranks", "context parallelism", field<kIn, &S::cp>, kDegree, {},
     "context_parallel_degree context_parallel_size"},
    {"parallel", "cp_style", "", "how attention sees the tokens of other ranks",
     field<kIn, &S::cp_style>, {}, {"ring", "all_gather", "ulysses", "hybrid"}},
    {"parallel", "cp_heads", "ranks", "of cp_style = \"hybrid\": neighbours that exchange tokens "
     "for heads", field<kIn, &S::cp_heads>, kDegree, {}, "ulysses_degree"},
    {"parallel", "cp_balance", "", "which tokens a rank holds: zigzag gives all as much attention "
     "to compute", field<kIn, &S::cp_balance>, {}, {"zigzag", "contiguous"}},
    {"parallel", "ep", "ranks", "expert parallelism", field<kIn, &S::ep>, kDegree, {},
     "expert_parallel_degree expert_model_parallel_size"},
    {"parallel", "etp", "ranks", "tensor parallelism of experts", field<kIn, &S::etp>, kDegree},
    {"parallel", "ep_chunks", "pieces", "of the rows for a layer's experts, by experts: each is "
     "computed while the next is on its way", field<kIn, &S::ep_chunks>,
     Bounds{.least = 1, .most = 1024}},
  });
  // clang-format on
}

}  // namespace

const std::vector<std::string_view>& runnable_schedules() {
  static const std::vector<std::string_view> names{
      "1f1b",        "gpipe", "eager-1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1",
      "zb-h1-fused", "zb-h2", "zb-auto",    "interleaved-zb1p", "zb-v",       "zb-v-auto",
      "v-half",      "v-min", "1f1b-v",     "dualpipe-v",       "file:PATH"};
  return names;
}

namespace {

void optimizer_section(std::vector<Key>& keys) {
  using S = RunConfig::OptimizerKeys;
  constexpr auto kIn = &RunConfig::optimizer;
  const Bounds beta{.least = 0, .most = 1, .most_open = true};
  // clang-format off
  keys.insert(keys.end(), {
    {"optimizer", "name", "", "update rule", field<kIn, &S::name>, {}, {"adamw", "sgd"},
     "optimizer"},
    {"optimizer", "lr", "", "peak learning rate", field<kIn, &S::lr>,
     Bounds{.least = 0, .most = kInf, .least_open = true, .most_open = true}, {},
     "learning_rate max_lr"},
    {"optimizer", "beta1", "", "decay of adamw's first moment", field<kIn, &S::beta1>, beta, {},
     "adam_beta1 betas"},
    {"optimizer", "beta2", "", "decay of adamw's second moment", field<kIn, &S::beta2>, beta, {},
     "adam_beta2"},
    {"optimizer", "eps", "", "added to adamw's denominator", field<kIn, &S::eps>,
     Bounds{.least = 0, .most = kInf, .least_open = true, .most_open = true}, {},
     "adam_eps epsilon"},
    {"optimizer", "weight_decay", "", "decay of matrices, times the learning rate",
     field<kIn, &S::weight_decay>, Bounds{.least = 0, .most_open = true}},
    {"optimizer", "max_norm", "", "gradients are clipped to this norm; 0: never",
     field<kIn, &S::max_norm>, Bounds{.least = 0, .most_open = true}, {},
     "grad_clip clip_grad max_grad_norm gradient_clipping"},
    {"optimizer", "momentum", "", "of sgd", field<kIn, &S::momentum>, beta},
    {"optimizer", "nesterov", "", "Nesterov's form of sgd's momentum", field<kIn, &S::nesterov>},
  });
  // clang-format on
}

void lr_schedule_section(std::vector<Key>& keys) {
  using S = RunConfig::LrScheduleKeys;
  constexpr auto kIn = &RunConfig::lr_schedule;
  // clang-format off
  keys.insert(keys.end(), {
    {"lr_schedule", "type", "", "shape after warm-up", field<kIn, &S::type>, {},
     {"constant", "linear", "cosine", "wsd", "inverse_sqrt"},
     "lr_scheduler_type lr_decay_style decay_type"},
    {"lr_schedule", "unit", "", "what goes on when the batch changes: the count of steps, or of "
     "tokens in steps of the first batch", field<kIn, &S::unit>, {}, {"steps", "tokens"}, ""},
    {"lr_schedule", "warmup_steps", "steps", "linear warm-up", field<kIn, &S::warmup_steps>,
     kCount, {}, "warmup warmup_iters lr_warmup_steps"},
    {"lr_schedule", "decay_steps", "steps", "wsd: the final ones; others: 0 = to the end",
     field<kIn, &S::decay_steps>, kCount, {}, "lr_decay_iters decay_ratio"},
    {"lr_schedule", "min_lr_factor", "", "last rate over peak rate",
     field<kIn, &S::min_lr_factor>, Bounds{.least = 0, .most = 1}, {}, "min_lr"},
  });
  // clang-format on
}

void checkpoint_section(std::vector<Key>& keys) {
  using S = RunConfig::Checkpoint;
  constexpr auto kIn = &RunConfig::checkpoint;
  // clang-format off
  keys.insert(keys.end(), {
    {"checkpoint", "interval", "steps", "between checkpoints; 0: at the end only",
     field<kIn, &S::interval>, kCount, {}, "save_interval save_every"},
    {"checkpoint", "keep", "checkpoints", "newest that stay; 0: all", field<kIn, &S::keep>,
     kCount, {}, "keep_latest_k save_total_limit"},
    {"checkpoint", "async", "", "training goes on while files are written", field<kIn, &S::async>,
     {}, {}, "async_mode"},
    {"checkpoint", "on_error", "", "when a checkpoint cannot be written; at the end: stop",
     field<kIn, &S::on_error>, {}, {"continue", "stop"}, ""},
    {"checkpoint", "resume", "", "never, if_present, or the folder of a checkpoint or run",
     field<kIn, &S::resume>, {}, {}, "load resume_from load_step"},
  });
  // clang-format on
}

void metrics_section(std::vector<Key>& keys) {
  using S = RunConfig::Metrics;
  constexpr auto kIn = &RunConfig::metrics;
  // clang-format off
  keys.insert(keys.end(), {
    {"metrics", "log_every", "steps", "between console lines", field<kIn, &S::log_every>,
     kPositive, {}, "log_freq log_interval logging_steps"},
    {"metrics", "eval_every", "steps", "between validations; 0: at the end",
     field<kIn, &S::eval_every>, kCount, {}, "eval_interval eval_steps"},
    {"metrics", "sample_every", "steps", "between text samples; 0: none",
     field<kIn, &S::sample_every>, kCount, {}, "sample_interval"},
    {"metrics", "sample_prompt", "", "text that samples begin with",
     field<kIn, &S::sample_prompt>},
    {"metrics", "sample_tokens", "tokens", "length of a sample", field<kIn, &S::sample_tokens>,
     kPositive},
    {"metrics", "logit_alert", "",
     "|logit| or attention log-sum-exp above which a step warns; 0: never",
     field<kIn, &S::logit_alert>, Bounds{.least = 0, .most = kInf}},
    {"metrics", "trace_steps", "steps", "first steps whose trace is written",
     field<kIn, &S::trace_steps>, kCount, {}, "profile_steps"},
  });
  // clang-format on
}

void comm_section(std::vector<Key>& keys) {
  using S = RunConfig::Comm;
  constexpr auto kIn = &RunConfig::comm;
  // clang-format off
  keys.insert(keys.end(), {
    {"comm", "backend", "", "empty: thread, or mpi under a launcher", field<kIn, &S::backend>, {},
     {"", "self", "thread", "mpi", "nccl"}},
    {"comm", "timeout_s", "seconds", "longest wait for a peer", field<kIn, &S::timeout_s>,
     Bounds{.least = 0, .most = kInf, .least_open = true, .most_open = true}, {},
     "timeout train_timeout init_timeout"},
    {"comm", "checked", "", "ranks compare every operation before it runs",
     field<kIn, &S::checked>},
  });
  // clang-format on
}

void debug_section(std::vector<Key>& keys) {
  using S = RunConfig::Debug;
  constexpr auto kIn = &RunConfig::debug;
  // clang-format off
  keys.insert(keys.end(), {
    {"debug", "check_replicas", "steps",
     "between comparisons of what several ranks hold, bit by bit; 0: never",
     field<kIn, &S::check_replicas>, Bounds{.least = 0, .most = 1 << 30}},
    {"debug", "fault", "",
     "a call to go wrong, to see the job fail: rank=R,operation=O,group=G,sequence=N,action="
     "sleep|throw|die|shape|other", field<kIn, &S::fault>},
  });
  // clang-format on
}

}  // namespace

void add_job_keys(std::vector<Key>& keys) {
  parallel_section(keys);
  optimizer_section(keys);
  lr_schedule_section(keys);
  checkpoint_section(keys);
  metrics_section(keys);
  comm_section(keys);
  debug_section(keys);
}

}  // namespace quatrain

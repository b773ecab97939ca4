// SPDX-License-Identifier: Apache-2.0
// Runs of papers: SC21 (arXiv:2104.04473), Korthikanti et al. (arXiv:2205.05198), zero bubble
// (arXiv:2401.10241), MoE parallel folding (arXiv:2504.14960), Llama 3 (arXiv:2407.21783).
#include <fmt/format.h>

#include "bench/planner/runs.h"
#include "quatrain/spec/model_io.h"

namespace quatrain::bench {
namespace {

Shape shape_of(const CsvLine& line, int vocab, int positions) {
  return {.hidden = whole(line, "hidden"),
          .layers = whole(line, "layers"),
          .heads = whole(line, "heads"),
          .vocab = vocab,
          .positions = positions};
}

// Sets micro-batches of a step and data rank; false where they are no whole number.
bool set_microbatches(Geometry& g, std::int64_t global_batch) {
  const std::int64_t once = g.micro_batch * g.dp();
  g.microbatches = global_batch / once;
  return global_batch % once == 0 && g.microbatches > 0;
}

}  // namespace

void read_megatron_2021(const std::string& folder, std::vector<PublishedRun>& runs) {
  for (const CsvLine& line : read_csv(folder + "/megatron2021_table1_weak_scaling.csv")) {
    PublishedRun run{.table = "SC21 table 1", .software = "Megatron-LM 2021"};
    run.label = run.group = line.at("params_B") + "B";
    run.job.model = gpt(shape_of(line, 51200, 2048));
    run.job.cluster = cluster("a100-sxm-80gb");
    run.job.cluster.network_bandwidth = 25e9;
    run.job.gpus = whole(line, "gpus");
    run.job.seq = 2048;
    run.job.global_batch = whole(line, "global_batch");
    for (const int micro_batch : {1, 2, 4, 8, 16}) {  // not printed: the authors took the best
      Geometry g{.dp_shard = whole(line, "dp"), .tp = whole(line, "tp"), .pp = whole(line, "pp")};
      g.micro_batch = micro_batch;
      g.recompute = Recompute::kFull;
      if (set_microbatches(g, run.job.global_batch)) run.geometries.push_back(g);
    }
    run.seconds = number(line, "step_time_s_derived");
    runs.push_back(std::move(run));
  }
}

void read_korthikanti(const std::string& folder, std::vector<PublishedRun>& runs) {
  for (const CsvLine& line : read_csv(folder + "/korthikanti2022_table3_5_time.csv")) {
    for (const bool selective : {false, true}) {
      PublishedRun run{.table = "Korthikanti table 5", .software = "Megatron-LM 2022"};
      run.group = line.at("model");
      run.label = run.group + (selective ? " sp+selective" : " full");
      run.job.model = gpt(shape_of(line, 51200, 2048));
      run.job.cluster = cluster("a100-sxm-80gb");
      run.job.gpus = whole(line, "gpus");
      run.job.seq = 2048;
      run.job.global_batch = whole(line, "global_batch");
      Geometry g{
          .tp = whole(line, "tp"), .pp = whole(line, "pp"), .chunks = whole(line, "interleave_m")};
      g.dp_shard = run.job.gpus / (g.tp * g.pp);
      g.micro_batch = whole(line, "microbatch");
      g.sequence_parallel = g.gather_again = selective;
      g.recompute = selective ? Recompute::kSelective : Recompute::kFull;
      if (g.chunks > 1) g.schedule = "interleaved-1f1b";
      if (set_microbatches(g, run.job.global_batch)) run.geometries.push_back(g);
      run.seconds = number(line, selective ? "iter_s_seqpar_selective" : "iter_s_full_recompute");
      if (run.seconds == 0) continue;  // not run
      runs.push_back(std::move(run));
    }
  }
}

void read_zero_bubble(const std::string& folder, std::vector<PublishedRun>& runs) {
  const std::map<std::string, std::string_view> schedules = {
      {"1F1B", "1f1b"}, {"1F1B-I", "interleaved-1f1b"}, {"ZB-1p", "zb-h1"}, {"ZB-2p", "zb-h2"}};
  for (const CsvLine& line : read_csv(folder + "/zero_bubble_tables.csv")) {
    const auto schedule = schedules.find(line.at("schedule"));
    if (schedule == schedules.end() || number(line, "samples_per_gpu_s") == 0) continue;
    PublishedRun run{.table = "zero-bubble", .software = "Megatron-LM zero-bubble"};
    run.group = line.at("model");
    run.label = fmt::format("{} {} m{}", run.group, schedule->first, line.at("num_microbatches"));
    run.job.model = gpt(shape_of(line, 50304, whole(line, "seq")));
    run.job.cluster = cluster("a100-sxm-80gb");
    run.job.gpus = whole(line, "gpus");
    run.job.seq = whole(line, "seq");
    Geometry g{.pp = whole(line, "pp_stages"), .schedule = schedule->second};
    g.micro_batch = whole(line, "microbatch");
    g.microbatches = whole(line, "num_microbatches");
    // Their interleaving: one block a chunk where the two at the ends are counted as one.
    if (schedule->first == "1F1B-I") g.chunks = (whole(line, "layers") + 2) / g.pp;
    run.job.global_batch = g.micro_batch * g.microbatches;
    run.geometries.push_back(g);
    run.seconds = static_cast<double>(run.job.global_batch) /
                  (number(line, "samples_per_gpu_s") * run.job.gpus);
    run.gib = number(line, "peak_mem_gb", NAN);
    runs.push_back(std::move(run));
  }
}

void read_moe_folding(const std::string& folder, std::vector<PublishedRun>& runs) {
  for (const CsvLine& line : read_csv(folder + "/moe_parallel_folding.csv")) {
    const std::string& name = line.at("model");
    const bool known = name == "Mixtral-8x22B" || name == "Mixtral 8x22B";
    if (!known) continue;
    PublishedRun run{.table = "MoE folding", .software = "Megatron-Core MoE"};
    run.group = line.at("method");
    run.job.model = catalog_model("mixtral-8x22b").spec;
    run.job.cluster = cluster("h100-sxm-80gb");
    run.job.gpus = whole(line, "gpus");
    run.job.seq = whole(line, "seq");
    run.job.global_batch = whole(line, "gbs");
    run.label = fmt::format("{} {} gpus seq {}", run.group, run.job.gpus, run.job.seq);
    for (const int micro_batch : {1, 2, 4, 8}) {  // not printed
      Geometry g{.tp = whole(line, "tp"),
                 .cp = whole(line, "cp"),
                 .pp = whole(line, "pp"),
                 .ep = whole(line, "ep"),
                 .etp = whole(line, "etp")};
      if (run.group == "MCore" || run.group == "TP+EP+DP") g.etp = g.tp;
      g.dp_shard = run.job.gpus / (g.tp * g.cp * g.pp);
      g.zero = run.group.starts_with("FSDP") ? 3 : 1;
      g.micro_batch = micro_batch;
      g.sequence_parallel = g.gather_again = g.tp > 1;
      const bool fits =
          g.dp_shard > 0 && g.world() == run.job.gpus && g.ep * g.etp <= g.dp() * g.cp * g.tp;
      if (fits && set_microbatches(g, run.job.global_batch)) run.geometries.push_back(g);
    }
    run.failed = line.at("mfu_pct") == "OOM";
    if (!run.failed) {
      // Counted without masked pairs: else attention at 131,072 tokens would run near the peak.
      run.seconds = seconds_at(run.job, 989e12 * number(line, "mfu_pct") / 100, false);
    }
    if (!run.geometries.empty()) runs.push_back(std::move(run));
  }
}

void read_llama3(const std::string& folder, std::vector<PublishedRun>& runs) {
  for (const CsvLine& line : read_csv(folder + "/llama3_405b_table4.csv")) {
    PublishedRun run{.table = "Llama 3 405B", .software = "Llama 3"};
    run.job.model = catalog_model("llama-3.1-405b").spec;
    run.job.cluster = cluster("h100-sxm-80gb");
    run.job.gpus = whole(line, "gpus");
    run.job.seq = whole(line, "seq_len");
    // Gradients are reduced once a step, as in stage 1.
    Geometry g{.dp_shard = whole(line, "dp"),
               .zero = 1,
               .tp = whole(line, "tp"),
               .cp = whole(line, "cp"),
               .pp = whole(line, "pp")};
    g.cp_style = {"all_gather"};
    g.sequence_parallel = g.gather_again = true;
    g.microbatches = whole(line, "batch_per_dp");
    run.job.global_batch = g.microbatches * g.dp();
    run.group = run.label = fmt::format("{} gpus seq {}", run.job.gpus, run.job.seq);
    // Interleaved; how far is not printed. An embedding, 126 blocks and a head make 16 ranks x 8: 7
    // is the most that leaves no stage without a block here.
    for (const int chunks : {4, 7}) {
      g.chunks = chunks;
      g.schedule = "interleaved-1f1b";
      run.geometries.push_back(g);
    }
    run.seconds = seconds_at(run.job, 1e12 * number(line, "tflops_per_gpu"), false);
    runs.push_back(std::move(run));
  }
}

}  // namespace quatrain::bench

// SPDX-License-Identifier: Apache-2.0
// Runs that vendors and projects publish beside their software: nanotron's sweep, NVIDIA's step
// times, Megatron Bridge, llm-foundry, torchtitan. Rows of models that no spec of ours describes
// are left out.
#include <fmt/format.h>

#include <optional>

#include "bench/planner/runs.h"
#include "quatrain/spec/model_io.h"

namespace quatrain::bench {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Squared-ReLU blocks have two matrices; a gated block of two thirds the width has as many FLOPs.
ModelSpec nemotron(int layers, int hidden, int heads, int ffn) {
  return llama({.hidden = hidden,
                .layers = layers,
                .heads = heads,
                .kv_heads = 8,
                .ffn = 2 * ffn / 3,
                .vocab = 256000,
                .positions = 4096});
}

std::optional<ModelSpec> model_of_workload(const std::string& name) {
  if (contains(name, "Finetuning") || contains(name, "Maxtext Llama3")) return std::nullopt;
  if (contains(name, "405b")) return catalog_model("llama-3.1-405b").spec;
  if (contains(name, "Llama 3.1 70b")) return catalog_model("llama-3.1-70b").spec;
  if (contains(name, "Llama 3.1 8b")) return catalog_model("llama-3.1-8b").spec;
  if (contains(name, "Nemotron4 15b")) return nemotron(32, 6144, 48, 24576);
  if (contains(name, "340b")) return nemotron(96, 18432, 96, 73728);
  if (contains(name, "NeMo Megatron")) {
    return gpt({.hidden = 12288, .layers = 96, .heads = 96, .vocab = 51200, .positions = 2048});
  }
  return std::nullopt;
}

// Of tp's traffic, where exchanges run beside products piece by piece.
constexpr double kAsyncOverlap = 0.6;

std::string cluster_of_gpu(const std::string& gpu) {
  return contains(gpu, "GB200") ? "gb200-nvl72" : "h100-sxm-80gb";
}

// As the table says; where it does not, all that divide a rank's blocks: the best was run.
std::vector<int> chunks_of(const CsvLine& line, int blocks) {
  if (whole(line, "pp") == 1) return {1};
  if (whole(line, "vp", 0) > 0) return {whole(line, "vp")};
  std::vector<int> all;
  for (int chunks = 1; chunks <= blocks; ++chunks) {
    if (blocks % chunks == 0) all.push_back(chunks);
  }
  return all;
}

void set_precision(PublishedRun& run, bool fp8, const std::string& software) {
  run.job.fp8_products = fp8;
  run.software = software + (fp8 ? " fp8" : " bf16");
}

}  // namespace

void read_nanotron_sweep(const std::string& folder, std::vector<PublishedRun>& runs) {
  for (const CsvLine& line : read_csv(folder + "/playbook_nanotron_sweep.csv")) {
    PublishedRun run{.table = "nanotron sweep", .software = "nanotron"};
    run.group = line.at("model");
    run.contest = fmt::format("{} on {} nodes", run.group, line.at("nodes"));
    run.job.model = llama({.hidden = whole(line, "hidden"),
                           .layers = whole(line, "layers"),
                           .heads = whole(line, "heads"),
                           .kv_heads = whole(line, "kv_heads"),
                           .ffn = whole(line, "ffn"),
                           .vocab = whole(line, "vocab"),
                           .positions = 4096,
                           .tied = line.at("embeddings") == "tied"});
    run.job.cluster = cluster("h100-sxm-80gb");
    run.job.gpus = 8 * whole(line, "nodes");
    run.job.seq = 4096;
    run.job.global_batch = whole(line, "gbs");
    Geometry g{.dp_shard = whole(line, "dp"),
               .zero = whole(line, "zero", 0),
               .tp = whole(line, "tp"),
               .pp = whole(line, "pp")};
    g.sequence_parallel = g.gather_again = g.tp > 1;
    g.micro_batch = whole(line, "mbs");
    g.microbatches = whole(line, "grad_acc");
    run.geometries.push_back(g);
    run.label = fmt::format("{} dp{} tp{} pp{} zero{} mbs{}", run.contest, g.dp(), g.tp, g.pp,
                            g.zero, g.micro_batch);
    run.failed = line.at("status") != "ok";
    if (!run.failed) {
      run.seconds = static_cast<double>(run.job.global_batch * run.job.seq) /
                    (number(line, "tokens_per_s_per_gpu") * run.job.gpus);
      run.gib = number(line, "peak_gpu_mem_gb", NAN);
    }
    runs.push_back(std::move(run));
  }
}

void read_nvidia_steps(const std::string& folder, std::vector<PublishedRun>& runs) {
  for (const CsvLine& line : read_csv(folder + "/nvidia_dgxc_steptimes.csv")) {
    const std::optional<ModelSpec> model = model_of_workload(line.at("workload"));
    const double consistent = number(line, "tokens_consistency(tok*step/(gbs*seq))", 1);
    if (!model || std::abs(consistent - 1) > 0.02) continue;
    PublishedRun run;
    const bool fp8 = line.at("precision") == "FP8";
    run.table = fp8 ? "NVIDIA steps fp8" : "NVIDIA steps bf16";
    set_precision(run, fp8, "NeMo");
    run.job.model = *model;
    run.job.model.layers = whole(line, "layers", static_cast<int>(model->layers));  // some are cut
    run.job.cluster = cluster(cluster_of_gpu(line.at("gpu")));
    run.job.gpus = whole(line, "gpus");
    run.job.seq = whole(line, "seq_len");
    run.job.global_batch = whole(line, "gbs");
    Geometry g{
        .zero = 1, .tp = whole(line, "tp"), .cp = whole(line, "cp"), .pp = whole(line, "pp")};
    g.dp_shard = run.job.gpus / (g.tp * g.cp * g.pp);
    g.sequence_parallel = g.gather_again = g.tp > 1;
    g.micro_batch = whole(line, "mbs");
    g.microbatches = g.dp() > 0 ? run.job.global_batch / (g.dp() * g.micro_batch) : 0;
    const bool whole_batch = g.microbatches * g.dp() * g.micro_batch == run.job.global_batch;
    if (g.dp() < 1 || g.world() != run.job.gpus || !whole_batch || g.microbatches < 1) continue;
    for (const int chunks : chunks_of(line, static_cast<int>(run.job.model.layers) / g.pp)) {
      g.chunks = chunks;
      g.schedule = chunks > 1 ? "interleaved-1f1b" : "1f1b";
      run.geometries.push_back(g);
    }
    run.group = fmt::format("{}x{}", model->hidden, model->layers);
    run.label = fmt::format("{} {} on {}", line.at("workload"), line.at("gpu"), run.job.gpus);
    run.seconds = number(line, "step_time_s");
    runs.push_back(std::move(run));
  }
}

void read_bridge(const std::string& folder, std::vector<PublishedRun>& runs) {
  const std::map<std::string, std::string> models = {
      {"LLAMA3.1_405B", "llama-3.1-405b"}, {"LLAMA3_70B", "llama-3-70b"},
      {"LLAMA3_8B", "llama-3-8b"},         {"Qwen3_235B_a22B", "qwen3-235b-a22b"},
      {"Qwen3_30B_a3B", "qwen3-30b-a3b"},  {"DeepSeekV3", "deepseek-v3"}};
  const std::map<std::string, std::string> clusters = {{"DGX-H100", "h100-sxm-80gb"},
                                                       {"DGX-B200", "b200-sxm"},
                                                       {"DGX-B300", "b300-sxm"},
                                                       {"DGX-GB200", "gb200-nvl72"},
                                                       {"DGX-GB300", "gb300-nvl72"}};
  for (const CsvLine& line : read_csv(folder + "/nemo_megatron_bridge_perf.csv")) {
    const auto model = models.find(line.at("model"));
    const auto system = clusters.find(line.at("system"));
    const std::string& precision = line.at("precision");
    if (model == models.end() || system == clusters.end() || line.at("task") != "pre-training" ||
        precision.empty() || precision == "NVFP4" || number(line, "tokens_per_s_per_gpu") == 0) {
      continue;
    }
    PublishedRun run{.table = "Megatron Bridge"};
    run.group = model->first;
    run.job.model = catalog_model(model->second).spec;
    set_precision(run, precision != "BF16",
                  run.job.model.experts ? "Megatron Bridge experts" : "Megatron Bridge");
    run.job.cluster = cluster(system->second);
    run.job.gpus = whole(line, "gpus");
    run.job.seq = whole(line, "seq_len");
    run.job.global_batch = whole(line, "gbs");
    run.label = fmt::format("{} {} {} on {}", model->first, system->first, precision, run.job.gpus);
    // Not printed; its recipes make parts of a block again, never whole ones.
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
      Geometry g{.zero = whole(line, "fsdp_shard", 0) > 0 ? 3 : 1,
                 .tp = whole(line, "tp"),
                 .cp = whole(line, "cp"),
                 .pp = whole(line, "pp"),
                 .ep = whole(line, "ep")};
      g.dp_shard = run.job.gpus / (g.tp * g.cp * g.pp);
      g.chunks = g.pp > 1 ? whole(line, "vp") : 1;
      if (g.chunks > 1) g.schedule = "interleaved-1f1b";
      g.sequence_parallel = g.gather_again = g.tp > 1;
      g.micro_batch = whole(line, "mbs");
      g.recompute = recompute;
      g.microbatches = g.dp() > 0 ? run.job.global_batch / (g.dp() * g.micro_batch) : 0;
      const bool whole_batch = g.microbatches * g.dp() * g.micro_batch == run.job.global_batch;
      if (g.dp() < 1 || g.world() != run.job.gpus || !whole_batch || g.microbatches < 1) continue;
      run.geometries.push_back(g);
    }
    run.seconds = static_cast<double>(run.job.global_batch * run.job.seq) /
                  (number(line, "tokens_per_s_per_gpu") * run.job.gpus);
    if (!run.geometries.empty()) runs.push_back(std::move(run));
  }
}

void read_llmfoundry(const std::string& folder, std::vector<PublishedRun>& runs) {
  const std::map<std::string, std::string> clusters = {{"a100_40gb", "a100-sxm-40gb"},
                                                       {"a100_80gb", "a100-sxm-80gb"},
                                                       {"h100_80gb", "h100-sxm-80gb"}};
  for (const CsvLine& line : read_csv(folder + "/llmfoundry_mfu.csv")) {
    if (contains(line.at("precision"), "fp8")) continue;
    const bool hopper = line.at("gpu") == "h100_80gb";
    PublishedRun run{.table = "llm-foundry FSDP",
                     .software = hopper ? "llm-foundry Hopper" : "llm-foundry"};
    run.group = line.at("model");
    run.job.model = gpt({.hidden = whole(line, "d_model"),
                         .layers = whole(line, "n_layers"),
                         .heads = whole(line, "n_heads"),
                         .vocab = 50368,
                         .positions = whole(line, "seq_len")});
    run.job.cluster = cluster(clusters.at(line.at("gpu")));
    run.job.gpus = whole(line, "gpus");
    run.job.seq = whole(line, "seq_len");
    run.job.global_batch = whole(line, "global_batch_seqs");
    Geometry g{.dp_shard = run.job.gpus, .zero = line.at("sharding") == "FULL_SHARD" ? 3 : 2};
    g.micro_batch = whole(line, "microbatch");
    g.microbatches = whole(line, "grad_accum");
    if (line.at("act_ckpt") == "True") g.recompute = Recompute::kFull;
    if (g.micro_batch * g.microbatches * g.dp() != run.job.global_batch) continue;
    run.geometries.push_back(g);
    run.label = fmt::format("{} {} on {} seq {} mbs {}", run.group, line.at("gpu"), run.job.gpus,
                            run.job.seq, g.micro_batch);
    run.seconds = static_cast<double>(run.job.global_batch) * static_cast<double>(run.job.seq) /
                  number(line, "tokens_per_s");
    runs.push_back(std::move(run));
  }
}

void read_torchtitan(const std::string& folder, std::vector<PublishedRun>& runs) {
  for (const CsvLine& line : read_csv(folder + "/torchtitan.csv")) {
    PublishedRun run{.table = "torchtitan", .software = "torchtitan"};
    run.job.fp8_products = contains(line.at("precision"), "fp8");
    run.tensor_overlap = whole(line, "async_tp", 0) > 0 ? kAsyncOverlap : 0;
    run.group = line.at("model");
    run.job.model = catalog_model("llama-" + run.group.substr(5)).spec;  // "llama3.1-8b"
    run.job.cluster = cluster("h100-sxm-80gb");
    if (contains(line.at("hw"), "HBM2e")) {
      run.job.cluster.memory_bytes = 96e9;
      run.job.cluster.memory_bandwidth = 2.4e12;
    }
    run.job.gpus = whole(line, "gpus");
    run.job.seq = whole(line, "seq_len");
    Geometry g{.dp_shard = whole(line, "fsdp"),
               .zero = 3,
               .tp = whole(line, "tp"),
               .cp = whole(line, "cp"),
               .pp = whole(line, "pp")};
    g.cp_style = {"all_gather"};  // its default
    g.sequence_parallel = g.tp > 1;
    g.recompute = line.at("act_ckpt") == "full" ? Recompute::kFull : Recompute::kSelective;
    const int local = whole(line, "local_bs");
    g.microbatches = g.pp;  // its default
    g.micro_batch = local / g.pp;
    if (line.at("schedule") == "Interleaved1F1B") {
      g.schedule = "interleaved-1f1b";
      g.chunks = 2;
    }
    run.job.global_batch = g.micro_batch * g.microbatches * g.dp();
    run.geometries.push_back(g);
    run.label = fmt::format("{} {} {} {}", run.group, line.at("table"), line.at("precision"),
                            line.at("schedule"));
    run.seconds = static_cast<double>(run.job.global_batch * run.job.seq) /
                  (number(line, "tokens_per_s_per_gpu") * run.job.gpus);
    run.gib = number(line, "peak_mem_gib", NAN);
    runs.push_back(std::move(run));
  }
}

}  // namespace quatrain::bench

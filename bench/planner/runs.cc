// SPDX-License-Identifier: Apache-2.0
// See runs.h: what the readers of tables share.
#include "bench/planner/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "apps/csv.h"
#include "quatrain/base/check.h"
#include "quatrain/base/file.h"
#include "quatrain/spec/model_io.h"

namespace quatrain::bench {

std::vector<CsvLine> read_csv(const std::string& file) {
  std::vector<CsvLine> lines;
  if (!std::filesystem::exists(file)) return lines;
  const std::vector<apps::CsvRow> rows = apps::parse_csv(read_file(file));
  for (std::size_t r = 1; r < rows.size(); ++r) {
    CsvLine line;
    for (std::size_t c = 0; c < rows[r].size() && c < rows[0].size(); ++c) {
      line[rows[0][c]] = rows[r][c];
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

double number(const CsvLine& line, const std::string& key, double otherwise) {
  const auto found = line.find(key);
  if (found == line.end()) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(found->second.c_str(), &end);
  return end == found->second.c_str() ? otherwise : value;
}

int whole(const CsvLine& line, const std::string& key, int otherwise) {
  return static_cast<int>(std::lround(number(line, key, otherwise)));
}

// Scores in 16 bit: written by the product, read and written by the softmax, read, written and
// masked by dropout, read by the second product (Megatron-LM before FlashAttention).
const std::vector<Software>& software_table() {
  // Attention: FlashAttention-2 reaches 335 TFLOP/s on H100 (arXiv:2307.08691), cuDNN's kernel
  // more; FlashAttention 1 a third of an A100's peak. Traffic of tp under products: NeMo's ring
  // exchange.
  // Element-wise kernels that are not fused: the zero-bubble paper's table 6 (forward less weights'
  // gradients: 195 to 221 ps a token and channel) asks for half as much again.
  constexpr double kUnfused = 1.5;
  static const std::vector<Software> table = {
      {.name = "Megatron-LM 2021",
       .score_bytes = 13,
       .pass_factor = kUnfused,
       .whole_again = 1,
       .whole_logits = 6},
      {.name = "Megatron-LM 2022",
       .score_bytes = 13,
       .pass_factor = kUnfused,
       .whole_again = 1,
       .whole_logits = 6},
      {.name = "Megatron-LM zero-bubble",
       .score_bytes = 13,
       .pass_factor = kUnfused,
       .whole_again = 1,
       .whole_logits = 6},
      // Eager PyTorch; the network is that of the authors' bandwidth plot: all_reduce of 256 MB at
      // 160, 100 and 65 GB/s on 4, 8 and 32 nodes.
      {.name = "nanotron",
       .pass_factor = kUnfused,
       .whole_logits = 14,
       .host_seconds = 10e-6,
       .attention = 0.34,
       .network_decay = 1.2},
      {.name = "NeMo bf16", .whole_again = 1, .whole_logits = 6, .tensor_overlap = 0.85},
      {.name = "NeMo fp8", .whole_again = 1, .whole_logits = 6, .tensor_overlap = 0.85},
      {.name = "Megatron Bridge bf16", .whole_again = 1, .whole_logits = 6, .tensor_overlap = 0.85},
      {.name = "Megatron Bridge experts bf16",
       .whole_again = 1,
       .whole_logits = 6,
       .tensor_overlap = 0.85},
      {.name = "Megatron Bridge experts fp8",
       .whole_again = 1,
       .whole_logits = 6,
       .tensor_overlap = 0.85},
      {.name = "Megatron Bridge fp8", .whole_again = 1, .whole_logits = 6, .tensor_overlap = 0.85},
      {.name = "llm-foundry",
       .pass_factor = kUnfused,
       .whole_logits = 6,
       .host_seconds = 8e-6,
       .attention = 0.34},
      {.name = "llm-foundry Hopper",
       .pass_factor = kUnfused,
       .whole_logits = 6,
       .host_seconds = 8e-6,
       .attention = 0.18},
      {.name = "Megatron-Core MoE", .whole_again = 1, .whole_logits = 6, .tensor_overlap = 0.5},
      {.name = "torchtitan", .remade = 0.5, .whole_logits = 6, .attention = 0.22},
      {.name = "Llama 3", .whole_logits = 6},
  };
  return table;
}

const Software& software(const std::string& name) {
  const auto found = std::ranges::find(software_table(), name, &Software::name);
  CHECK(found != software_table().end(), "no software {}", name);
  return *found;
}

void put_on(ClusterSpec& cluster, const Software& software) {
  cluster.score_bytes = software.score_bytes;
  cluster.pass_factor = software.pass_factor;
  cluster.whole_again = software.whole_again;
  cluster.remade = software.remade;
  cluster.whole_logits = software.whole_logits;
  cluster.tensor_overlap = software.tensor_overlap;
  cluster.host_seconds = software.host_seconds;
  if (software.attention > 0) cluster.attention_efficiency = software.attention;
  if (software.network_decay < 0) return;
  cluster.network_efficiency = 1;
  cluster.network_decay = software.network_decay;
}

std::vector<PublishedRun> published_runs(const std::string& folder) {
  std::vector<PublishedRun> runs;
  read_megatron_2021(folder, runs);
  read_korthikanti(folder, runs);
  read_zero_bubble(folder, runs);
  read_nanotron_sweep(folder, runs);
  read_nvidia_steps(folder, runs);
  read_bridge(folder, runs);
  read_llmfoundry(folder, runs);
  read_moe_folding(folder, runs);
  read_torchtitan(folder, runs);
  read_llama3(folder, runs);
  return runs;
}

namespace {

ModelSpec parsed(const std::string& json) {
  ModelResult result = model_from_hub_json(json, "table");
  throw_if_any(result.problems);
  return result.spec;
}

}  // namespace

ModelSpec gpt(const Shape& s) {
  return parsed(
      fmt::format(R"({{"model_type":"gpt2","n_embd":{},"n_layer":{},"n_head":{},"vocab_size":{},)"
                  R"("n_positions":{}}})",
                  s.hidden, s.layers, s.heads, s.vocab, s.positions));
}

ModelSpec llama(const Shape& s) {
  return parsed(
      fmt::format(R"({{"model_type":"llama","hidden_size":{},"num_hidden_layers":{},)"
                  R"("num_attention_heads":{},"num_key_value_heads":{},"intermediate_size":{},)"
                  R"("vocab_size":{},"max_position_embeddings":{},"tie_word_embeddings":{}}})",
                  s.hidden, s.layers, s.heads, s.kv_heads, s.ffn, s.vocab, s.positions, s.tied));
}

double seconds_at(const Job& job, double flops, bool full_attention) {
  LayerTable table(job);
  const ModelSpec& m = job.model;
  double per_sequence = table.model_flops_per_sequence();
  if (full_attention) {  // as many pairs again as a causal mask leaves
    per_sequence += 6.0 * static_cast<double>(m.layers) * static_cast<double>(m.heads) *
                    static_cast<double>(m.head_dim) * static_cast<double>(job.seq) *
                    static_cast<double>(job.seq);
  }
  return per_sequence * static_cast<double>(job.global_batch) / (flops * job.gpus);
}

}  // namespace quatrain::bench

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

namespace {

using Facts = std::vector<std::pair<double ClusterSpec::*, double>>;

// Element-wise kernels that are not fused: the zero-bubble paper's table 6 (forward less weights'
// gradients: 195 to 221 ps a token and channel) asks for half as much again.
constexpr std::pair kUnfused{&ClusterSpec::pass_factor, 1.5};
// Bytes a logit: 16 bit and a wide copy; with what a loss of several kernels leaves beside it, 14.
constexpr std::pair kLogits{&ClusterSpec::whole_logits, 6.0};
constexpr std::pair kWaits{&ClusterSpec::tensor_overlap, 0.0};  // for all of tp's traffic
constexpr std::pair kWholeAgain{&ClusterSpec::whole_again, 1.0};

// Before FlashAttention. Scores in 16 bit: written by the product, read and written by the softmax,
// read, written and masked by dropout, read by the second product.
Facts early_megatron() {
  return {{&ClusterSpec::score_bytes, 13}, kUnfused, kWholeAgain, kLogits, kWaits};
}

// `overlap`: of tp's traffic with products, by NeMo's ring exchange.
Facts megatron(double overlap) {
  return {kWholeAgain, kLogits, {&ClusterSpec::tensor_overlap, overlap}};
}

// Eager PyTorch. `host`: seconds to start a kernel; `attention`: share of the peak.
Facts eager(double host, double attention) {
  return {kUnfused,
          kLogits,
          kWaits,
          {&ClusterSpec::host_seconds, host},
          {&ClusterSpec::attention_efficiency, attention}};
}

// The network is that of the authors' bandwidth plot: all_reduce of 256 MB at 160, 100 and 65 GB/s
// on 4, 8 and 32 nodes.
Facts nanotron() {
  Facts facts = eager(10e-6, 0.34);
  facts.insert(facts.end(), {{&ClusterSpec::whole_logits, 14},
                             {&ClusterSpec::network_efficiency, 1},
                             {&ClusterSpec::network_decay, 1.2}});
  return facts;
}

}  // namespace

// Attention: FlashAttention-2 reaches 335 TFLOP/s on H100 (arXiv:2307.08691), cuDNN's kernel more;
// FlashAttention 1 a third of an A100's peak. That of llm-foundry on H100 and of torchtitan: as
// their rows of the longest sequences have it.
const std::vector<Software>& software_table() {
  static const std::vector<Software> table = {
      {"Megatron-LM 2021", early_megatron()},
      {"Megatron-LM 2022", early_megatron()},
      {"Megatron-LM zero-bubble", early_megatron()},
      {"nanotron", nanotron()},
      {"NeMo bf16", megatron(0.85)},
      {"NeMo fp8", megatron(0.85)},
      {"Megatron Bridge bf16", megatron(0.85)},
      {"Megatron Bridge fp8", megatron(0.85)},
      {"Megatron Bridge experts bf16", megatron(0.85)},
      {"Megatron Bridge experts fp8", megatron(0.85)},
      {"Megatron-Core MoE", megatron(0.5)},
      {"llm-foundry", eager(8e-6, 0.34)},
      {"llm-foundry Hopper", eager(8e-6, 0.18)},
      {"torchtitan",
       {{&ClusterSpec::remade, 0.5}, kLogits, {&ClusterSpec::attention_efficiency, 0.22}}},
      {"Llama 3", {kLogits, kWaits}},
  };
  return table;
}

const Software& software(const std::string& name) {
  const auto found = std::ranges::find(software_table(), name, &Software::name);
  CHECK(found != software_table().end(), "no software {}", name);
  return *found;
}

void put_on(ClusterSpec& cluster, const Software& software) {
  for (const auto& [member, value] : software.facts) cluster.*member = value;
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

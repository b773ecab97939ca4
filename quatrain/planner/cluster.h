// SPDX-License-Identifier: Apache-2.0
// What a cluster is, as plain data: one accelerator, the fast links that join some of them into a
// domain, the network between domains, and what software takes of all that. The catalogue is
// configs/catalog/clusters/<name>.toml; any other file with these keys is a cluster as well.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/spec/model_spec.h"

namespace quatrain {

// kSwitch: any two of a domain at full bandwidth. kMesh: each pair has a link of its own. kTorus:
// neighbours only; a group uses the links of the axes that it spans.
enum class Topology : std::uint8_t { kSwitch, kMesh, kTorus };

// Counts are doubles, since they enter formulas only.
struct ClusterSpec {
  std::string name;
  double peak_bf16 = 0, peak_fp8 = 0, peak_fp32 = 0;  // dense FLOP/s of one accelerator
  double memory_bytes = 0;
  double memory_bandwidth = 0;                          // bytes/s
  double memory_efficiency = 1;                         // of large streaming kernels
  double gemm_efficiency = 1, gemm_efficiency_fp8 = 0;  // best shape over the peak
  double sustained = 0.87;          // of the best shape's rate, what long runs hold: power, heat
  double attention_efficiency = 1;  // causal forward over the peak
  double compute_units = 1;         // that take one tile of a product each
  double tile = 128;                // rows and columns of one
  double inner_ramp = 150;        // inner length of a product at which half of the rate is reached
  double theft = 0.1;             // hidden traffic slows what hides it by this share of itself
  double grouped_efficiency = 1;  // of many small products against one
  double launch_seconds = 0;
  // Standard deviation of what equal work takes ranks, over its mean; all wait for the slowest.
  double jitter = 0;
  // Share of its time that a rank saves while those that share its host's memory stand still.
  double solo_gain = 0;
  Topology topology = Topology::kSwitch;
  double torus_axes = 1;
  double domain = 1;             // accelerators that the fast links join
  double domain_bandwidth = 0;   // bytes/s an accelerator, one way; of a torus: along one axis
  double domain_efficiency = 1;  // of gathers and reductions
  double all_reduce_gain = 1;    // of reductions inside the switch over a gather and a reduction
  double domain_latency = 0;     // seconds a step
  double network_bandwidth = 0;
  double network_efficiency = 1;
  double network_latency = 0;
  double network_decay = 0;  // bandwidth over n domains: divided by 1 + this x log2(n)
  double overhead_bytes = 0;
  double fragmentation = 0;  // share of what is allocated
  double failure_hours = 0;  // of one accelerator, between failures that end a job; 0: not known
  // Of the software that will run there, beside Quatrain's own (docs/cost_model.md).
  double stash_factor = 1;  // activations kept, against what Quatrain keeps
  double whole_logits = 0;  // bytes kept for each logit of a micro-batch; 0: chunks, as Quatrain
  // Moved for each score of attention, forward, where all of them are in memory; 0: in blocks, as
  // Quatrain.
  double score_bytes = 0;
  double pass_factor = 1;  // bytes that element-wise kernels move, against Quatrain's
  // 1: full recomputation makes whole blocks again; 0: as Quatrain, all but their results.
  double whole_again = 0;
  double remade = 0;  // share of a block's products that selective recomputation makes again
  double tensor_overlap = 0;  // share of tp's and ep's traffic that runs under products
  double host_seconds = 0;    // to start one kernel: a layer takes no less than all of its

  double peak(Dtype dtype) const { return dtype == Dtype::kBFloat16 ? peak_bf16 : peak_fp32; }
};

std::vector<std::string> catalog_clusters();
// A catalogue entry or the path of a file. Throws ConfigError with the nearest names, or with every
// key that is unknown, missing or out of range.
ClusterSpec cluster(std::string_view name_or_path);
ClusterSpec cluster_from_toml(std::string_view text, std::string_view where);
// All keys; reading them again gives the same cluster but for its name.
std::string to_toml(const ClusterSpec& cluster);

}  // namespace quatrain

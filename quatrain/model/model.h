// SPDX-License-Identifier: Apache-2.0
// A model as a row of layers, built from a ModelSpec by one visible path: embedding, blocks, head.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/nn/context_parallel.h"
#include "quatrain/nn/layer.h"
#include "quatrain/nn/moe.h"
#include "quatrain/nn/tensor_parallel.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/plan.h"
#include "quatrain/spec/stages.h"

namespace quatrain {

struct BuildOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  Recompute recompute = Recompute::kNone;
  std::vector<std::string> trainable{};  // glob patterns; empty: all
  std::int64_t head_chunk_tokens = 512;  // positions whose logits exist at once
  std::int64_t max_positions = 0;        // of the rotary table; 0: the spec's
  Communicator* tp = nullptr;            // ranks that share each matrix (borrowed); null: one alone
  TensorParallelOptions tensor{};        // how they do
  // Ranks that exchange rows with this one, of expert_exchange() (borrowed), and its place among
  // those that hold experts; null: this rank's share of tp holds all of them.
  Communicator* expert_exchange = nullptr;
  ExpertSplit experts{};
  int ep_chunks = 1;           // pieces in which they exchange rows
  Communicator* cp = nullptr;  // ranks that share sequences (borrowed); null: one alone
  ContextSplit context{};      // how they do
  MakePlaceAttention place_attention = make_place_attention;  // what attends to them
  RouterTraining router{};
  std::vector<StageLayers> stages{};  // this rank's, in order; empty: all layers are one stage
};

// A rank's stages of the model, each a run of its layers. Owns units and layers; a tied head
// borrows the embedding's table, or has a copy where that is on another rank.
class Model {
 public:
  // Throws ConfigError for a model that cannot be built or a pattern that matches no parameter.
  Model(const ModelSpec& spec, const BuildOptions& options);
  Model(Model&&) noexcept;
  ~Model();

  const ModelSpec& spec() const { return spec_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  const TensorParallel& tensor_parallel() const { return *tp_; }
  const ContextParallel& context_parallel() const { return *cp_; }
  // How this rank shares matrices and experts with others.
  const TensorSplit& split() const { return split_; }
  // Key and value heads of this rank, and how many neighbours hold the same.
  std::int64_t local_kv_heads() const;
  int kv_repeat() const;
  std::span<const StageLayers> stages() const { return stages_; }
  // Of all stages, one after the other; of the one that `stages()` has at `index`.
  std::span<const std::unique_ptr<Layer>> layers() const { return layers_; }
  std::span<const std::unique_ptr<Layer>> layers_of(std::size_t index) const;
  // In the order of unit_specs().
  std::span<const std::unique_ptr<ParamUnit>> units() const { return units_; }
  // By name; BugError when absent.
  Param& param(std::string_view name) const;
  void allocate(bool with_grads);
  void initialise(std::uint64_t seed);

 private:
  ModelSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<StageLayers> stages_;
  std::unique_ptr<Communicator> alone_;  // where no ranks were given
  std::unique_ptr<TensorParallel> tp_;
  TensorSplit split_;
  std::unique_ptr<ExpertParallel> ep_;
  std::unique_ptr<ContextParallel> cp_;
  std::vector<std::unique_ptr<ParamUnit>> units_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

// Of a whole model: runs the layers in order, one stash a layer; returns the last one's result. For
// tests and decoding. FLOPs are counted as the forward's.
at::Tensor forward_all(Model& model, const at::Tensor& tokens_BT, const Pass& pass,
                       std::vector<Stash>& stashes);
// Fused backward of what forward_all kept (+= into pass.grads): the halves of each layer in turn.
void backward_all(Model& model, const Pass& pass, std::vector<Stash>& stashes);

}  // namespace quatrain

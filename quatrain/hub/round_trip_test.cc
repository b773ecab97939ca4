// SPDX-License-Identifier: Apache-2.0
// Folders into checkpoints and back out: every family, the values where they belong, and what is
// refused. The folders of transformers itself are in tests/cli/hub_test.py.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/hub/export.h"
#include "quatrain/hub/import.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/testing/fused_experts.h"
#include "quatrain/hub/weight_files.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kRotary = R"("hidden_size": 16, "num_hidden_layers": 2,
  "num_attention_heads": 8, "intermediate_size": 12, "vocab_size": 11,
  "max_position_embeddings": 16)";
constexpr const char* kLlama =
    R"({{"model_type": "llama", "num_key_value_heads": {}, "attention_bias": true,
  "mlp_bias": true, "tie_word_embeddings": {}, {}}})";
constexpr const char* kMixtral =
    R"({{"model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": {},
  "num_experts_per_tok": 2, {}}})";
constexpr const char* kDeepseek =
    R"({{"model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2,
  "moe_intermediate_size": 6, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2,
  "topk_group": 1, "q_lora_rank": null, "kv_lora_rank": 8, "qk_nope_head_dim": 4,
  "qk_rope_head_dim": 2, "v_head_dim": 4, {}}})";

std::string llama(int kv_heads, bool tied = false) {
  return fmt::format(kLlama, kv_heads, tied, kRotary);
}
std::string mixtral(int experts) { return fmt::format(kMixtral, experts, kRotary); }
std::string qwen3_moe() {
  return fmt::format(R"({{"model_type": "qwen3_moe", "num_key_value_heads": 2, "head_dim": 4,
  "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
  "mlp_only_layers": [0], {}}})",
                     kRotary);
}
std::string deepseek() { return fmt::format(kDeepseek, kRotary); }

using Tensors = std::map<std::string, at::Tensor>;

class RoundTripTest : public ::testing::Test {
 protected:
  RoundTripTest() : root_(fs::temp_directory_path() / fmt::format("quatrain_trip_{}", ::getpid())) {
    fs::remove_all(root_);
    fs::create_directories(in_);
  }
  ~RoundTripTest() override { fs::remove_all(root_); }

  // The tensors that a folder of this config.json holds, each element another value.
  Tensors tensors(const std::string& config, at::ScalarType dtype = at::kFloat) {
    write_file_atomically(in_ / "config.json", config);
    ModelResult result = model_from_hub_json(config, "config.json");
    throw_if_any(result.problems);
    spec_ = result.spec;
    Tensors made;
    for (const auto& [name, parts] : hub_sources(spec_)) {
      made[name] = at::rand(file_shape(parts)).sub(0.5).to(dtype);
    }
    return made;
  }
  static void write(const Tensors& tensors, const fs::path& folder) {
    write_safetensors(folder / "model.safetensors", {tensors.begin(), tensors.end()},
                      {{"format", "pt"}});
  }
  ImportReport take(const Tensors& tensors, const ImportOptions& options = {}) {
    fs::remove_all(checkpoint_);
    write(tensors, in_);
    return import_weights(files_, in_, spec_, checkpoint_, {}, options);
  }
  std::string refusal(const Tensors& tensors, const ImportOptions& options = {}) {
    try {
      take(tensors, options);
    } catch (const DataError& error) {
      EXPECT_FALSE(fs::exists(checkpoint_ / kManifestName));
      return error.what();
    }
    return "imported";
  }
  // Exports it and returns what reading back finds.
  std::string give(const ExportOptions& options = {}) {
    CheckpointReader reader(files_, checkpoint_);
    CheckpointWeights weights(reader, spec_);
    export_weights(files_, weights, spec_, out_, options);
    write_hub_config(spec_, at::kFloat, out_);
    return export_fault(weights, spec_, out_, options);
  }
  std::string fault() {
    CheckpointReader reader(files_, checkpoint_);
    CheckpointWeights weights(reader, spec_);
    return export_fault(weights, spec_, out_, {});
  }
  Tensors exported() const {
    const WeightFiles files(out_);
    Tensors all;
    for (const std::string& name : files.names()) all[name] = files.tensor(name);
    return all;
  }
  at::Tensor saved(const std::string& name) {
    CheckpointReader reader(files_, checkpoint_);
    CheckpointWeights weights(reader, spec_);
    for (const ParameterInfo& info : parameters(spec_)) {
      if (info.name == name) return weights.rows(info, 0, info.shape[0], weights.dtype(name));
    }
    return {};
  }
  static void expect_equal(const Tensors& a, const Tensors& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) {
      ASSERT_TRUE(b.contains(name)) << name;
      EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
      EXPECT_TRUE(tensor.equal(b.at(name))) << name;
    }
  }

  const fs::path root_;
  const fs::path in_ = root_ / "in";
  const fs::path out_ = root_ / "out";
  const fs::path checkpoint_ = root_ / "step-00000000";
  PosixFileSystem files_;
  ModelSpec spec_;
};

TEST_F(RoundTripTest, BatchesAndShardsChangeNothing) {
  const Tensors made = tensors(llama(2));
  for (const std::int64_t limit : {1, 700, 3000, 1 << 30}) {
    take(made, {.batch_bytes = limit});
    EXPECT_TRUE(verify_checkpoint(files_, checkpoint_).empty());
    EXPECT_EQ(give({.max_shard_bytes = limit}), "");
    expect_equal(made, exported());
    for (const auto& file : fs::directory_iterator(out_)) {
      if (file.path().extension() != ".safetensors") continue;
      const SafetensorsFile shard(file.path());
      const auto& entries = shard.header().tensors;
      EXPECT_TRUE(entries.size() == 1 || entries.back().end <= limit) << file.path();
    }
  }
}

TEST_F(RoundTripTest, case_053_case_055_QueriesAndKeysKeepTheirRows) {
  for (const int kv_heads : {2, 8}) {
    const Tensors made = tensors(llama(kv_heads));
    take(made);
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      const std::string full = fmt::format("model.layers.1.self_attn.{}.weight", name);
      EXPECT_TRUE(saved(full).equal(made.at(full))) << full;
    }
    EXPECT_EQ(give(), "");
    expect_equal(made, exported());
  }
}

TEST_F(RoundTripTest, TakesFusedExperts) {
  for (const std::string& config : {mixtral(8), qwen3_moe(), deepseek()}) {
    const Tensors made = tensors(config);
    const Tensors stored = testing::fused_experts(made, spec_);
    ASSERT_LT(stored.size(), made.size());
    take(stored);
    EXPECT_EQ(give(), "");
    expect_equal(made, exported());
  }
}

TEST_F(RoundTripTest, RefusesFusedExpertsThatDoNotFit) {
  Tensors stored = testing::fused_experts(tensors(qwen3_moe()), spec_);
  const std::string gate_up = "model.layers.1.mlp.experts.gate_up_proj";
  const at::Tensor good = stored[gate_up];
  stored[gate_up] = good.view({2, 24, 16});
  EXPECT_THAT(refusal(stored), HasSubstr(gate_up + " is [2, 24, 16], the model's [4, 12, 16]"));
  stored[gate_up] = good.view({48, 16});
  EXPECT_THAT(refusal(stored), HasSubstr(gate_up + " is [48, 16], the model's [4, 12, 16]"));
  stored[gate_up] = good;
  stored.erase("model.layers.1.mlp.experts.down_proj");
  EXPECT_THAT(refusal(stored), HasSubstr("1 missing: model.layers.1.mlp.experts.down_proj"));
}

// Experts filled with their own number, as the layout of any expert parallelism reads them.
TEST_F(RoundTripTest, case_046_case_047_ExpertsHaveGlobalNames) {
  Tensors made = tensors(mixtral(8));
  for (auto& [name, tensor] : made) {
    const std::size_t at = name.find("experts.");
    if (at != std::string::npos) tensor.fill_(name[at + 8] - '0');
  }
  take(made);
  for (const int ep : {1, 2, 4}) {
    for (int rank = 0; rank < ep; ++rank) {
      CheckpointReader reader(files_, checkpoint_);
      for (int expert = rank * 8 / ep; expert < (rank + 1) * 8 / ep; ++expert) {
        const std::string name =
            fmt::format("model.layers.1.block_sparse_moe.experts.{}.w2.weight", expert);
        const at::Tensor values = at::empty({16, 12}, at::kFloat);
        const HeldPiece piece{{name, "weight"}, {16, 12}, whole_box(std::vector{16L, 12L}), values};
        reader.read({&piece, 1});
        EXPECT_TRUE(values.eq(expert).all().item<bool>()) << name;
      }
    }
  }
  EXPECT_EQ(give(), "");
  expect_equal(made, exported());
}

TEST_F(RoundTripTest, case_059_TiedHeads) {
  Tensors made = tensors(llama(2, true));
  const Tensors tied = made;
  EXPECT_FALSE(made.contains("lm_head.weight"));
  made["lm_head.weight"] = made["model.embed_tokens.weight"].clone();
  EXPECT_EQ(refusal(made), "imported");
  EXPECT_EQ(give(), "");
  expect_equal(tied, exported());
  made["lm_head.weight"][3][1] += 1.0;
  EXPECT_THAT(refusal(made),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("model.embed_tokens.weight")));
  EXPECT_EQ(refusal(made, {.match = {.ignore_stored_head = true}}), "imported");
  tensors(llama(2, false));
  EXPECT_THAT(refusal(tied), HasSubstr("1 missing: lm_head.weight"));
}

TEST_F(RoundTripTest, case_064_RefusesWithCountsAndNames) {
  Tensors made = tensors(mixtral(4));
  const auto gate = made.extract("model.layers.0.block_sparse_moe.gate.weight");
  made["model.layers.0.block_sparse_moe.gates.weight"] = gate.mapped();
  made["model.norm.weight"] = at::zeros({15});
  EXPECT_THAT(refusal(made), AllOf(HasSubstr("1 missing"), HasSubstr("is it model.layers.0.block"),
                                   HasSubstr("1 not in the model"), HasSubstr("[15]")));
}

TEST_F(RoundTripTest, RefusesFp8AndLeavesLaterLayers) {
  Tensors made = tensors(deepseek());
  const Tensors good = made;
  made["model.layers.2.eh_proj.weight"] = at::zeros({16, 32});
  EXPECT_EQ(take(made).ignored, std::vector<std::string>{"model.layers.2.eh_proj.weight"});
  EXPECT_EQ(give(), "");
  expect_equal(good, exported());
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  made[name] = made[name].to(at::kFloat8_e4m3fn);
  made[name + "_scale_inv"] = at::zeros({1, 1});
  EXPECT_THAT(refusal(made), AllOf(HasSubstr("F8_E4M3"), HasSubstr(name), HasSubstr("bfloat16")));
}

// The bias that chooses experts stays in float32 in a model of another dtype.
TEST_F(RoundTripTest, case_152_TypesAreKept) {
  Tensors made = tensors(deepseek(), at::kBFloat16);
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  made[bias] = at::rand({4});
  take(made);
  EXPECT_EQ(give(), "");
  expect_equal(made, exported());
  EXPECT_EQ(give({.dtype = at::kHalf}), "");
  EXPECT_EQ(exported().at(bias).scalar_type(), at::kFloat);
  EXPECT_EQ(exported().at("model.norm.weight").scalar_type(), at::kHalf);
}

// An export that is not the checkpoint's model: the layer is named.
TEST_F(RoundTripTest, case_071_NamesTheFirstLayerThatDiffers) {
  take(tensors(llama(2)));
  ASSERT_EQ(give(), "");
  const Tensors good = exported();
  Tensors bad = good;
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  bad[q] = bad[q].view({8, 2, 16}).transpose(0, 1).reshape({16, 16});
  write(bad, out_);
  EXPECT_THAT(fault(), AllOf(HasSubstr("1"), HasSubstr("is the first layer")));
  bad = good;
  bad.erase(q);
  write(bad, out_);
  EXPECT_THAT(fault(), HasSubstr("1 missing: " + q));
  write(good, out_);
  EXPECT_EQ(fault(), "");
  ModelSpec other = spec_;
  other.norm_eps = 0.5;
  write_hub_config(other, at::kFloat, out_);
  EXPECT_THAT(fault(), HasSubstr("0 is the first layer"));
}

TEST_F(RoundTripTest, case_071_NamesTheTensorOfAModelThatCannotRun) {
  take(tensors(deepseek()));
  ASSERT_EQ(give(), "");
  Tensors bad = exported();
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight";
  bad[name][0][0] += 1.0;
  write(bad, out_);
  EXPECT_THAT(fault(), HasSubstr(name));
}

TEST(ShardSize, IsDecimal) {
  EXPECT_EQ(shard_size_from_text("5GB"), 5'000'000'000);
  EXPECT_EQ(shard_size_from_text("20KB"), 20'000);
  EXPECT_EQ(shard_size_from_text("5000000000"), 5'000'000'000);
  for (const char* bad :
       {"", "GB", "5GiB", "-1", "1.5GB", "0", "5 GB", "9999999999GB", "99999999999999999999"}) {
    EXPECT_THROW(shard_size_from_text(bad), ConfigError) << bad;
  }
}

}  // namespace
}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// Folders as they come: names with and without prefix, shards, tied heads, damage; and back.
#include "quatrain/hub/hub.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/hub/weight_files.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kGpt2Config = R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 2,
  "n_head": 2, "n_positions": 12, "vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2})";
constexpr const char* kLlamaConfig = R"({"model_type": "llama", "hidden_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
  "intermediate_size": 12, "vocab_size": 11, "max_position_embeddings": 16,
  "tie_word_embeddings": false})";

ModelSpec spec_from(std::string_view json) {
  ModelResult result = model_from_hub_json(json, "config.json");
  throw_if_any(result.problems);
  return result.spec;
}
ModelSpec tied(ModelSpec spec) {
  spec.tied = true;
  return spec;
}

Model make_model(const ModelSpec& spec, at::ScalarType dtype = at::kFloat) {
  Model model(spec, {.dtype = dtype});
  model.allocate(false);
  return model;
}
Model random_model(const ModelSpec& spec, at::ScalarType dtype = at::kFloat) {
  Model model = make_model(spec, dtype);
  for (const auto& unit : model.units()) unit->flat_value().normal_();
  return model;
}
void expect_equal(const Model& a, const Model& b) {
  for (std::size_t u = 0; u < a.units().size(); ++u) {
    EXPECT_TRUE(a.units()[u]->flat_value().equal(b.units()[u]->flat_value()));
  }
}

using Tensors = std::map<std::string, at::Tensor>;

class HubTest : public ::testing::Test {
 protected:
  HubTest() : folder_(fs::temp_directory_path() / fmt::format("quatrain_hub_{}", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~HubTest() override { fs::remove_all(folder_); }

  Tensors read(const std::string& name = "model.safetensors") const {
    const SafetensorsFile file(folder_ / name);
    Tensors out;
    for (const TensorEntry& e : file.header().tensors) out.emplace(e.name, file.tensor(e.name));
    return out;
  }
  void write(const Tensors& tensors, const std::string& name = "model.safetensors",
             const std::string& format = "pt") const {
    write_safetensors(folder_ / name, {tensors.begin(), tensors.end()}, {{"format", format}});
  }
  void write_text(const std::string& name, const std::string& text) const {
    write_file_atomically(folder_ / name, text);
  }
  std::string refusal(const ModelSpec& spec, const LoadOptions& options = {}) const {
    Model model = make_model(spec);
    try {
      load_weights(model, folder_, options);
    } catch (const DataError& error) {
      return error.what();
    }
    return "loaded";
  }

  const fs::path folder_;
};

TEST_F(HubTest, SavesWhatItLoads) {
  for (const char* config : {kGpt2Config, kLlamaConfig}) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const Model saved = random_model(spec_from(config), dtype);
      save_weights(saved, folder_);
      EXPECT_EQ(find_weights(folder_).kind, FolderKind::kHuggingFace);
      const ModelSpec spec = read_hub_spec(folder_);
      Model loaded = make_model(spec, dtype);
      const LoadReport report = load_weights(loaded, folder_);
      EXPECT_EQ(report.loaded, static_cast<std::int64_t>(parameters(spec).size()));
      EXPECT_TRUE(report.ignored.empty());
      expect_equal(saved, loaded);
    }
  }
}

TEST_F(HubTest, Gpt2IsFusedAndTransposed) {
  const Model saved = random_model(spec_from(kGpt2Config));
  save_weights(saved, folder_);
  const Tensors file = read();
  const at::Tensor q = saved.param("transformer.h.1.attn.q_proj.weight").value;
  const at::Tensor k = saved.param("transformer.h.1.attn.k_proj.weight").value;
  const at::Tensor fused = file.at("transformer.h.1.attn.c_attn.weight");
  EXPECT_EQ(fused.sizes(), (std::vector<std::int64_t>{8, 24}));
  EXPECT_TRUE(fused.narrow(1, 0, 8).equal(q.t()));
  EXPECT_TRUE(fused.narrow(1, 8, 8).equal(k.t()));
  EXPECT_TRUE(file.at("transformer.h.1.attn.c_attn.bias")
                  .narrow(0, 8, 8)
                  .equal(saved.param("transformer.h.1.attn.k_proj.bias").value));
  EXPECT_EQ(file.at("transformer.h.0.mlp.c_fc.weight").sizes(), (std::vector<std::int64_t>{8, 32}));
  EXPECT_FALSE(file.contains("lm_head.weight"));
}

TEST_F(HubTest, TakesFilesWithoutPrefixAndWithBuffers) {
  const Model saved = random_model(spec_from(kGpt2Config));
  save_weights(saved, folder_);
  Tensors bare;
  for (const auto& [name, tensor] : read()) bare[name.substr(name.find('.') + 1)] = tensor;
  bare["h.0.attn.bias"] = at::ones({1, 1, 12, 12}, at::kBool);
  bare["h.1.attn.masked_bias"] = at::full({}, -1e4);
  write(bare);
  Model loaded = make_model(spec_from(kGpt2Config));
  EXPECT_THAT(load_weights(loaded, folder_).ignored,
              ElementsAre("h.0.attn.bias", "h.1.attn.masked_bias"));
  expect_equal(saved, loaded);
}

TEST_F(HubTest, ConvertsDtypes) {
  const Model saved = random_model(spec_from(kLlamaConfig));
  save_weights(saved, folder_);
  Tensors mixed = read();
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::string k = "model.layers.0.self_attn.k_proj.weight";
  mixed[q] = mixed[q].to(at::kHalf);
  mixed[k] = mixed[k].to(at::kBFloat16);
  write(mixed);
  Model loaded = make_model(spec_from(kLlamaConfig), at::kDouble);
  load_weights(loaded, folder_);
  EXPECT_TRUE(loaded.param(q).value.equal(mixed[q].to(at::kDouble)));
  EXPECT_TRUE(loaded.param(k).value.equal(mixed[k].to(at::kDouble)));
  mixed[q] = mixed[q].to(at::kInt);
  write(mixed);
  EXPECT_THAT(refusal(spec_from(kLlamaConfig)), HasSubstr("q_proj.weight has dtype I32"));
}

// A renamed prefix, one missing tensor: a hard error with counts, unless allowed.
TEST_F(HubTest, case_064_RefusesWhatDoesNotMatch) {
  const ModelSpec spec = spec_from(kLlamaConfig);
  save_weights(random_model(spec), folder_);
  const Tensors good = read();
  Tensors renamed;
  for (const auto& [name, tensor] : good) renamed["x" + name] = tensor;
  write(renamed);
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("0 of the model's 12"), HasSubstr("12 missing"),
                                   HasSubstr("12 not in the model"), HasSubstr(", ...")));
  Tensors wrong = good;
  wrong.erase("model.norm.weight");
  wrong["model.norms.weight"] = good.at("model.norm.weight");
  wrong["model.layers.0.mlp.up_proj.weight"] = at::zeros({8, 12});
  write(wrong);
  EXPECT_THAT(refusal(spec),
              AllOf(HasSubstr("10 of the model's 12"),
                    HasSubstr("1 missing: model.norm.weight (is it model.norms.weight?)"),
                    HasSubstr("1 not in the model: model.norms.weight"),
                    HasSubstr("up_proj.weight is [8, 12], the model's [12, 8]")));
  wrong["model.layers.0.mlp.up_proj.weight"] = at::zeros({12, 8});
  write(wrong);
  EXPECT_THAT(refusal(spec, {.allow_missing = true}), HasSubstr("1 not in the model"));
  EXPECT_THAT(refusal(spec, {.allow_extra = true}), HasSubstr("1 missing"));
  EXPECT_EQ(refusal(spec, {.allow_missing = true, .allow_extra = true}), "loaded");
}

TEST_F(HubTest, case_059_TiedHeads) {
  const ModelSpec spec = spec_from(kLlamaConfig);
  save_weights(random_model(tied(spec)), folder_);
  Tensors tensors = read();
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
  EXPECT_EQ(refusal(tied(spec)), "loaded");                            // absent: tie
  EXPECT_THAT(refusal(spec), HasSubstr("1 missing: lm_head.weight"));  // untied and absent
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone();
  write(tensors);
  EXPECT_EQ(refusal(tied(spec)), "loaded");  // identical: tie
  EXPECT_EQ(refusal(spec), "loaded");
  tensors["lm_head.weight"][3][1] += 1.0;
  write(tensors);
  EXPECT_THAT(refusal(tied(spec)),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("model.embed_tokens.weight"),
                    HasSubstr("tie_word_embeddings")));
  EXPECT_EQ(refusal(tied(spec), {.ignore_stored_head = true}), "loaded");
}

// Two shards of the same model, with an index.
class ShardTest : public HubTest {
 protected:
  ShardTest() {
    save_weights(random_model(spec_), folder_);
    for (const auto& [name, tensor] : read()) {
      (name.find("self_attn") == std::string::npos ? first_ : second_)[name] = tensor;
    }
    fs::remove(folder_ / "model.safetensors");
    write_shards();
    write_index("");
  }
  void write_shards() const {
    write(first_, kFirst);
    write(second_, kSecond);
  }
  // All tensors where they are, then `more`: members of weight_map, with a leading comma.
  void write_index(const std::string& more, const std::string& top = "") const {
    std::string map;
    for (const auto& [tensors, file] : {std::pair{&first_, kFirst}, std::pair{&second_, kSecond}}) {
      for (const auto& [name, tensor] : *tensors) {
        map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name, file);
      }
    }
    write_text("model.safetensors.index.json",
               fmt::format(R"({{"metadata": {{"total_size": 1}}, "weight_map": {{{}{}}}{}}})", map,
                           more, top));
  }

  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";
  const ModelSpec spec_ = spec_from(kLlamaConfig);
  Tensors first_, second_;
};

TEST_F(ShardTest, LoadsAndIsReplacedBySaving) {
  Model loaded = make_model(spec_);
  load_weights(loaded, folder_);
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_TRUE(loaded.param(q).value.equal(second_.at(q)));
  save_weights(loaded, folder_);
  EXPECT_FALSE(fs::exists(folder_ / kFirst));
  EXPECT_FALSE(fs::exists(folder_ / kIndexFile));
  Model again = make_model(spec_);
  load_weights(again, folder_);
  expect_equal(loaded, again);
}

TEST_F(ShardTest, RefusesBrokenIndexes) {
  auto with = [this](const std::string& more, const std::string& top = "") {
    write_index(more, top);
    return refusal(spec_);
  };
  for (const char* bad :
       {"../x.safetensors", "/x.safetensors", "C:x.safetensors", "a/../x.safetensors",
        "..\\\\x.safetensors", "x.bin", ".safetensors", "", "x\\n.safetensors"}) {
    EXPECT_THAT(with(fmt::format(R"(, "x": "{}")", bad)), HasSubstr("shard name")) << bad;
  }
  EXPECT_THAT(with(R"(, "x": 3)"), HasSubstr("expected a string"));
  EXPECT_THAT(with(R"(, "x": "other.safetensors")"), HasSubstr("other.safetensors is absent"));
  EXPECT_THAT(with(fmt::format(R"(, "x": "{}")", kFirst)), HasSubstr("\"x\" is not in"));
  EXPECT_THAT(with(fmt::format(R"(, "model.norm.weight": "{}")", kFirst)),
              HasSubstr("mapped twice"));
  EXPECT_THAT(with("", R"(, "weight_map": {})"), HasSubstr("\"weight_map\" twice"));
  EXPECT_THAT(with("", "}"), HasSubstr("after the end"));
  write_text("model.safetensors.index.json", R"({"metadata": {}})");
  EXPECT_THAT(refusal(spec_), HasSubstr("no \"weight_map\""));
  write_index("");
  fs::remove(folder_ / kSecond);
  EXPECT_THAT(refusal(spec_), HasSubstr("absent"));
}

// A shard with tensors that the index places elsewhere: refused; when allowed, the index decides.
TEST_F(ShardTest, case_061_TheIndexDecides) {
  const std::string norm = "model.norm.weight";
  second_[norm] = at::full({8}, 7.0);
  write(second_, kSecond);
  second_.erase(norm);
  write_index("");
  EXPECT_THAT(refusal(spec_), AllOf(HasSubstr(kSecond), HasSubstr(norm), HasSubstr(kFirst)));
  Model loaded = make_model(spec_);
  load_weights(loaded, folder_, {.allow_extra = true});
  EXPECT_TRUE(loaded.param(norm).value.equal(first_.at(norm)));
}

TEST_F(HubTest, NamesWhatAFolderIs) {
  auto why = [](const fs::path& path) {
    try {
      find_weights(path);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("found");
  };
  EXPECT_THAT(why(folder_ / "none"), HasSubstr("no such folder"));
  EXPECT_THAT(why(folder_), HasSubstr("needs config.json and model.safetensors"));
  write_text("pytorch_model.bin", "");
  EXPECT_THAT(why(folder_), HasSubstr("pytorch_model.bin; only safetensors"));
  EXPECT_THAT(why(folder_ / "pytorch_model.bin"), HasSubstr("it is a file"));
  const fs::path run = folder_ / "run";
  fs::create_directories(run);
  write_file_atomically(run / "config.toml", "");
  EXPECT_THAT(why(run), HasSubstr("the run has written no weights yet"));
  save_weights(random_model(spec_from(kLlamaConfig)), run / "weights");
  EXPECT_EQ(find_weights(run).kind, FolderKind::kRun);
  EXPECT_EQ(find_weights(run).weights, run / "weights");
  Model model = make_model(read_hub_spec(run));
  EXPECT_EQ(load_weights(model, run).loaded, 12);
}

TEST_F(HubTest, RefusesOtherFormatsAndTwoSets) {
  const ModelSpec spec = spec_from(kLlamaConfig);
  save_weights(random_model(spec), folder_);
  write(read(), "model.safetensors", "tf");
  EXPECT_THAT(refusal(spec), HasSubstr("format \"tf\""));
  write_text("model.safetensors.index.json", "{}");
  EXPECT_THAT(refusal(spec), HasSubstr("holds both"));
}

TEST_F(HubTest, TruncatedFilesAreNamed) {
  const ModelSpec spec = spec_from(kLlamaConfig);
  save_weights(random_model(spec), folder_);
  fs::resize_file(folder_ / "model.safetensors", fs::file_size(folder_ / "model.safetensors") - 1);
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("model.safetensors"), HasSubstr("truncated")));
}

}  // namespace
}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// Reading a run: resolved values, overrides, batch arithmetic, models from three sources, and the
// way to a complete file and back.
#include "quatrain/spec/run_config.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "quatrain/spec/model_io.h"
#include "quatrain/spec/model_keys.h"
#include "quatrain/spec/run_keys.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTiny = "[model]\nname = \"tiny-llama\"\n[training]\nseq_len = 64\n";

RunConfigResult parse(const std::string& text, const std::vector<std::string>& overrides = {},
                      int world = 0) {
  return parse_run_config(text, "run.toml", overrides, world);
}
RunConfig good(const std::string& text, const std::vector<std::string>& overrides = {},
               int world = 0) {
  RunConfigResult result = parse(text, overrides, world);
  EXPECT_TRUE(result.problems.empty()) << to_string(result.problems);
  return std::move(result.config);
}

// Problems of features that the runtime lacks: not of the text.
Problems without_unsupported(const Problems& problems) {
  Problems rest;
  for (const Problem& problem : problems) {
    if (problem.what.find("supported") == std::string::npos) rest.push_back(problem);
  }
  return rest;
}

TEST(RunConfig, DefaultsAreResolved) {
  const RunConfig config = good(kTiny);
  EXPECT_EQ(config.run.folder, "runs/run");
  EXPECT_EQ(config.training.micro_batch, 1);
  EXPECT_EQ(config.training.accumulation, 1);
  EXPECT_EQ(config.training.global_batch, 1);
  EXPECT_EQ(config.model, catalog_model("tiny-llama").spec);
}

TEST(RunConfig, OverridesTakeTomlOrBareStrings) {
  const RunConfig config = good(
      kTiny, {"optimizer.name=sgd", "optimizer.lr=1e-2", "run.name=7", "training.steps=12",
              "training.trainable=[\"*mlp*\"]", "data.train=a.bin", "model.num_hidden_layers=2",
              "training.dtype=bfloat16", "data.mask_documents=true"});
  EXPECT_EQ(config.optimizer.name, "sgd");
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.run.name, "7");
  EXPECT_EQ(config.run.folder, "runs/7");
  EXPECT_EQ(config.training.steps, 12);
  EXPECT_EQ(config.training.trainable, std::vector<std::string>{"*mlp*"});
  EXPECT_EQ(config.data.train, (std::vector<DataPath>{{"a.bin", 1.0}}));
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.training.dtype, Dtype::kBFloat16);
  EXPECT_TRUE(config.data.mask_documents);
}

TEST(RunConfig, CatalogueEntriesAreOverriddenKeyByKey) {
  ModelSpec expected = catalog_model("gpt2").spec;
  expected.layers = 3;
  expected.hidden = 384;
  expected.head_dim = 32;
  const RunConfig config = good("[model]\nname = \"gpt2\"\nnum_hidden_layers = 3\nn_embd = 384\n");
  EXPECT_EQ(config.model, expected) << to_hub_json(config.model);
}

TEST(RunConfig, ModelFromAFolderBesideTheFile) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "quatrain_spec_test";
  fs::create_directories(folder / "hub");
  const ModelSpec spec = catalog_model("tiny-qwen3").spec;
  std::ofstream(folder / "hub" / "config.json") << to_hub_json(spec);
  std::ofstream(folder / "run.toml") << "[model]\nhf = \"hub\"\nweights = \"hub\"\n"
                                     << "[training]\nseq_len = 64\n";
  const RunConfigResult read = read_run_config(folder / "run.toml", {}, 1);
  EXPECT_TRUE(read.problems.empty()) << to_string(read.problems);
  ModelSpec model = read.config.model;
  EXPECT_EQ(model.name, "hub");
  model.name = spec.name;
  EXPECT_EQ(model, spec);
  EXPECT_EQ(read.config.weights, (folder / "hub").string());
  fs::remove_all(folder);
  EXPECT_THROW((void)read_run_config(folder / "run.toml", {}), StorageError);
}

TEST(RunConfig, case_097_TwoBatchNumbersGiveTheThird) {
  const std::string dp4 = "[parallel]\ndp_shard = -1\ntp = 2\n" + std::string(kTiny);
  const auto numbers = [&](const std::string& batch) {
    const RunConfigResult result = parse(dp4 + batch, {}, 8);
    EXPECT_EQ(result.config.parallel.dp_shard, 4);
    EXPECT_TRUE(without_unsupported(result.problems).empty()) << to_string(result.problems);
    const auto& t = result.config.training;
    return std::vector<std::int64_t>{t.micro_batch, t.accumulation, t.global_batch};
  };
  using Numbers = std::vector<std::int64_t>;
  EXPECT_EQ(numbers("micro_batch = 2\naccumulation = 3\n"), (Numbers{2, 3, 24}));
  EXPECT_EQ(numbers("micro_batch = 2\nglobal_batch = 24\n"), (Numbers{2, 3, 24}));
  EXPECT_EQ(numbers("accumulation = 3\nglobal_batch = 24\n"), (Numbers{2, 3, 24}));
  EXPECT_EQ(numbers("micro_batch = 2\n"), (Numbers{2, 1, 8}));
  EXPECT_EQ(numbers("global_batch = 24\n"), (Numbers{6, 1, 24}));
  EXPECT_EQ(numbers("accumulation = 3\n"), (Numbers{1, 3, 12}));
  EXPECT_EQ(numbers(""), (Numbers{1, 1, 4}));
}

TEST(RunConfig, case_097_InconsistentBatchPrintsAllFourNumbers) {
  const RunConfigResult result = parse("[parallel]\ndp_shard = 4\ntp = 2\n" + std::string(kTiny) +
                                           "micro_batch = 2\naccumulation = 3\nglobal_batch = 23\n",
                                       {}, 8);
  const std::string text = to_string(result.problems);
  EXPECT_THAT(text,
              HasSubstr("global_batch = 23 is not micro_batch 2 x accumulation 3 x dp 4 = 24"));
  EXPECT_THAT(text, HasSubstr("dp = 4 = 8 ranks / (tp 2 x pp 1 x cp 1)"));
  EXPECT_THAT(text, HasSubstr("run.toml:10: training.global_batch"));
}

TEST(RunConfig, case_101_DegreesMustFitTheRanks) {
  const auto text = [](const std::string& parallel, int world) {
    return to_string(parse(kTiny + ("[parallel]\n" + parallel), {}, world).problems);
  };
  EXPECT_THAT(text("dp_shard = 3\ntp = 2\n", 8), HasSubstr("= 6 ranks, but there are 8"));
  EXPECT_THAT(text("dp_shard = 3\ntp = 2\n", 8), HasSubstr("dp_shard = 4 fits"));
  EXPECT_THAT(text("tp = 3\n", 8), HasSubstr("divisors of 8: 1 2 4 8"));
  EXPECT_THAT(text("dp_shard = -1\ntp = 3\n", 8), HasSubstr("nearest: 6 or 9 ranks"));
  EXPECT_THAT(text("dp_shard = -1\n", 0), HasSubstr("--ranks N"));
  EXPECT_THAT(text("", 4), HasSubstr("= 1 ranks, but there are 4"));
}

TEST(RunConfig, case_103_DivisibilityListsTheChoices) {
  const std::string text =
      to_string(parse("[model]\nname = \"gpt2\"\n[parallel]\ntp = 8\n").problems);
  EXPECT_THAT(text, HasSubstr("tp = 8 does not divide 12 attention heads"));
  EXPECT_THAT(text, HasSubstr("degrees that fit: 1 2 3 4 6 12"));
  EXPECT_THAT(text, HasSubstr("pp"));
}

TEST(RunConfig, StagesMayBeEmptyWhereTheyAreNamed) {
  const auto result = parse(std::string(kTiny) +
                            "[parallel]\npp = 6\nschedule = \"file:my.csv\"\n"
                            "layers_per_stage = [0, 2, 1, 0, 1, 0]\n");
  EXPECT_EQ(to_string(result.problems), "");
}

TEST(RunConfig, ContextParallelismSharesHeadsOrSaysWhichDegreesDo) {
  const auto problems = [](const std::string& keys) {
    return to_string(parse(std::string(kTiny) + "[parallel]\n" + keys).problems);
  };
  for (const char* style : {"ring", "all_gather"}) {
    EXPECT_EQ(problems("cp = 3\ncp_style = \"" + std::string(style) + "\"\n"), "") << style;
  }
  EXPECT_THAT(problems("cp = 7\ncp_style = \"ulysses\"\n"), HasSubstr("degrees that fit: 1"));
  EXPECT_THAT(problems("cp = 2\ncp_heads = 2\n"), HasSubstr("belongs to cp_style"));
  EXPECT_THAT(problems("cp = 4\ncp_style = \"hybrid\"\ncp_heads = 3\n"),
              HasSubstr("does not divide cp = 4"));
}

TEST(RunConfig, ExpertsHaveDegreesOfTheirOwn) {
  const std::string mixtral =
      "[model]\nname = \"mixtral-8x7b\"\n[parallel]\ntp = 2\ndp_shard = 4\n";
  EXPECT_EQ(to_string(parse(mixtral).problems), "");
  for (const char* fits : {"etp = 2\n", "ep = 8\n", "etp = 2\nep = 4\n", "etp = 4\nep = 2\n"}) {
    EXPECT_EQ(to_string(parse(mixtral + fits).problems), "") << fits;
  }
  EXPECT_THAT(to_string(parse(mixtral + "ep = 3\n").problems),
              HasSubstr("ep = 3 does not divide 8 experts; degrees that fit: 1 2 4 8"));
  EXPECT_THAT(to_string(parse(mixtral + "etp = 2\nep = 8\n").problems),
              HasSubstr("ep 8 x etp 2 does not divide the 8 ranks of a stage"));
  EXPECT_THAT(to_string(parse(mixtral + "etp = 3\n").problems),
              HasSubstr("etp = 3 neither divides tp = 2 nor is a multiple of it"));
  EXPECT_THAT(to_string(parse(mixtral + "etp = 2\n[training]\nrouter_bias_rate = 0.1\n").problems),
              HasSubstr("the routers of mixtral have no selection bias"));
  const std::string global = mixtral + "post_validation = true\nschedule = \"zb-h1\"\n[training]\n";
  EXPECT_THAT(to_string(parse(global + "router_balance = \"global_batch\"\n").problems),
              HasSubstr("post_validation begins a step before the last one's loads are known"));
  EXPECT_THAT(to_string(parse(mixtral + "[training]\nrouter_balance = \"batch\"\n").problems),
              HasSubstr("router_balance"));
  EXPECT_THAT(to_string(parse(mixtral + "[training]\nrouter_jitter = 0.9\n").problems),
              HasSubstr("router_jitter"));
}

TEST(RunConfig, ToTomlRoundTripForEveryModel) {
  for (const std::string& name : catalog_models()) {
    SCOPED_TRACE(name);
    const RunConfigResult first =
        parse("[model]\nname = \"" + name + "\"\n[training]\nseq_len = 64\n");
    const std::string text = to_toml(first.config);
    const RunConfigResult second = parse(text);
    EXPECT_TRUE(without_unsupported(second.problems).empty()) << to_string(second.problems);
    EXPECT_EQ(second.config.model, first.config.model);
    EXPECT_EQ(to_toml(second.config), text);
  }
}

// Every field of the table away from its default comes back.
TEST(RunConfig, ToTomlRoundTripOfEveryKey) {
  RunConfig config = good(kTiny);
  config.run = {"a \"quoted\" name", "out/x", 99, 3};
  config.weights = "/weights";
  config.data = {{{"a", 0.25}, {"b", 3.0}}, {{"v", 1.0}}, "llmc", "bytes", true, 5};
  config.training = {7,
                     33,
                     2,
                     3,
                     6,
                     Dtype::kFloat64,
                     Recompute::kFull,
                     {"*q_proj*"},
                     1e-4,
                     0.0,
                     0.0,
                     "sequence",
                     0.0,
                     0.0,
                     "position",
                     100};
  config.parallel.layers_per_stage = {4};
  config.optimizer = {"sgd", 1e-3, 0.8, 0.99, 1e-9, 0.01, 0.0, 0.9, true};
  config.lr_schedule = {"wsd", "tokens", 1, 2, 0.0};
  config.checkpoint = {5, 9, false, "stop", "if_present"};
  config.metrics = {1, 2, 3, "In the", 9, 4};
  config.comm = {"self", 12.5, true};
  const RunConfig back = good(to_toml(config));
  RunDraft a{config, "", ""};
  RunDraft b{back, "", ""};
  for (const Key& key : run_keys()) {
    EXPECT_EQ(value_of(key.field(a)), value_of(key.field(b))) << key.section << "." << key.name;
  }
  EXPECT_EQ(back.model, config.model);
}

TEST(RunConfig, ResolvedFileIsComplete) {
  const std::string text = to_toml(good(kTiny));
  for (const Key& key : run_keys()) {
    if (key.input_only) continue;
    EXPECT_THAT(text, HasSubstr("\n" + std::string(key.name) + " = "));
  }
}

TEST(RunConfig, HelpListsEveryKey) {
  const std::string help = help_config();
  for (const Key& key : run_keys()) {
    EXPECT_THAT(help, HasSubstr("\n  " + std::string(key.name) + " "));
    EXPECT_FALSE(key.help.empty());
  }
  for (const ModelKey& key : model_keys()) EXPECT_THAT(help, HasSubstr(std::string(key.name)));
  EXPECT_THAT(help, HasSubstr("[lr_schedule]"));
}

TEST(RunConfig, PlanOfAConfig) {
  const Plan plan = make_plan(good(
      kTiny, {"training.micro_batch=4", "training.accumulation=2", "training.recompute=full"}));
  EXPECT_EQ(plan.microbatch_size, 4);
  EXPECT_EQ(plan.num_microbatches, 2);
  EXPECT_EQ(plan.seq_len, 64);
  EXPECT_EQ(plan.recompute, Recompute::kFull);
  EXPECT_EQ(plan.stage_begin, std::vector<int>{0});
  RunConfig two = good(kTiny);
  two.parallel.pp = 3;
  EXPECT_EQ(make_plan(two).stage_begin, (std::vector<int>{0, 2, 3}));
}

}  // namespace
}  // namespace quatrain

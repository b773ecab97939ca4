// SPDX-License-Identifier: Apache-2.0
// Bad configurations: every problem is found, all at once, each with its line, its key and a
// remedy. Cases 095, 097, 100, 101, 103.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "quatrain/spec/run_config.h"

namespace quatrain {
namespace {

struct Expected {
  int line;            // 0: no line, a key that is not in the file
  const char* what;    // in "where: what"
  const char* remedy;  // in the hint
};
struct Bad {
  const char* name;
  const char* text;  // after kHead, from line 5 on, unless it begins with '!': then alone
  std::vector<Expected> expected;
};

constexpr const char* kHead = "[model]\nname = \"tiny-llama\"\n[training]\nseq_len = 64\n";

const Bad kKeys[] = {
    {"case_100_slip",
     "[optimizer]\nlearning_rte = 1e-3\n",
     {{6, "unknown key learning_rte", "did you mean lr?"}}},
    {"case_100_slip_in_another_section",
     "learning_rte = 1e-3\n",
     {{5, "unknown key learning_rte", "did you mean lr in [optimizer]?"}}},
    {"case_100_right_key_wrong_section",
     "warmup_steps = 10\n",
     {{5, "unknown key warmup_steps", "this key belongs in [lr_schedule]"}}},
    {"case_100_wrong_type",
     "steps = \"many\"\n",
     {{5, "training.steps: steps = \"many\"", "expected an integer, got a string"}}},
    {"slip_in_own_section", "stpes = 3\n", {{5, "unknown key stpes", "did you mean steps?"}}},
    {"model_key_in_training",
     "hidden_size = 64\n",
     {{5, "unknown key hidden_size", "this key belongs in [model]"}}},
    {"seq_len_in_data",
     "[data]\nseq_len = 64\n",
     {{6, "unknown key seq_len", "this key belongs in [training]"}}},
    {"name_of_another_trainer",
     "[optimizer]\ngrad_clip = 1.0\n",
     {{6, "unknown key grad_clip", "did you mean max_norm?"}}},
    {"section_twice", "[run]\nseed = 1\n[model]\n", {{7, "not valid TOML", ""}}},
    {"letter_outside_of_a_string",
     "[parallel]\nlayers_per_stage = [6, \xCA\xA0\n]\n",
     {{6, "not valid TOML", ""}}},
    {"gibberish",
     "[comm]\nqqqqqqqq = 1\n",
     {{6, "unknown key qqqqqqqq", "keys of [comm]: backend timeout_s checked"}}},
    {"unknown_section",
     "[lr_scheduler]\nwarmup = 3\n",
     {{5, "unknown section [lr_scheduler]", "did you mean [lr_schedule]?"}}},
    {"no_such_section",
     "[zzz]\na = 1\n",
     {{5, "unknown section [zzz]", "sections: run model data"}}},
    {"key_before_sections",
     "!steps = 3\n[model]\nname = \"gpt2\"\n",
     {{1, "key outside any section", "[training]"}}},
    {"float_for_integer",
     "steps = 10.0\n",
     {{5, "steps = 10.0", "expected an integer, got a float"}}},
    {"integer_for_bool",
     "[data]\nmask_documents = 1\n",
     {{6, "mask_documents = 1", "expected true or false, got an integer"}}},
    {"string_for_number",
     "[optimizer]\nlr = \"3e-4\"\n",
     {{6, "lr = \"3e-4\"", "expected a number, got a string"}}},
    {"number_for_string",
     "[run]\nname = 3\n",
     {{6, "name = 3", "expected a string, got an integer"}}},
    {"list_for_integer",
     "seq_lens = 3\nmicro_batch = [1, 2]\n",
     {{5, "unknown key seq_lens", "did you mean seq_len?"},
      {6, "micro_batch = [1, 2]", "expected an integer, got a list"}}},
    {"list_of_the_wrong_thing",
     "trainable = [1]\n[parallel]\nlayers_per_stage = [\"a\"]\n",
     {{5, "trainable = [1]", "expected a list of strings"},
      {7, "layers_per_stage = [\"a\"]", "expected a list of integers"}}},
    {"integer_too_large",
     "[parallel]\ntp = 3000000000\n",
     {{6, "tp = 3000000000", "does not fit"}}},
    {"data_key",
     "[data]\ntrain = [{ path = \"a\", wieght = 1.0 }]\n",
     {{6, "data.train", "unknown key wieght; keys: path, weight"}}},
    {"data_without_path",
     "[data]\ntrain = [{ weight = 1.0 }]\n",
     {{6, "data.train", "path is missing"}}},
    {"data_path_type",
     "[data]\nvalidation = [{ path = 3 }]\n",
     {{6, "data.validation", "path: expected a string"}}},
    {"data_weight",
     "[data]\ntrain = [{ path = \"a\", weight = 0.0 }]\n",
     {{6, "weight = 0 of a is out of range", "0 < weight"}}},
    {"unterminated", "[run\n", {{5, "not valid TOML", ""}}},
    {"twice", "steps = 1\nsteps = 2\n", {{6, "not valid TOML", ""}}},
    {"section_is_a_value",
     "!run = 3\n[model]\nname = \"gpt2\"\n",
     {{1, "run: key outside any section", ""}}},
};

const Bad kNumbers[] = {
    {"lr_zero", "[optimizer]\nlr = 0.0\n", {{6, "lr = 0 is out of range", "0 < lr"}}},
    {"lr_nan", "[optimizer]\nlr = nan\n", {{6, "lr = nan is out of range", "0 < lr"}}},
    {"betas",
     "[optimizer]\nbeta1 = 1.0\nbeta2 = -0.1\n",
     {{6, "beta1 = 1 is out of range", "0 <= beta1 < 1"},
      {7, "beta2 = -0.1 is out of range", "0 <= beta2 < 1"}}},
    {"eps", "[optimizer]\neps = -1e-8\n", {{6, "eps = -1e-08 is out of range", "0 < eps"}}},
    {"weight_decay",
     "[optimizer]\nweight_decay = -0.1\n",
     {{6, "weight_decay = -0.1 is out of range", "0 <= weight_decay"}}},
    {"max_norm",
     "[optimizer]\nmax_norm = -1.0\n",
     {{6, "max_norm = -1 is out of range", "0 <= max_norm"}}},
    {"momentum_of_adamw",
     "[optimizer]\nmomentum = 0.9\n",
     {{6, "momentum = 0.9 belongs to sgd", "beta1"}}},
    {"nesterov",
     "[optimizer]\nname = \"sgd\"\nnesterov = true\n",
     {{7, "nesterov needs sgd with momentum", "0.9"}}},
    {"optimizer_name",
     "[optimizer]\nname = \"adamW\"\n",
     {{6, "name = \"adamW\" is not known", "did you mean \"adamw\"? one of adamw, sgd"}}},
    {"schedule_type",
     "[lr_schedule]\ntype = \"cosin\"\n",
     {{6, "type = \"cosin\" is not known", "did you mean \"cosine\"?"}}},
    {"warmup",
     "steps = 10\n[lr_schedule]\nwarmup_steps = 11\n",
     {{7, "warmup_steps = 11 is more than steps = 10", "at most 10"}}},
    {"wsd_without_decay",
     "[lr_schedule]\ntype = \"wsd\"\n",
     {{0, "wsd needs decay_steps", "final decay"}}},
    {"wsd_too_long",
     "steps = 10\n[lr_schedule]\ntype = \"wsd\"\nwarmup_steps = 5\ndecay_steps = 6\n",
     {{9, "is more than steps = 10", "decay_steps at most 5"}}},
    {"min_lr",
     "[lr_schedule]\nmin_lr_factor = 1.5\n",
     {{6, "min_lr_factor = 1.5 is out of range", "0 <= min_lr_factor <= 1"}}},
    {"steps", "steps = 0\n", {{5, "steps = 0 is out of range", "1 <= steps"}}},
    {"negative_batch",
     "micro_batch = -1\n",
     {{5, "micro_batch = -1 is out of range", "0 <= micro_batch"}}},
    {"z_loss", "z_loss = -1e-4\n", {{5, "z_loss = -0.0001 is out of range", "0 <= z_loss"}}},
    {"dtype", "dtype = \"bf16\"\n", {{5, "dtype = \"bf16\"", "one of float32, bfloat16, float64"}}},
    {"recompute", "recompute = \"ful\"\n", {{5, "recompute = \"ful\"", "did you mean \"full\"?"}}},
    {"seed", "[run]\nseed = -1\n", {{6, "seed = -1", "does not fit"}}},
    {"threads", "[run]\nthreads = -2\n", {{6, "threads = -2 is out of range", "0 <= threads"}}},
    {"timeout", "[comm]\ntimeout_s = 0\n", {{6, "timeout_s = 0 is out of range", "0 < timeout_s"}}},
    {"backend",
     "[comm]\nbackend = \"thred\"\n",
     {{6, "backend = \"thred\" is not known", "did you mean \"thread\"?"}}},
    {"format",
     "[data]\nformat = \"megatronn\"\n",
     {{6, "format = \"megatronn\" is not known", "did you mean \"megatron\"?"}}},
    {"text_without_tokenizer",
     "[data]\nformat = \"text\"\n",
     {{0, "format = \"text\" needs a tokenizer", "\"bytes\""}}},
    {"eval_without_data",
     "[metrics]\neval_every = 5\nsample_every = 5\n",
     {{6, "validation needs data.validation", "eval_every = 0"},
      {7, "samples of text need data.tokenizer", "sample_every = 0"}}},
    {"case_097_inconsistent",
     "micro_batch = 4\naccumulation = 2\nglobal_batch = 10\n",
     {{7, "global_batch = 10 is not micro_batch 4 x accumulation 2 x dp 1 = 8",
       "dp = 1 = 1 ranks / (tp 1 x pp 1 x cp 1)"}}},
    {"case_097_indivisible",
     "micro_batch = 4\nglobal_batch = 10\n",
     {{6, "global_batch = 10 is not a multiple of micro_batch 4 x dp 1 = 4", "fits: 8 or 12"}}},
    {"trainable",
     "trainable = [\"*.mpl.*\"]\n",
     {{5, "pattern \"*.mpl.*\" matches no parameter", "wildcards"}}},
    {"schedule",
     "[parallel]\nschedule = \"1f1bb\"\n",
     {{6, "schedule = \"1f1bb\" is not known", "did you mean \"1f1b\"?"}}},
};

const Bad kModels[] = {
    {"no_model",
     "![training]\nseq_len = 8\n",
     {{0, "model_type is missing", "`name` (a catalogue entry)"}}},
    {"unknown_entry", "![model]\nname = \"lama-3-8b\"\n", {{2, "no model \"lama-3-8b\"", ""}}},
    {"name_and_hf",
     "![model]\nname = \"gpt2\"\nhf = \"x\"\n",
     {{3, "both name and hf", "keep one"}}},
    {"hf_missing", "![model]\nhf = \"no/such/folder\"\n", {{2, "no/such/folder", "config.json"}}},
    {"case_095_q6_kv4",
     "![model]\nname = \"tiny-llama\"\nnum_attention_heads = 6\n"
     "num_key_value_heads = 4\nhead_dim = 8\n[training]\nseq_len = 64\n",
     {{4, "6 query heads are not a multiple of 4", "fit: 1 2 3 6"}}},
    {"case_095_q3_kv2",
     "![model]\nname = \"tiny-llama\"\nnum_attention_heads = 3\nhead_dim = 8\n"
     "[training]\nseq_len = 64\n",
     {{2, "3 query heads are not a multiple of 2", "fit: 1 3"}}},
    {"heads_do_not_divide",
     "![model]\nname = \"gpt2\"\nn_head = 7\n",
     {{3, "7 heads do not divide hidden_size = 768", "fit: 1 2 3 4 6"}}},
    {"model_type",
     "![model]\nmodel_type = \"lama\"\n",
     {
         {2, "model_type \"lama\" is not supported", "did you mean \"llama\"?"},
     }},
    {"missing_sizes",
     "![model]\nmodel_type = \"llama\"\nhidden_size = 64\nvocab_size = 9\n"
     "num_attention_heads = 4\n",
     {{1, "num_hidden_layers is missing", ""}, {1, "intermediate_size is missing", ""}}},
    {"model_slip",
     "![model]\nname = \"tiny-llama\"\nhidden_sizes = 64\n[training]\nseq_len = 8\n",
     {{3, "unknown key hidden_sizes", "did you mean hidden_size?"}}},
    {"model_type_of_value",
     "![model]\nname = \"tiny-llama\"\nhidden_size = \"64\"\n",
     {{3, "\"64\" is a string", "expected an integer"}}},
    {"odd_head",
     "![model]\nname = \"tiny-llama\"\nhead_dim = 9\n[training]\nseq_len = 64\n",
     {{3, "head_dim = 9 is odd", "8 or 10"}}},
    {"foreign_key",
     "![model]\nname = \"gpt2\"\nnum_experts = 4\n",
     {{3, "gpt2 has no key num_experts", "mixtral"}}},
    {"seq_len",
     "![model]\nname = \"gpt2\"\n[training]\nseq_len = 2048\n",
     {{4, "seq_len = 2048 is longer than the model's 1024 positions", "at most 1024"}}},
    {"dropout",
     "![model]\nname = \"gpt2\"\nresid_pdrop = 1.0\nattn_pdrop = 0.1\n",
     {{3, "resid_pdrop = 1 is out of range", "0 <= dropout < 1"}}},
    {"attention_dropout",
     "![model]\nname = \"gpt2\"\nattn_pdrop = 0.1\n",
     {{3, "attention_dropout = 0.1 is not supported in training", "set it to 0"}}},
    {"rope_type",
     "![model]\nname = \"tiny-llama\"\nrope_scaling = { rope_type = \"dynamic\" }\n",
     {{3, "rope_type \"dynamic\" is not supported", "linear, llama3 and yarn"}}},
    {"rope_factor",
     "![model]\nname = \"tiny-llama\"\nrope_scaling = { rope_type = \"linear\", factr = 2.0 }\n",
     {{3, "rope_scaling.factor is missing", ""},
      {3, "rope_scaling.factr is not known", "did you mean factor?"}}},
    {"rope_twice",
     "![model]\nname = \"tiny-llama\"\nrope_theta = 10.0\n"
     "rope_parameters = { rope_theta = 20.0 }\n[training]\nseq_len = 64\n",
     {{3, "rope_theta = 10.0 disagrees with rope_parameters", "keep one"}}},
    {"aliases",
     "![model]\nname = \"gpt2\"\nn_layer = 2\nnum_hidden_layers = 3\n",
     {{4, "disagrees with", "keep one"}}},
    {"eos",
     "![model]\nname = \"tiny-llama\"\neos_token_id = [1, 251]\n[training]\nseq_len = 64\n",
     {{3, "eos_token_id = 251 is not a token of a vocabulary of 251", "0 to 250"}}},
    {"activation",
     "![model]\nname = \"gpt2\"\nactivation_function = \"relu\"\n",
     {{3, "activation \"relu\" is not supported for gpt2", "gelu_new"}}},
};

const Bad kParallel[] = {
    {"case_103_tp",
     "[parallel]\ntp = 3\n",
     {{6, "tp = 3 does not divide 8 attention heads",
       "fit: 1 2 4 8; to use more ranks, split the layers with pp"},
      {6, "tp = 3 neither divides 2 key and value heads", "fit: 1 2 4 8"}}},
    {"gather_again",
     "[parallel]\ntp = 2\ngather_again = true\n",
     {{7, "gather_again belongs to sequence_parallel", "sequence_parallel = true"}}},
    {"pp",
     "[parallel]\npp = 8\n",
     {{6, "pp 8 x chunks 1 = 8 stages for 4 layers", "at most 4 stages"}}},
    {"layers_of_empty_stages",
     "[parallel]\npp = 6\nlayers_per_stage = [0, 2, 1, 0, 2, 0]\n",
     {{7, "6 numbers with sum 5 for 6 stages and 4 layers", "add up"}}},
    {"schedule_file", "[parallel]\nschedule = \"file:\"\n", {{6, "is not known", "file:PATH"}}},
    {"layers_per_stage",
     "[parallel]\nlayers_per_stage = [1, 2]\n",
     {{6, "2 numbers with sum 3 for 1 stages and 4 layers", "add up"}}},
    {"degree_zero", "[parallel]\ncp = 0\n", {{6, "cp = 0 is out of range", "1 <= cp"}}},
    {"ep_without_experts",
     "[parallel]\nep = 2\n",
     {{6, "the model has no experts", "ep = 1"}}},
    {"zero", "[parallel]\nzero = 4\n", {{6, "zero = 4 is out of range", "0 <= zero <= 3"}}},
    {"backend_nccl",
     "[comm]\nbackend = \"nccl\"\n[checkpoint]\non_error = \"ignore\"\n",
     {{6, "comm.backend is not supported yet", "thread"},
      {8, "on_error", "one of continue, stop"}}},
    {"many_at_once",
     "stpes = 1\ndtype = 3\n[optimizer]\nlr = -1.0\nwarmup_steps = 2\n[nope]\n[lr_schedule]\ntype "
     "= \"x\"\n",
     {{5, "unknown key stpes", "steps"},
      {6, "dtype = 3", "expected a string"},
      {8, "lr = -1 is out of range", "0 < lr"},
      {9, "unknown key warmup_steps", "[lr_schedule]"},
      {10, "unknown section [nope]", "sections"},
      {12, "type = \"x\" is not known", "one of constant"}}},
};

void expect_problems(const Bad& bad) {
  SCOPED_TRACE(bad.name);
  const bool alone = bad.text[0] == '!';
  const std::string text = alone ? bad.text + 1 : std::string(kHead) + bad.text;
  const Problems problems = parse_run_config(text, "run.toml", {}).problems;
  EXPECT_EQ(problems.size(), bad.expected.size()) << text << "\n" << to_string(problems);
  for (const Expected& expected : bad.expected) {
    const std::string line = fmt::format("run.toml:{}: ", expected.line);
    bool found = false;
    for (const Problem& problem : problems) {
      const std::string whole = problem.where + ": " + problem.what;
      found = found || ((expected.line == 0 || whole.starts_with(line)) &&
                        whole.find(expected.what) != std::string::npos &&
                        problem.hint.find(expected.remedy) != std::string::npos);
    }
    EXPECT_TRUE(found) << "no \"" << line << expected.what << "; " << expected.remedy << "\" in\n"
                       << to_string(problems);
  }
}

TEST(BadConfig, Keys) {
  for (const Bad& bad : kKeys) expect_problems(bad);
}
TEST(BadConfig, Numbers) {
  for (const Bad& bad : kNumbers) expect_problems(bad);
}
TEST(BadConfig, Models) {
  for (const Bad& bad : kModels) expect_problems(bad);
}
TEST(BadConfig, Parallel) {
  for (const Bad& bad : kParallel) expect_problems(bad);
}

TEST(BadConfig, TheTableHasAtLeastSixtyRows) {
  EXPECT_GE(std::size(kKeys) + std::size(kNumbers) + std::size(kModels) + std::size(kParallel),
            60u);
}

TEST(BadConfig, Overrides) {
  const auto text = [](const std::string& override_text) {
    return to_string(parse_run_config(kHead, "run.toml", {override_text}).problems);
  };
  const std::pair<const char*, const char*> rows[] = {
      {"steps", "write section.key=value"},
      {"steps=3", "write section.key=value"},
      {"traning.steps=3", "did you mean [training]?"},
      {"training.stpes=3", "command line: training.stpes: unknown key stpes; did you mean steps?"},
      {"training.steps=x", "command line: training.steps: steps = \"x\"; expected an integer"},
      {"optimizer.lr=0", "command line: optimizer.lr: lr = 0 is out of range"},
      {"model.rope_scaling.factor=2", "give the whole table: model.rope_scaling={ ... }"}};
  for (const auto& [override_text, expected] : rows) {
    EXPECT_NE(text(override_text).find(expected), std::string::npos) << text(override_text);
  }
}

}  // namespace
}  // namespace quatrain

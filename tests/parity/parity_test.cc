// SPDX-License-Identifier: Apache-2.0
// Logits, loss and every gradient against Hugging Face transformers, on the folders and numbers
// that reference.py makes in one run of Python. float32 as transformers is, within 1e-5; float64
// with its inner float32 casts widened, within 1e-10.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "quatrain/base/file.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/hub/hub.h"
#include "quatrain/hub/source.h"
#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/router.h"
#include "quatrain/nn/kv_cache.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

fs::path root() {
  return fs::temp_directory_path() / fmt::format("quatrain_parity_{}", ::getpid());
}

// Runs the script once for all tests of this process.
class ReferenceNumbers : public ::testing::Environment {
 public:
  void SetUp() override {
    fs::create_directories(root());
    const std::string command =
        fmt::format("'{}' '{}/tests/parity/reference.py' '{}' > '{}/log.txt' 2>&1", QUATRAIN_PYTHON,
                    QUATRAIN_SOURCE_DIR, root().string(), root().string());
    const int status = std::system(command.c_str());
    ASSERT_EQ(status, 0) << command << "\n" << read_file(root() / "log.txt");
  }
  void TearDown() override { fs::remove_all(root()); }
};
const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new ReferenceNumbers);

double relative_error(const at::Tensor& ours, const at::Tensor& theirs) {
  EXPECT_EQ(ours.sizes(), theirs.sizes());
  const at::Tensor a = ours.to(at::kDouble);
  const at::Tensor b = theirs.to(at::kDouble);
  const double scale = b.abs().max().item<double>();
  return a.sub(b).abs().max().item<double>() / (scale > 0.0 ? scale : 1.0);
}

struct Precision {
  const char* prefix;
  at::ScalarType dtype;
  double tolerance;
};

class Parity : public ::testing::TestWithParam<std::tuple<const char*, Precision>> {
 protected:
  Parity()
      : folder_(root() / std::get<0>(GetParam())),
        precision_(std::get<1>(GetParam())),
        reference_(folder_ / "reference.safetensors"),
        model_(read_hub_spec(folder_), {.dtype = precision_.dtype, .head_chunk_tokens = 16}) {
    model_.allocate(true);
    load_weights(model_, folder_);
    tokens_BT_ = reference_.tensor("tokens");
  }
  at::Tensor theirs(const std::string& name) const {
    return reference_.tensor(precision_.prefix + name);
  }
  Pass pass(Mode mode) const {
    Pass pass;
    pass.mode = mode;
    pass.tokens_BT = tokens_BT_;
    pass.positions_BT = at::arange(tokens_BT_.size(1)).expand_as(tokens_BT_).contiguous();
    pass.sample_ids_B = at::arange(tokens_BT_.size(0));
    return pass;
  }
  void expect_close(const at::Tensor& ours, const std::string& name) const {
    const double error = relative_error(ours, theirs(name));
    worst_ = std::max(worst_, error);
    EXPECT_LT(error, precision_.tolerance) << name;
  }

  fs::path folder_;
  Precision precision_;
  SafetensorsFile reference_;
  Model model_;
  at::Tensor tokens_BT_;
  mutable double worst_ = 0.0;
};

TEST_P(Parity, LossAndEveryGradient) {
  AccumulatingSink sink;
  Pass train = pass(Mode::kTrain);
  train.labels_BT = reference_.tensor("labels");
  train.loss_scale = 1.0 / static_cast<double>(train.labels_BT.ne(-100).sum().item<std::int64_t>());
  train.grads = &sink;
  std::vector<Stash> stashes;
  const at::Tensor loss = forward_all(model_, tokens_BT_, train, stashes);
  backward_all(model_, train, stashes);
  expect_close(loss, "loss");
  std::size_t compared = 2;  // logits and loss
  for (const auto& [name, parts] : hub_sources(model_)) {
    if (!parts[0].info.trainable) continue;  // selection biases
    std::vector<at::Tensor> pieces;
    for (const HubPart& part : parts) pieces.push_back(part.param->grad);
    const at::Tensor ours = at::cat(pieces);
    expect_close(parts[0].info.hub.transposed ? ours.t() : ours, name);
    ++compared;
  }
  std::size_t expected = 0;
  for (const TensorEntry& entry : reference_.header().tensors) {
    expected += entry.name.starts_with(precision_.prefix) ? 1 : 0;
  }
  EXPECT_EQ(compared, expected) << "parameters of theirs that we have not compared";
  RecordProperty("worst", fmt::format("{:.1e}", worst_));
}

// Through the decoder: a first piece, then a position at a time, each with the keys so far.
TEST_P(Parity, LogitsOfEveryPosition) {
  const ModelSpec& spec = model_.spec();
  const std::int64_t length = tokens_BT_.size(1);
  KvCache cache(KvCache::size_of(spec, spec.kv_heads, tokens_BT_.size(0), length), precision_.dtype,
                at::kCPU);
  std::vector<at::Tensor> logits;
  std::vector<Stash> stashes;
  for (std::int64_t t = 0; t < length; ++t) {
    Pass decode = pass(Mode::kDecode);
    decode.tokens_BT = tokens_BT_.narrow(1, t, 1).contiguous();
    decode.positions_BT = decode.positions_BT.narrow(1, t, 1).contiguous();
    decode.cache = &cache;
    logits.push_back(forward_all(model_, decode.tokens_BT, decode, stashes));
  }
  expect_close(at::stack(logits, 1), "logits");
  // The whole prefix at once gives the last position's.
  const at::Tensor last = forward_all(model_, tokens_BT_, pass(Mode::kDecode), stashes);
  EXPECT_LT(relative_error(last, theirs("logits").select(1, length - 1)), precision_.tolerance);
  RecordProperty("worst", fmt::format("{:.1e}", worst_));
}

// What transformers wrote, read and written again by us, is the same file; in float64 its numbers.
TEST_P(Parity, ExportEqualsTheImportedFile) {
  save_weights(model_, folder_ / "again");
  const fs::path written = folder_ / "again" / "model.safetensors";
  const SafetensorsFile ours(written);
  const SafetensorsFile source(folder_ / "model.safetensors");
  EXPECT_EQ(ours.header().tensors.size(), source.header().tensors.size());
  for (const TensorEntry& entry : source.header().tensors) {
    EXPECT_TRUE(ours.tensor(entry.name).to(at::kFloat).equal(source.tensor(entry.name)))
        << entry.name;
  }
  if (precision_.dtype == at::kFloat) {
    EXPECT_TRUE(read_file(written) == read_file(folder_ / "model.safetensors"));
  }
  ModelSpec spec = read_hub_spec(folder_ / "again");
  spec.name = model_.spec().name;
  EXPECT_EQ(spec, model_.spec());
}

kernels::RouterRule rule_of(const std::string& family) {
  if (family == "mixtral") return {.top_k = 2};
  if (family == "qwen3_moe") return {.top_k = 3, .normalise = false};
  return {.score = kernels::ScoreKind::kSigmoid, .top_k = 3, .groups = 4, .top_k_groups = 2};
}

// 1,000 rows of a bf16 model, where half of the experts are another's twin but for one bit.
TEST(Routers, case_152_bf16_models_choose_the_reference_s_experts) {
  const SafetensorsFile file(root() / "routers.safetensors");
  for (const std::string family : {"mixtral", "qwen3_moe", "deepseek"}) {
    const at::Tensor x = file.tensor(family + ".x"), w = file.tensor(family + ".weight");
    const at::Tensor bias = family == "deepseek" ? file.tensor(family + ".bias") : at::Tensor();
    const at::Tensor logits = kernels::matmul(kernels::n(x), kernels::t(w));
    const at::Tensor chosen = kernels::choose_experts(logits, bias, rule_of(family));
    const at::Tensor sorted = std::get<0>(chosen.sort(1));
    EXPECT_TRUE(sorted.equal(file.tensor(family + ".experts"))) << family;
    // Rounded once, near ties fall the other way: the test sees what it is about.
    const at::Tensor rounded = logits.to(at::kBFloat16).to(at::kFloat);
    EXPECT_FALSE(kernels::choose_experts(rounded, bias, rule_of(family)).equal(chosen)) << family;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Transformers, Parity,
    ::testing::Combine(::testing::Values("gpt2", "gpt2_untied_erf", "llama_gqa", "llama_mha_tied",
                                         "llama_mqa_bias", "llama_31_gqa", "llama_31_gqa_tied",
                                         "llama_linear", "llama_yarn", "qwen2_gqa_tied",
                                         "qwen2_mha", "qwen2_window", "qwen2_window_upper",
                                         "qwen2_yarn", "qwen3_gqa", "qwen3_mha_tied",
                                         "qwen3_window_yarn", "mixtral", "mixtral_tied",
                                         "qwen3_moe", "qwen3_moe_normed_sparse", "deepseek",
                                         "deepseek_yarn_queries"),
                       ::testing::Values(Precision{"float32.", at::kFloat, 1e-5},
                                         Precision{"float64.", at::kDouble, 1e-10})),
    [](const auto& test) {
      return fmt::format("{}_{}", std::get<0>(test.param),
                         std::get<1>(test.param).dtype == at::kFloat ? "fp32" : "fp64");
    });

}  // namespace
}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// The catalogue: every entry's parameter count is the published one, and every entry survives the
// way to config.json and back.
#include <gtest/gtest.h>

#include <set>

#include "quatrain/spec/model_io.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

TEST(Catalog, EveryEntryHasThePublishedNumberOfParameters) {
  const auto names = catalog_models();
  EXPECT_GE(names.size(), 30u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const CatalogEntry entry = catalog_model(name);
    ASSERT_TRUE(entry.published_parameters.has_value());
    EXPECT_EQ(num_parameters(entry.spec), *entry.published_parameters);
    EXPECT_EQ(entry.spec.name, name);
    EXPECT_TRUE(check(entry.spec).empty()) << to_string(check(entry.spec));
  }
}

// Numbers that do not come from the files, so that a file cannot agree with itself alone.
TEST(Catalog, KnownCounts) {
  const std::pair<const char*, std::int64_t> known[] = {{"gpt2", 124'439'808},
                                                        {"gpt2-xl", 1'557'611'200},
                                                        {"llama-3-8b", 8'030'261'248},
                                                        {"llama-3-70b", 70'553'706'496},
                                                        {"llama-3.1-405b", 405'853'388'800},
                                                        {"qwen2.5-0.5b", 494'032'768},
                                                        {"qwen2.5-72b", 72'706'203'648},
                                                        {"qwen3-0.6b", 596'049'920},
                                                        {"qwen3-32b", 32'762'123'264},
                                                        {"qwen3-30b-a3b", 30'532'122'624},
                                                        {"qwen3-235b-a22b", 235'093'634'560},
                                                        {"mixtral-8x7b", 46'702'792'704},
                                                        {"mixtral-8x22b", 140'620'634'112},
                                                        {"deepseek-v3", 671'026'419'200}};
  for (const auto& [name, count] : known) {
    EXPECT_EQ(num_parameters(catalog_model(name).spec), count) << name;
  }
}

TEST(Catalog, RoundTripThroughConfigJson) {
  for (const std::string& name : catalog_models()) {
    SCOPED_TRACE(name);
    const ModelSpec spec = catalog_model(name).spec;
    ModelResult read = model_from_hub_json(to_hub_json(spec), "config.json");
    EXPECT_TRUE(read.problems.empty()) << to_string(read.problems);
    read.spec.name = name;
    EXPECT_EQ(read.spec, spec);
  }
}

TEST(Catalog, UnknownNameSuggestsNearOnes) {
  try {
    (void)catalog_model("llama-3-8");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("llama-3-8b"), std::string::npos) << error.what();
  }
  EXPECT_THROW((void)catalog_model("../clusters/x"), ConfigError);
}

TEST(Catalog, Llama31HasItsRotaryScaling) {
  const Rope rope = catalog_model("llama-3.1-8b").spec.rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(rope.original_max_positions, 8192);
  EXPECT_EQ(catalog_model("llama-3-8b").spec.rope.scaling, RopeScaling::kNone);
}

}  // namespace
}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/cluster.h"

#include <gmock/gmock.h>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

std::string refusal(const auto& make) {
  try {
    make();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, EveryEntryOfTheCatalogueReads) {
  const std::vector<std::string> names = catalog_clusters();
  EXPECT_GE(names.size(), 17U);
  for (const std::string& name : names) EXPECT_EQ(cluster(name).name, name);
}

TEST(Cluster, AWrongNameOffersNearOnes) {
  EXPECT_THAT(refusal([] { cluster("h100-sxm-80g"); }), ::testing::HasSubstr("h100-sxm-80gb"));
}

TEST(Cluster, AllProblemsOfAFileAtOnce) {
  const std::string text =
      refusal([] { cluster_from_toml("peak_bf16 = 0\nmemory_byte = 1\n", "x.toml"); });
  EXPECT_THAT(text, ::testing::HasSubstr("did you mean memory_bytes"));
  EXPECT_THAT(text, ::testing::HasSubstr("peak_bf16: is out of range"));
  EXPECT_THAT(text, ::testing::HasSubstr("topology"));
}

}  // namespace
}  // namespace quatrain

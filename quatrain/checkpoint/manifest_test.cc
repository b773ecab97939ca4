// SPDX-License-Identifier: Apache-2.0
// The manifest as text, and texts that are no manifest.
#include "quatrain/checkpoint/manifest.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/manifest_format.h"
#include "quatrain/checkpoint/testing/draws.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Manifest sample() {
  Manifest manifest;
  manifest.state = {.step = 100,
                    .tokens = 409600,
                    .seed = 18446744073709551615ULL,
                    .optimizer_steps = 100,
                    .data_cursor = {800, 0},
                    .plan = "{\"tp\": [1, {\"a\": null}]}",
                    .plan_hash = "00ff",
                    .library = "quatrain 0.1.0",
                    .extra = {{"note", "a \"quoted\" \\ line\n"}}};
  manifest.files = {{"rank-00000.safetensors", 256, 128, {1, 2}},
                    {"rank-00001.safetensors", 160, 128, {3, 4}}};
  TensorRecord matrix{{"a", "weight"}, "F32", {4, 6}, {}};
  matrix.pieces.push_back({{{0, 0}, {4, 4}}, 0, 128, {2, 4}, {{5, 6}, {7, 8}}});
  matrix.pieces.push_back({{{0, 4}, {4, 2}}, 1, 128, {4, 2}, {{9, 10}}});
  TensorRecord scalar{{"b", "exp_avg"}, "F64", {}, {}};
  scalar.pieces.push_back({{{}, {}}, 0, 192, {}, {{11, 12}}});
  manifest.tensors = {matrix, scalar};
  return manifest;
}

// The text with a right checksum, whatever it says.
std::string signed_text(std::string body) { return body + manifest_tail(body); }
std::string body_of(const Manifest& manifest) {
  const std::string text = to_json(manifest);
  return text.substr(0, text.size() - kTailBytes);
}

std::string refusal(std::string_view text) {
  try {
    manifest_from_json(text);
    return "accepted";
  } catch (const DataError& error) {
    return error.what();
  }
}

std::string refusal_with(std::string_view old, std::string_view fresh) {
  std::string body = body_of(sample());
  const std::size_t at = body.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return refusal(signed_text(body.replace(at, old.size(), fresh)));
}

TEST(Manifest, RoundTrips) {
  const Manifest manifest = sample();
  const std::string text = to_json(manifest);
  const Manifest read = manifest_from_json(text);
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.state, manifest.state);
  EXPECT_EQ(read.tensors[0].pieces[1].checksums, manifest.tensors[0].pieces[1].checksums);
  EXPECT_NE(read.find({"b", "exp_avg"}), nullptr);
  EXPECT_EQ(read.find({"b", "weight"}), nullptr);
  EXPECT_EQ(read.bytes(), 4 * 6 * 4 + 8);
  check_complete(read);
}

TEST(Manifest, RefusesWhatIsNotOne) {
  EXPECT_THAT(refusal(""), HasSubstr("cut short"));
  EXPECT_THAT(refusal(std::string(500, 'x')), HasSubstr("checksum"));
  EXPECT_THAT(refusal(signed_text("[")), HasSubstr("expected an object"));
  EXPECT_THAT(refusal(signed_text("{\"format\":\"quatrain checkpoint\"")), HasSubstr("no \""));
  EXPECT_THAT(refusal_with("quatrain checkpoint", "torch"), HasSubstr("quatrain checkpoint"));
  EXPECT_THAT(refusal_with("\"version\":1", "\"version\":2"),
              AllOf(HasSubstr("version 2"), HasSubstr("reads version 1")));
  EXPECT_THAT(refusal_with("xxh3-128", "crc32c"), HasSubstr("xxh3-128"));
  EXPECT_THAT(refusal_with("\"step\":100", "\"step\":100,\"step\":100"), HasSubstr("twice"));
  EXPECT_THAT(refusal_with("\"step\":100", "\"step\":-1"), HasSubstr("non-negative"));
  EXPECT_THAT(refusal_with("\"step\":100", "\"stop\":100"), HasSubstr("unknown member \"stop\""));
  EXPECT_THAT(refusal_with("18446744073709551615", "18446744073709551616"), HasSubstr("64 bits"));
  EXPECT_THAT(refusal_with("rank-00000.safetensors", "../x.safetensors"), HasSubstr("unfit"));
  EXPECT_THAT(refusal_with("rank-00001.safetensors\",\"bytes\":160",
                           "rank-00000.safetensors\",\"bytes\":160"),
              HasSubstr("twice"));
  EXPECT_THAT(refusal_with("\"bytes\":160", "\"bytes\":100"), HasSubstr("longer than its file"));
}

TEST(Manifest, RefusesTensorsThatCannotBe) {
  EXPECT_THAT(refusal_with("\"F32\"", "\"F33\""), HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal_with("\"F32\"", "\"F4\""), HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal_with("\"name\":\"a\"", "\"name\":\"c\""), HasSubstr("out of order"));
  EXPECT_THAT(refusal_with("\"shape\":[4,6]", "\"shape\":[4611686018427387904,6]"),
              HasSubstr("overflows"));
  EXPECT_THAT(refusal_with("\"shape\":[4,6]", "\"shape\":[0,4611686018427387904,6]"),
              HasSubstr("overflows"));
  EXPECT_THAT(refusal_with("\"shape\":[4,6]", "\"shape\":[3,6]"),
              HasSubstr("outside of the tensor"));
  EXPECT_THAT(refusal_with("\"shape\":[4,6]", "\"shape\":[24]"),
              HasSubstr("outside of the tensor"));
  EXPECT_THAT(refusal_with("\"offset\":[0,4]", "\"offset\":[9223372036854775807,4]"),
              HasSubstr("outside of the tensor"));
  EXPECT_THAT(refusal_with("\"bytes\":[128,192]", "\"bytes\":[120,184]"),
              HasSubstr("outside of its file"));
  EXPECT_THAT(refusal_with("\"bytes\":[128,192]", "\"bytes\":[128,191]"),
              HasSubstr("another size"));
  EXPECT_THAT(refusal_with("\"bytes\":[128,192]", "\"bytes\":[128]"), HasSubstr("two numbers"));
  EXPECT_THAT(refusal_with("\"tile\":[2,4]", "\"tile\":[0,4]"), HasSubstr("does not fit"));
  EXPECT_THAT(refusal_with("\"tile\":[2,4]", "\"tile\":[2]"), HasSubstr("another rank"));
  EXPECT_THAT(refusal_with("\"tile\":[2,4]", "\"tile\":[1,4]"), HasSubstr("2 checksums for 4"));
  EXPECT_THAT(refusal_with("\"file\":\"rank-00001", "\"file\":\"rank-00002"),
              HasSubstr("is not listed"));
  EXPECT_THAT(refusal_with("00000000000000050000000000000006", "0000000000000005000000000000000G"),
              HasSubstr("hexadecimal"));
}

TEST(Manifest, KnowsItsDamage) {
  const std::string text = to_json(sample());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_NE(refusal(damaged), "accepted") << i;
    EXPECT_NE(refusal(text.substr(0, i)), "accepted") << i;
  }
}

// With a checksum that fits, so that the parser sees them.
TEST(Manifest, SurvivesAnyText) {
  const std::string body = body_of(sample());
  testing::Draws draws(1, "texts");
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = body;
    for (std::int64_t edits = draws.between(1, 4); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(text.size())));
      static constexpr std::string_view kBytes = "0123456789{}[],:\"-.ex \\u\n\x80";
      if (draws.below(4) == 0) {
        text.erase(at, static_cast<std::size_t>(draws.between(1, 30)));
      } else {
        text[at] = kBytes[static_cast<std::size_t>(draws.below(kBytes.size()))];
      }
    }
    try {
      const Manifest manifest = manifest_from_json(signed_text(text));
      manifest_from_json(to_json(manifest));  // what is accepted can be written
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
}

TEST(Manifest, Case050NamesATensorThatIsNotWhole) {
  Manifest manifest = sample();
  manifest.tensors[0].pieces.pop_back();
  try {
    check_complete(manifest);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("of a "), HasSubstr("16 of 24 elements")));
  }
}

TEST(Manifest, MergesWhatRanksWrote) {
  Manifest all = sample();
  Manifest first = all, second = all;
  first.files.pop_back();
  first.tensors[0].pieces.pop_back();
  second.files.erase(second.files.begin());
  second.tensors.pop_back();
  second.tensors[0].pieces.erase(second.tensors[0].pieces.begin());
  second.tensors[0].pieces[0].file = 0;
  EXPECT_EQ(to_json(merge({first, second})), to_json(all));
  second.tensors[0].dtype = "I32";
  EXPECT_THROW(merge({first, second}), BugError);
}

}  // namespace
}  // namespace quatrain

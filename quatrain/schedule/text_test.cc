// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ActionText, FormsOfTorchPipelining) {
  for (const char* text :
       {"2F0", "1I3", "0W2", "12B345", "0SEND_F2", "0RECV_B1", "1RECV_F0", "1SEND_B0", "3UNSHARD",
        "3RESHARD", "2REDUCE_GRAD", "(0F1;1B0)OVERLAP_F_B", "0UNSHARD.4", "0OPTIMIZER_STEP",
        "0NORM_PART", "1REDUCE_TIED", "2F0@1", "(0F1@1;1B0)OVERLAP_F_B", "0REDUCE_GRAD7.2@1"}) {
    EXPECT_EQ(to_string(parse_action(text)), text);
  }
}

TEST(ActionText, FieldsAreRead) {
  const Action send = parse_action("7SEND_F21");
  EXPECT_EQ(send.stage, 7);
  EXPECT_EQ(send.kind, ActionKind::kSendForward);
  EXPECT_EQ(send.microbatch, 21);
  EXPECT_FALSE(send.unit.has_value());
  const Action unshard = parse_action("3UNSHARD.12");
  EXPECT_FALSE(unshard.microbatch.has_value());
  EXPECT_EQ(unshard.unit, 12);
  const Action pair = parse_action("(0F1;3B0)OVERLAP_F_B");
  ASSERT_NE(pair.overlap, nullptr);
  EXPECT_EQ(pair.overlap->stage, 3);
  EXPECT_EQ(pair.overlap->kind, ActionKind::kBackward);
}

TEST(ActionText, EqualityLooksIntoPairs) {
  EXPECT_EQ(parse_action("(0F1;1B0)OVERLAP_F_B"), parse_action("(0F1;1B0)OVERLAP_F_B"));
  EXPECT_FALSE(parse_action("(0F1;1B0)OVERLAP_F_B") == parse_action("(0F1;1B2)OVERLAP_F_B"));
  EXPECT_FALSE(parse_action("(0F1;1B0)OVERLAP_F_B") == parse_action("0F1"));
  EXPECT_FALSE(parse_action("0F1") == parse_action("0F1@1"));
}

TEST(ActionText, NothingElseIsAnAction) {
  for (const char* text : {"",
                           "F",
                           "0F",
                           "0",
                           "F0",
                           "0G1",
                           "0f1",
                           "-1F0",
                           "0F-1",
                           "0F1 ",
                           " 0F1",
                           "0F1x",
                           "0F1.",
                           "0F1@",
                           "99999999999F0",
                           "0F99999999999",
                           "0SEND_F",
                           "0SENDF1",
                           "(0F1;1B0)",
                           "(0F1)",
                           "(0F1;1B0)OVERLAP_F_BB",
                           "((0F1;1B0)OVERLAP_F_B;1B0)OVERLAP_F_B",
                           "0UNSHARD.x",
                           "0 F1"}) {
    EXPECT_THAT([&] { parse_action(text); },
                ThrowsMessage<ConfigError>(
                    AllOf(HasSubstr('"' + std::string(text) + '"'), HasSubstr("<stage><kind>"))))
        << text;
  }
}

TEST(ActionText, RandomTextNeverCrashes) {
  std::mt19937 engine(1);
  constexpr std::string_view kAlphabet = "0123FIWBSEND_RECVOLAP();.@ ";
  for (int n = 0; n < 20000; ++n) {
    std::string text(engine() % 12, ' ');
    for (char& c : text) c = kAlphabet[engine() % kAlphabet.size()];
    try {
      const Action action = parse_action(text);
      EXPECT_EQ(parse_action(to_string(action)), action) << text;
    } catch (const ConfigError&) {
    }
  }
}

TEST(Csv, ReadsPlacementOffTheRows) {
  const Schedule v = schedule_from_csv("0F0, 3F0,,3B0,0B0\r\n1F0,2F0,2B0,1B0");
  EXPECT_EQ(v.num_stages, 4);
  EXPECT_EQ(v.num_microbatches, 1);
  EXPECT_EQ(v.rank_of_stage, (std::vector<std::vector<int>>{{0, 1, 1, 0}}));
  EXPECT_EQ(v.per_rank[0].size(), 4U);
  EXPECT_EQ(to_string(check(v)), "");
}

TEST(Csv, TwoReplicas) {
  const Schedule dual = schedule_from_csv("0F0,1F1@1,1B1@1,0B0\n0F1@1,1F0,1B0,0B1@1\n");
  EXPECT_EQ(dual.rank_of_stage, (std::vector<std::vector<int>>{{0, 1}, {1, 0}}));
  EXPECT_EQ(to_string(check(dual)), "");
  EXPECT_EQ(schedule_from_csv(to_csv(dual)), dual);
}

TEST(Csv, ErrorsNameRowColumnAndText) {
  EXPECT_THAT([] { schedule_from_csv("0F0,0B0\n1F0,oops\n"); },
              ThrowsMessage<ConfigError>(HasSubstr("row 2, column 2: \"oops\" is not an action")));
  EXPECT_THAT([] { schedule_from_csv("0F0,2F0\n"); },
              ThrowsMessage<ConfigError>(HasSubstr("stage 1 of replica 0 is in no row")));
  EXPECT_THAT([] { schedule_from_csv("2000000000F0\n"); },
              ThrowsMessage<ConfigError>(HasSubstr("stage 0 of replica 0 is in no row")));
  EXPECT_THAT([] { schedule_from_csv(""); }, ThrowsMessage<ConfigError>(HasSubstr("no actions")));
}

}  // namespace
}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Timeline timed(const Schedule& schedule, const RankTimes& times = {}) {
  return simulate(schedule, even_durations(schedule, times));
}

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    ++found;
  return found;
}

TEST(Grid, KindsAboveMicrobatches) {
  EXPECT_EQ(to_grid(timed(split_backward(one_f_one_b(2, 2))), {.columns = 24}),
            "rank 0 F-F-..I-W-..I-W-\n"
            "       0 1   0 0   1 1\n"
            "rank 1 ..F-I-W-F-I-W-..\n"
            "         0 0 0 1 1 1\n"
            "F forward, I input half, W weight half\n");
}

TEST(Grid, FoldsWhatIsTooLong) {
  const std::string text = to_grid(timed(one_f_one_b(2, 9)), {.columns = 27});
  EXPECT_THAT(text, AllOf(HasSubstr("time 0\n"), HasSubstr("\ntime 20\n")));
}

TEST(Grid, Fits100ColumnsAtEightRanksAndSixteenMicrobatches) {
  for (const ScheduleInfo& info : schedule_table()) {
    SCOPED_TRACE(info.name);
    const int chunks = std::min(2, info.max_chunks);
    const Schedule schedule =
        make_schedule(info.name, {.num_ranks = 8, .num_microbatches = 16, .chunks = chunks});
    std::istringstream lines(to_grid(timed(schedule), {}));
    int count_of_lines = 0;
    for (std::string line; std::getline(lines, line); ++count_of_lines) {
      EXPECT_LE(line.size(), 100) << line;
    }
    EXPECT_EQ(count_of_lines, chunks == 1 ? 17 : 36);  // one block; two, headed by times
  }
}

// "1011" under two narrow cells would be four micro-batches.
TEST(Grid, MicrobatchesAreAllDecimalOrAllOneCharacter) {
  const Timeline timeline = timed(one_f_one_b(2, 12));
  EXPECT_THAT(to_grid(timeline, {.columns = 200}),
              AllOf(HasSubstr(" 10  9       11  10          11\n"), Not(HasSubstr("micro-batch"))));
  EXPECT_THAT(to_grid(timeline, {.columns = 100}),
              AllOf(HasSubstr(" a 9   b a     b\n"), Not(HasSubstr("11")),
                    HasSubstr("a: micro-batch 10\n")));
}

TEST(Grid, SmallLettersAreFurtherChunks) {
  const std::string text = to_grid(timed(schedule_from_csv("0F0,1F0,1B0,0B0\n")), {.columns = 60});
  EXPECT_THAT(text,
              AllOf(HasSubstr("F---f---b-------B-------"), HasSubstr("small: further stages\n")));
}

TEST(Grid, ColourIsALineARank) {
  const std::string text = to_grid(timed(gpipe(2, 1)), {.columns = 60, .colour = true});
  EXPECT_EQ(count(text, "\n"), 3);
  EXPECT_THAT(text, HasSubstr("rank 1     \x1b[97;48;5;25m0   \x1b[97;48;5;29m0       \x1b[0m  "));
}

TEST(Svg, EveryActionHasItsNumberAndColour) {
  const std::string text = to_svg(timed(zero_bubble_h1(4, 12), {1, 1, 1, 0.25}), "zb-h1 <4>");
  EXPECT_EQ(count(text, "<title>"), 4 * 12 * 3);
  EXPECT_EQ(count(text, ">11</text>"), 4 * 3);
  EXPECT_EQ(count(text, "stroke-width=\"1.2\""), 2 * 3 * 12);  // messages
  EXPECT_THAT(text, AllOf(HasSubstr("zb-h1 &lt;4&gt;"), HasSubstr("weight half"),
                          HasSubstr("communication"), Not(HasSubstr("optimizer"))));
}

TEST(ChromeTrace, IsAsMeasuredOnesAre) {
  const Timeline timeline = timed(gpipe(2, 1), {1, 1, 1, 0.5});
  const std::string text = to_chrome_trace(timeline, {.us_per_unit = 1000});
  EXPECT_THAT(text, AllOf(HasSubstr(R"({"traceEvents":[{"ph":"M","name":"process_name","pid":0)"),
                          HasSubstr(R"({"ph":"X","name":"1F0","cat":"compute","pid":1,"tid":0,)"
                                    R"("ts":1500.000,"dur":1000.000})"),
                          HasSubstr(R"("name":"0SEND_F0","cat":"send","pid":0,"tid":5)")));
  const auto rows = chrome_rows(timeline, {.first_process = 2, .process = "simulated rank "});
  ASSERT_EQ(rows.size(), 2);
  EXPECT_THAT(rows[1], AllOf(HasSubstr("simulated rank 1"), HasSubstr("\"pid\":3")));
}

}  // namespace
}  // namespace quatrain

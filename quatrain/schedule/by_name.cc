// SPDX-License-Identifier: Apache-2.0
// The table of schedules: a new one adds its line here.
#include <fmt/format.h>

#include <array>
#include <limits>

#include "quatrain/base/text.h"
#include "quatrain/schedule/schedule.h"
#include "quatrain/schedule/zb_auto.h"

namespace quatrain {
namespace {

using Request = const ScheduleRequest&;

constexpr int kAny = std::numeric_limits<int>::max();
constexpr std::string_view kWhole = "schedule";

Problems any_count(Request) { return {}; }

// Rank 0's warm-up reaches 2(p - 1) forwards into the last chunk of the first group; a smaller
// group would need a backward that waits for it.
Problems whole_groups(Request r) {
  if (r.group == 0) return {};
  const int rest = r.group > 0 ? r.num_microbatches % r.group : 0;
  const bool one_group = r.group >= r.num_microbatches;
  if (r.group > 0 && (one_group || (r.group >= r.num_ranks && (rest == 0 || rest >= r.num_ranks))))
    return {};
  return {{std::string(kWhole),
           fmt::format("groups of {} of {} micro-batches on {} ranks", r.group, r.num_microbatches,
                       r.num_ranks),
           fmt::format("a group and what is left for the last one have at least {} each; group = 0 "
                       "chooses",
                       r.num_ranks)}};
}

Problems two_for_each_rank(Request r) {
  if (r.num_microbatches >= 2 * r.num_ranks) return {};
  return {{std::string(kWhole),
           fmt::format("{} micro-batches for {} ranks", r.num_microbatches, r.num_ranks),
           fmt::format("use {} (2p) or more", 2 * r.num_ranks)}};
}

Problems both_directions(Request r) {
  Problems problems = two_for_each_rank(r);
  if (r.num_ranks % 2 != 0) {
    problems.push_back({std::string(kWhole), fmt::format("{} ranks cannot be halved", r.num_ranks),
                        "use an even number, or dualpipe-v"});
  }
  if (r.num_microbatches % 2 != 0) {
    problems.push_back({std::string(kWhole),
                        fmt::format("{} micro-batches cannot enter from two ends in equal parts",
                                    r.num_microbatches),
                        fmt::format("use {}", r.num_microbatches + 1)});
  }
  return problems;
}

struct Entry {
  ScheduleInfo info;
  Problems (*refuses)(Request);
  Schedule (*make)(Request);
};

constexpr auto kLinear = StagePlacement::kLinear;
constexpr auto kLoop = StagePlacement::kLoop;
constexpr auto kV = StagePlacement::kV;

// F, I, W: times of a rank's share of a micro-batch; with two replicas, of either's.
constexpr std::array kSchedules = {
    Entry{{"gpipe", kLinear, 1, 1, "(p-1)(F+I+W)", "m", "arXiv:1811.06965"},
          any_count,
          [](Request r) { return gpipe(r.num_ranks, r.num_microbatches); }},
    Entry{{"1f1b", kLinear, 1, 1, "(p-1)(F+I+W)", "min(m, p-r)", "arXiv:2104.04473 2.2.1"},
          any_count,
          [](Request r) { return one_f_one_b(r.num_ranks, r.num_microbatches); }},
    Entry{{"eager-1f1b", kLinear, 1, 1, "(p-1)(F+I+W)", "min(m, 2(p-r)-1)",
           "arXiv:2104.04473, warm-up doubled"},
          any_count,
          [](Request r) { return eager_1f1b(r.num_ranks, r.num_microbatches); }},
    Entry{{"interleaved-1f1b", kLoop, 1, kAny, "(p-1)(F+I+W)/v where p divides m",
           "min(mv, 2(p-1-r)+(v-1)g+1), g: group", "arXiv:2104.04473 2.2.2"},
          whole_groups,
          [](Request r) {
            return interleaved_1f1b(r.num_ranks, r.chunks, r.num_microbatches, r.group);
          }},
    Entry{{"looped-bfs", kLoop, 1, kAny, "(p-1)(F+I+W)/v where m >= p", "mv", "arXiv:2211.05953"},
          any_count,
          [](Request r) { return looped_bfs(r.num_ranks, r.chunks, r.num_microbatches); }},
    Entry{{"zb-h1", kLinear, 1, 1, "(p-1)(F+I-W) where W <= F, m >= p", "min(m, p)",
           "arXiv:2401.10241 2.1"},
          any_count,
          [](Request r) { return zero_bubble_h1(r.num_ranks, r.num_microbatches); }},
    Entry{{"zb-h1-fused", kLinear, 1, 1, "(p-1)(F+I-W)+W where W <= F, m >= p > 1", "min(m, p)",
           "arXiv:2401.10241 2.1, halves only where a rank waits"},
          any_count,
          [](Request r) { return zero_bubble_h1_fused(r.num_ranks, r.num_microbatches); }},
    Entry{{"zb-h2", kLinear, 1, 1, "(p-1)(F+I-2W) where W <= F, m >= 2p-1", "min(m, 2p-1)",
           "arXiv:2401.10241 2.2"},
          any_count,
          [](Request r) { return zero_bubble_h2(r.num_ranks, r.num_microbatches); }},
    Entry{{"zb-auto", kLinear, 1, 1, "0 where the limit is 3p and m large",
           "the limit, p activations or more", "arXiv:2401.10241 3"},
          any_count,
          [](Request r) { return zb_auto(r.num_ranks, r.num_microbatches, r.costs); }},
    Entry{{"interleaved-zb1p", kLoop, 1, kAny, "(p-1)(F+I-W)/v where W <= F, p divides m",
           "min(mv, p+(v-1)g), g: group", "PyTorch, ScheduleInterleavedZeroBubble"},
          whole_groups,
          [](Request r) {
            return interleaved_zb1p(r.num_ranks, r.chunks, r.num_microbatches, r.group);
          }},
    Entry{{"zb-v", kV, 2, 2, "0 where F = I = W, m >= 2p-1", "min(2m, 2p)", "arXiv:2401.10241 6"},
          any_count,
          [](Request r) { return zero_bubble_v(r.num_ranks, r.num_microbatches); }},
    Entry{{"zb-v-auto", kV, 2, 2, "0 where the limit is 1 or more and m large",
           "the limit, 2p as usual", "arXiv:2401.10241 6"},
          any_count,
          [](Request r) { return zb_v_auto(r.num_ranks, r.num_microbatches, r.costs); }},
    Entry{{"v-half", kV, 2, 2, "about half of 1f1b's", "2 floor((p+2)/2)", "arXiv:2405.15362"},
          any_count,
          [](Request r) { return v_half(r.num_ranks, r.num_microbatches); }},
    Entry{{"v-min", kV, 2, 2, "about two thirds of 1f1b's where F = I = W", "2 floor((p+4)/3)",
           "arXiv:2405.15362"},
          any_count,
          [](Request r) { return v_min(r.num_ranks, r.num_microbatches); }},
    Entry{{"1f1b-v", kV, 2, 2, "that of 1f1b or less", "about 4p/3", "arXiv:2405.15362"},
          any_count,
          [](Request r) { return one_f_one_b_v(r.num_ranks, r.num_microbatches); }},
    Entry{{"dualpipe-v", kV, 2, 2, "(p-1)(2F+I-W)/2 where F = I", "2p+1",
           "arXiv:2412.19437, cut in half"},
          two_for_each_rank,
          [](Request r) { return dualpipe_v(r.num_ranks, r.num_microbatches); }},
    Entry{{"dualpipe", StagePlacement::kDual, 1, 1, "(p/2-1)(2F+I-W) where F = I", "p+1",
           "arXiv:2412.19437 3.2.1"},
          both_directions,
          [](Request r) { return dualpipe(r.num_ranks, r.num_microbatches); }},
};

std::string chunks_allowed(const ScheduleInfo& info) {
  if (info.max_chunks == info.min_chunks) return fmt::format("set chunks = {}", info.min_chunks);
  return fmt::format("use {} or more", info.min_chunks);
}

Problems problems_of(const Entry& entry, Request request) {
  Problems problems;
  const auto at_least_one = [&](std::string_view what, int value) {
    if (value >= 1) return;
    problems.push_back({std::string(kWhole), fmt::format("{} = {}", what, value), "use 1 or more"});
  };
  at_least_one("num_ranks", request.num_ranks);
  at_least_one("num_microbatches", request.num_microbatches);
  at_least_one("chunks", request.chunks);
  const bool positive = problems.empty();
  const ScheduleInfo& info = entry.info;
  if (request.chunks > info.max_chunks || request.chunks < info.min_chunks) {
    problems.push_back(
        {std::string(kWhole),
         fmt::format("{} has {} a rank, not {}", info.name,
                     info.max_chunks == 1 ? "one chunk" : "two chunks", request.chunks),
         chunks_allowed(info)});
  }
  if (positive) {
    for (Problem& problem : entry.refuses(request)) {
      problem.what = fmt::format("{}: {}", info.name, problem.what);
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

}  // namespace

std::vector<ScheduleInfo> schedule_table() {
  std::vector<ScheduleInfo> lines;
  for (const Entry& entry : kSchedules) lines.push_back(entry.info);
  return lines;
}

std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kSchedules) names.push_back(entry.info.name);
  return names;
}

Schedule make_schedule(std::string_view name, const ScheduleRequest& request) {
  std::vector<std::string> known;
  for (const Entry& entry : kSchedules) {
    known.emplace_back(entry.info.name);
    if (entry.info.name != name) continue;
    throw_if_any(problems_of(entry, request));
    return entry.make(request);
  }
  std::string text = fmt::format("no schedule is named \"{}\"", name);
  const std::vector<std::string> near = nearest(name, known, 1);
  if (!near.empty()) text += fmt::format("; did you mean \"{}\"?", near.front());
  throw ConfigError(text + " (schedules: " + join(known, ", ") + ")");
}

}  // namespace quatrain

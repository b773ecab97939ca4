// SPDX-License-Identifier: Apache-2.0
// Loops from what costs most to price to what costs least: the times of layers change with tp, cp
// and its style, the micro-batch and recomputation, those of pipelines with pp, schedule and
// chunks, and ZeRO's stages and replicas are priced from both.
#include "quatrain/planner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/planner/memory.h"
#include "quatrain/schedule/schedule.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {
namespace {

constexpr int kMostTp = 64, kMostCp = 128, kMostPp = 128, kMostChunks = 8;
constexpr std::int64_t kMostMicroBatch = 16;
constexpr std::int64_t kLongSequence = 16384;  // cp is searched from here on
constexpr std::array<std::string_view, 4> kSearched = {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v"};
constexpr std::size_t kFewestClocked = 32;
constexpr int kMostBooked = 128;

template <class T>
std::vector<T> choices(const std::optional<T>& fixed, std::vector<T> all) {
  return fixed ? std::vector<T>{*fixed} : std::move(all);
}

std::vector<int> divisors_up_to(std::int64_t n, std::int64_t most) {
  std::vector<int> result;
  for (const std::int64_t d : divisors(n)) {
    if (d <= most) result.push_back(static_cast<int>(d));
  }
  return result;
}

void add(Refusal& to, const Refusal& more) {
  if (to.count == 0) to.example = more.example;
  to.count += more.count;
}

struct PipelineChoice {
  std::string_view schedule;
  int chunks;
};

// A schedule that is fixed need not be among those that are searched.
std::vector<PipelineChoice> pipeline_choices(const Fixed& fixed) {
  std::vector<PipelineChoice> all;
  for (const ScheduleInfo& info : schedule_table()) {
    const bool searched =
        std::find(kSearched.begin(), kSearched.end(), info.name) != kSearched.end();
    if (fixed.schedule ? *fixed.schedule != info.name : !searched) continue;
    const bool loops = info.max_chunks > kMostChunks;
    const int least = loops && !fixed.chunks ? 2 : info.min_chunks;
    for (int chunks = least; chunks <= (loops ? kMostChunks : info.max_chunks); ++chunks) {
      if (!fixed.chunks || *fixed.chunks == chunks) all.push_back({info.name, chunks});
    }
  }
  return all;
}

class Search {
 public:
  Search(const Job& job, const SearchRequest& request)
      : job_(job),
        request_(request),
        fixed_(request.fixed),
        pipelines_(pipeline_choices(request.fixed)),
        estimator_(job),
        kept_(std::max(kFewestClocked, 4 * static_cast<std::size_t>(request.top))) {}

  SearchResult run() {
    while (!enough()) {
      result_ = {};
      refused_.clear();
      for (const int tp : choices(fixed_.tp, divisors_up_to(job_.gpus, kMostTp))) over_cp(tp);
      const bool all = result_.plans.size() < kept_;  // that fit, or might
      clock_best();
      if (all) break;
      kept_ *= 4;
    }
    for (const auto& [reason, refusal] : refused_) add(result_.refused[reason], refusal);
    return std::move(result_);
  }

 private:
  // Plans that were kept may not fit by the books: then others, that were not, are wanted.
  bool enough() const { return result_.plans.size() >= static_cast<std::size_t>(request_.top); }
  void refuse(const char* reason, const Geometry& example) {
    Refusal& refusal = refused_[reason];
    if (refusal.count++ == 0) refusal.example = example;
  }
  // Whether each rank of tp, ep and etp gets a share.
  bool divides(const Geometry& g) const {
    return check_split(job_.model,
                       {.degree = g.tp, .experts = ExpertSplit{.ep = g.ep, .etp = g.etp}})
        .empty();
  }
  bool done() const { return request_.first_fit && !result_.plans.empty(); }

  void over_cp(int tp) {
    Geometry g;
    g.tp = tp;
    g.sequence_parallel = fixed_.sequence_parallel.value_or(true) && tp > 1;
    if (job_.gpus % tp != 0) return refuse("tp does not divide the accelerators", g);
    if (!divides(g)) return refuse("tp does not divide the model", g);
    const std::int64_t most = job_.seq >= kLongSequence ? kMostCp : 1;
    for (const int cp : choices(fixed_.cp, divisors_up_to(job_.gpus / tp, most))) {
      g.cp = cp;
      if (job_.gpus % (tp * cp) != 0) {
        refuse("tp x cp does not divide the accelerators", g);
      } else if (job_.seq < cp) {
        refuse("cp is more than a sequence has tokens", g);
      } else if (styles_ = context_styles(job_, fixed_, tp, cp); styles_.empty()) {
        refuse("the ranks of cp cannot share the heads in this style", g);
      } else {
        by_time_.clear();
        over_pp(g);
      }
    }
  }

  // Of its layers, the fastest first; pipelines do not change the order.
  const std::vector<ContextStyle>& styles(Geometry g) {
    if (styles_.size() == 1) return styles_;
    auto& sorted = by_time_[{g.micro_batch, g.recompute, g.gather_again}];
    if (!sorted.empty()) return sorted;
    std::vector<std::pair<double, ContextStyle>> timed;
    for (const ContextStyle& style : styles_) {
      g.cp_style = style;
      timed.emplace_back(estimator_.computing(g), style);
    }
    std::stable_sort(timed.begin(), timed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [seconds, style] : timed) sorted.push_back(style);
    return sorted;
  }

  void over_pp(Geometry g) {
    const int rest = job_.gpus / (g.tp * g.cp);
    const std::int64_t most = std::min<std::int64_t>(kMostPp, job_.model.layers);
    for (const int pp : choices(fixed_.pp, divisors_up_to(rest, most))) {
      g.pp = pp;
      if (rest % pp != 0) {
        refuse("tp x cp x pp does not divide the accelerators", g);
      } else if (fixed_.dp && *fixed_.dp != rest / pp) {
        refuse("the fixed degrees do not multiply to the accelerators", g);
      } else if (job_.global_batch % (rest / pp) != 0) {
        refuse("dp does not divide the global batch", g);
      } else {
        over_pipelines(g);
      }
    }
  }

  void over_pipelines(Geometry g) {
    if (g.pp == 1) {
      if (fixed_.chunks && *fixed_.chunks > 1) return refuse("one pipeline rank has one chunk", g);
      return over_experts(g);
    }
    if (pipelines_.empty()) refuse("the schedule has no such chunks", g);
    for (const PipelineChoice& choice : pipelines_) {
      g.schedule = choice.schedule;
      g.chunks = choice.chunks;
      if (g.stages() > job_.model.layers) {
        refuse("fewer blocks than stages", g);
      } else {
        over_experts(g);
      }
    }
  }

  void over_experts(Geometry g) {
    if (!job_.model.experts) return over_micro_batches(g);
    const int ranks = job_.gpus / g.pp;
    const std::int64_t experts = job_.model.experts->num_experts;
    for (const int etp : choices(fixed_.etp, g.tp > 1 ? std::vector{1, g.tp} : std::vector{1})) {
      for (const int ep : choices(fixed_.ep, divisors_up_to(experts, ranks))) {
        g.ep = ep;
        g.etp = etp;
        if (!divides(g)) {
          refuse("ep x etp does not divide the experts", g);
        } else if (ranks % (ep * etp) != 0) {
          refuse("ep x etp does not divide a stage's accelerators", g);
        } else {
          over_micro_batches(g);
        }
      }
    }
  }

  void over_micro_batches(Geometry g) {
    const int dp = job_.gpus / (g.tp * g.cp * g.pp);
    const std::int64_t each = job_.global_batch / dp;
    for (std::int64_t size = 1; size <= std::min(kMostMicroBatch, each); size *= 2) {
      g.micro_batch = fixed_.micro_batch.value_or(size);
      g.microbatches = each / g.micro_batch;
      if (each % g.micro_batch != 0) {
        refuse("the micro-batch does not divide a data rank's batch", g);
      } else if (g.chunks > 1 && g.microbatches < g.pp) {
        refuse("fewer micro-batches than pp", g);
      } else {
        over_recompute(g, dp);
      }
      if (fixed_.micro_batch) return;
    }
  }

  void over_recompute(Geometry g, int dp) {
    using enum Recompute;
    g.dp_shard = dp;
    for (const Recompute recompute : choices(fixed_.recompute, {kNone, kSelective, kFull})) {
      g.recompute = recompute;
      // Selective recomputation gathers again anyway.
      const bool either = g.sequence_parallel && recompute != kSelective;
      for (const bool again :
           choices(fixed_.gather_again, either ? std::vector{false, true} : std::vector{false})) {
        g.gather_again = again && g.sequence_parallel;
        over_styles(g, dp);
      }
    }
  }

  // A style is not better than one that is faster and fits, or where no style could.
  void over_styles(Geometry g, int dp) {
    bool settled = false;
    for (const ContextStyle& style : styles(g)) {
      g.cp_style = style;
      if (done()) return;
      if (settled || cannot_win(g)) {
        ++result_.dominated;
      } else {
        settled = over_zero(g, dp) && request_.objective == Objective::kTime;
      }
    }
  }

  // Whether computing alone takes longer than all plans that are kept: no stage of ZeRO saves time.
  bool cannot_win(const Geometry& g) {
    return request_.objective == Objective::kTime && result_.plans.size() == kept_ &&
           estimator_.computing(g) > result_.plans.back().estimate.step;
  }

  // Whether slower styles need not be tried: consider()'s.
  bool over_zero(Geometry g, int dp) {
    bool settled = true;
    const int inside = std::max(1, static_cast<int>(job_.cluster.domain) / (g.tp * g.cp));
    const bool nests = dp > inside && inside > 1 && dp % inside == 0;
    for (const int zero : choices(fixed_.zero, dp > 1 ? std::vector{0, 1, 2, 3} : std::vector{0})) {
      g.zero = zero;
      const std::vector<int> all = zero > 0 && nests ? std::vector{1, dp / inside} : std::vector{1};
      for (const int replicate : choices(fixed_.dp_replicate, all)) {
        if (dp % replicate != 0) continue;
        g.dp_replicate = replicate;
        g.dp_shard = dp / replicate;
        settled = consider(g) && settled;
      }
    }
    return settled;
  }

  std::tuple<double, int, int, int, int> order(const RankedPlan& plan) const {
    const Estimate& e = plan.estimate;
    const double first = request_.objective == Objective::kMemory ? e.memory.sum() : e.step;
    const Geometry& g = plan.geometry;
    return {first, g.tp, g.pp, g.cp, g.zero};
  }
  auto by_order() const {
    return [this](const RankedPlan& a, const RankedPlan& b) { return order(a) < order(b); };
  }

  void refuse_memory(const Geometry& g, const MemoryParts& memory) {
    refuse("needs more memory than an accelerator has", g);
    if (result_.nearest && result_.nearest->estimate.memory.sum() <= memory.sum()) return;
    result_.nearest = RankedPlan{g, {}};
    result_.nearest->estimate.memory = memory;
  }

  // Whether it fits for certain, or its parameters and their state alone do not.
  bool consider(const Geometry& g) {
    ++result_.evaluated;
    bool settled = true;
    if (request_.must_fit) {
      const double limit = job_.cluster.memory_bytes;
      const MemoryParts memory = estimator_.memory(g);
      if (least_memory(memory) > limit) {
        refuse_memory(g, memory);
        return memory.params + memory.grads + memory.optimizer > limit;
      }
      if (request_.first_fit) {
        const MemoryParts exact = estimator_.booked(g);
        if (exact.sum() > limit) {
          refuse_memory(g, exact);
          return false;
        }
      }
      settled = most_memory(memory) <= limit;
    }
    const RankedPlan plan{g, estimator_.estimate(g)};
    auto& plans = result_.plans;
    if (plans.size() == kept_ && !(order(plan) < order(plans.back()))) return settled;
    plans.insert(std::upper_bound(plans.begin(), plans.end(), plan, by_order()), plan);
    if (plans.size() > kept_) plans.pop_back();
    return settled;
  }

  // Whether it fits by the books, and their figures; a long list has those of its first plans
  // alone.
  bool settle(RankedPlan& plan) {
    Estimate& e = plan.estimate;
    if (booked_ < kMostBooked) {
      ++booked_;
      e.memory = estimator_.booked(plan.geometry);
    }
    e.fits = e.memory.sum() <= job_.cluster.memory_bytes;
    if (e.fits || !request_.must_fit) return true;
    refuse_memory(plan.geometry, e.memory);
    return false;
  }

  // Only plans that fit push others out.
  void clock_best() {
    auto& plans = result_.plans;
    const auto top = static_cast<std::size_t>(request_.top);
    const bool by_time = request_.objective == Objective::kTime;
    std::vector<RankedPlan> clocked;
    for (const RankedPlan& plan : plans) {
      const bool full = clocked.size() >= top;
      if (full && by_time && least_step(plan.estimate) > clocked[top - 1].estimate.step) continue;
      RankedPlan timed{plan.geometry, estimator_.clocked(plan.geometry).estimate};
      if (full && by_time && order(clocked[top - 1]) < order(timed)) continue;
      if (!settle(timed)) continue;
      clocked.insert(std::upper_bound(clocked.begin(), clocked.end(), timed, by_order()), timed);
    }
    plans = std::move(clocked);
    if (plans.size() > top) plans.resize(top);
    if (!plans.empty()) result_.nearest.reset();
  }

  const Job& job_;
  const SearchRequest& request_;
  const Fixed& fixed_;
  std::vector<PipelineChoice> pipelines_;
  Estimator estimator_;
  std::size_t kept_;
  std::vector<ContextStyle> styles_;  // of this tp and cp
  std::map<std::tuple<std::int64_t, Recompute, bool>, std::vector<ContextStyle>> by_time_;
  int booked_ = 0;  // plans that settle() asked the books for
  SearchResult result_;
  std::map<const char*, Refusal> refused_;  // by the reason's literal
};

}  // namespace

SearchResult search(const Job& job, const SearchRequest& request) {
  if (job.gpus < 1 || job.seq < 1 || job.global_batch < 1) {
    throw ConfigError(fmt::format(
        "{} accelerators, sequences of {} tokens, {} sequences a step: each must be 1 or more",
        job.gpus, job.seq, job.global_batch));
  }
  return Search(job, request).run();
}

std::optional<int> fewest_gpus(const Job& job, const SearchRequest& request,
                               double tokens_per_second) {
  constexpr int kMost = 65536;
  SearchRequest one = request;
  one.top = 1;
  one.must_fit = true;
  one.first_fit = tokens_per_second <= 0;
  Job larger = job;
  const double tokens = static_cast<double>(job.global_batch * job.seq);
  for (int power = 1; power <= kMost; power *= 2) {
    for (const int gpus : {power, power / 2 * 3}) {
      if (gpus < power || gpus == 0) continue;
      larger.gpus = gpus;
      const SearchResult result = search(larger, one);
      if (result.plans.empty()) continue;
      if (tokens / result.plans.front().estimate.step >= tokens_per_second) return gpus;
    }
  }
  return std::nullopt;
}

}  // namespace quatrain

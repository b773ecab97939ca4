// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/text.h"
#include "quatrain/planner/bounds.h"
#include "quatrain/planner/collective.h"
#include "quatrain/planner/goodput.h"

namespace quatrain {
namespace {

constexpr double kCopyRate = 20e9;       // bytes/s from an accelerator to its host; assumed
constexpr double kRestartSeconds = 600;  // assumed

using NamedParts = std::vector<std::pair<const char*, double>>;

NamedParts named(const StepParts& p) {
  return {{"compute", p.compute},       {"exposed tp", p.exposed_tp}, {"exposed cp", p.exposed_cp},
          {"exposed ep", p.exposed_ep}, {"exposed dp", p.exposed_dp}, {"exposed pp", p.exposed_pp},
          {"bubble", p.bubble},         {"optimizer", p.optimizer},   {"other", p.other}};
}

NamedParts named(const MemoryParts& m) {
  return {{"parameters", m.params},       {"gradients", m.grads}, {"optimizer", m.optimizer},
          {"activations", m.activations}, {"logits", m.logits},   {"buffers", m.buffers},
          {"overhead", m.overhead}};
}

std::string gib(double bytes) { return human_bytes(static_cast<std::int64_t>(bytes)); }

std::string link_of(const Job& job, GroupShape group) {
  if (inside_domain(job.cluster, group)) return "inside the fast domain";
  return group.stride >= job.cluster.domain ? "over the network"
                                            : "in the fast domain and over the network";
}

struct Step {
  std::string name;
  int degree;
  GroupShape group;
  double exposed;
};

std::string axis_line(const Job& job, const Estimate& e, const Step& step) {
  return fmt::format("{} {}: {}, {:.1f} % of the step exposed", step.name, step.degree,
                     link_of(job, step.group), 100 * step.exposed / e.step);
}

// What would be taken without cutting layers or matrices, with one sequence at a time and blocks
// computed again.
void say_fit(const Job& job, std::vector<std::string>& lines) {
  Estimator estimator(job);
  Geometry whole;
  whole.recompute = Recompute::kFull;
  Geometry sharded = whole;
  sharded.zero = 3;
  sharded.dp_shard = job.gpus;
  lines.push_back(fmt::format("each accelerator has {}", gib(job.cluster.memory_bytes)));
  lines.push_back("the whole model on each would take " + gib(estimator.memory(whole).sum()));
  if (job.gpus == 1) return;
  lines.push_back("with ZeRO 3 over all of them and nothing else: " +
                  gib(estimator.memory(sharded).sum()));
}

void say_cuts(const Job& job, const RankedPlan& best, std::vector<std::string>& lines) {
  const Geometry& g = best.geometry;
  const Estimate& e = best.estimate;
  const Step steps[] = {{"tp", g.tp, {g.tp, 1}, e.parts.exposed_tp},
                        {"ep", g.ep, {g.ep, g.etp}, e.parts.exposed_ep},
                        {to_string(g.cp_style) + " cp", g.cp, {g.cp, g.tp}, e.parts.exposed_cp},
                        {"pp", g.pp, {g.pp, g.tp * g.cp * g.dp()}, e.parts.exposed_pp}};
  for (const Step& step : steps) {
    if (step.degree > 1) lines.push_back(axis_line(job, e, step));
  }
  if (g.pp > 1) {
    lines.push_back(
        fmt::format("{} with {} micro-batches for {} ranks: bubble {:.1f} % of the step",
                    g.schedule, g.microbatches, g.pp, 100 * e.parts.bubble / e.step));
  }
  const Step data{"dp", g.dp(), {g.dp(), g.tp * g.cp}, e.parts.exposed_dp};
  lines.push_back(g.dp() > 1 ? axis_line(job, e, data) + fmt::format(", ZeRO {}", g.zero)
                             : "dp 1: the cuts use all accelerators");
}

void say_batch(const Job& job, const RankedPlan& best, double critical_batch,
               std::vector<std::string>& lines) {
  const Geometry& g = best.geometry;
  lines.push_back(fmt::format("micro-batches of {} x {} tokens, recompute {}: {} of activations",
                              g.micro_batch, job.seq, name(g.recompute),
                              gib(best.estimate.memory.activations)));
  const double tokens = static_cast<double>(job.global_batch * job.seq);
  const double each = tokens / job.gpus, bound = tokens_for_compute_bound(job);
  lines.push_back(fmt::format(
      "{:.0f} tokens an accelerator; {} the {:.0f} from which gathers of weights hide under work",
      each, each < bound ? "below" : "above", bound));
  if (critical_batch > 0) {
    lines.push_back(fmt::format("the batch is {:.2f} of the critical one: {}",
                                tokens / critical_batch,
                                tokens > critical_batch ? "more tokens than they are worth"
                                                        : "there is room for more data ranks"));
  }
}

// Checkpoints hold training up for the copy of a rank's state; its way to storage is behind the
// work.
void say_failures(const Job& job, const RankedPlan& best, std::vector<std::string>& lines) {
  const double between = seconds_between_failures(job);
  if (between <= 0) return;
  const MemoryParts& m = best.estimate.memory;
  const double save = (m.params + m.optimizer) / kCopyRate;
  const Goodput goodput = best_goodput({between, save, kRestartSeconds});
  lines.push_back(fmt::format(
      "a failure every {:.1f} h: a checkpoint every {:.0f} steps leaves {:.1f} % of the time",
      between / 3600, std::max(1.0, goodput.interval / best.estimate.step), 100 * goodput.share));
}

// The part that grows most from `from` to `to`.
std::pair<const char*, double> largest_growth(const NamedParts& from, const NamedParts& to) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (to[i].second - from[i].second > to[at].second - from[at].second) at = i;
  }
  return {to[at].first, to[at].second - from[at].second};
}

}  // namespace

std::string to_string(const ContextStyle& style) {
  std::string text(style.name);
  if (style.name == "hybrid") text += fmt::format("/{}", style.heads);
  return style.zigzag ? text : text + "+contiguous";
}

std::string to_string(const Geometry& g) {
  std::string text = fmt::format("tp{}", g.tp);
  if (g.sequence_parallel) text += "+sp";
  if (g.cp > 1) text += fmt::format(" cp{} {}", g.cp, to_string(g.cp_style));
  text += fmt::format(" pp{}", g.pp);
  if (g.ep * g.etp > 1) text += fmt::format(" ep{} etp{}", g.ep, g.etp);
  text += g.dp_replicate > 1 ? fmt::format(" dp{}x{}", g.dp_replicate, g.dp_shard)
                             : fmt::format(" dp{}", g.dp_shard);
  text += fmt::format(" zero{}", g.zero);
  if (g.pp > 1) text += fmt::format(" {}", g.schedule);
  if (g.chunks > 1) text += fmt::format(" x{}", g.chunks);
  text += fmt::format(", micro-batch {} x {}", g.micro_batch, g.microbatches);
  if (g.gather_again) text += ", gathers again";
  if (g.recompute != Recompute::kNone) text += fmt::format(", recompute {}", name(g.recompute));
  return text;
}

std::string why(const Job& job, const RankedPlan& plan) {
  const Estimate& e = plan.estimate;
  NamedParts parts = named(e.parts);
  std::sort(parts.begin() + 1, parts.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  return fmt::format("{:.0f} % computing, {:.0f} % {}, {:.0f} % {}; {} of {} on pipeline rank {}",
                     100 * e.parts.compute / e.step, 100 * parts[1].second / e.step, parts[1].first,
                     100 * parts[2].second / e.step, parts[2].first, gib(e.memory.sum()),
                     gib(job.cluster.memory_bytes), e.memory.rank);
}

std::vector<std::string> explain(const Job& job, const SearchResult& result,
                                 double critical_batch) {
  const RankedPlan& best = result.plans.front();
  std::vector<std::string> lines;
  say_fit(job, lines);
  say_cuts(job, best, lines);
  say_batch(job, best, critical_batch, lines);
  say_failures(job, best, lines);
  return lines;
}

std::string why_not(const Job& job, const RankedPlan& best, const RankedPlan& other) {
  const auto [memory, more] =
      largest_growth(named(best.estimate.memory), named(other.estimate.memory));
  const MemoryParts& held = other.estimate.memory;
  if (!other.estimate.fits) {
    return fmt::format("does not fit: {} of {}; {} on pipeline rank {} are {} more",
                       gib(held.sum()), gib(job.cluster.memory_bytes), memory, held.rank,
                       gib(std::max(more, 0.0)));
  }
  const auto [part, longer] =
      largest_growth(named(best.estimate.parts), named(other.estimate.parts));
  return fmt::format("{:+.1f} % time, most of it {} ({:+.1f} % of the step); {} +{} on rank {}",
                     100 * (other.estimate.step / best.estimate.step - 1), part,
                     100 * longer / best.estimate.step, memory, gib(std::max(more, 0.0)),
                     held.rank);
}

std::string why_nothing(const Job& job, const SearchResult& result) {
  if (result.nearest) {
    const RankedPlan& plan = *result.nearest;
    const NamedParts parts = named(plan.estimate.memory);
    const auto most =
        std::max_element(parts.begin(), parts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return fmt::format("the smallest, {}, takes {} of {}, most of it {}", to_string(plan.geometry),
                       gib(plan.estimate.memory.sum()), gib(job.cluster.memory_bytes), most->first);
  }
  std::string reasons;
  for (const auto& [reason, refusal] : result.refused) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  return reasons.empty() ? "no geometry has these degrees" : reasons;
}

}  // namespace quatrain

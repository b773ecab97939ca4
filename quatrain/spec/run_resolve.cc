// SPDX-License-Identifier: Apache-2.0
// What a configuration leaves open and arithmetic gives: the data-parallel degree from the number
// of ranks, and the third of micro_batch, accumulation and global_batch.
#include <fmt/core.h>

#include "quatrain/base/text.h"
#include "quatrain/spec/run_keys.h"

namespace quatrain {
namespace {

std::string degrees_in_words(const RunConfig::Parallel& p) {
  return fmt::format("dp_replicate {} x dp_shard {} x tp {} x pp {} x cp {}", p.dp_replicate,
                     p.dp_shard, p.tp, p.pp, p.cp);
}

Problems resolve_ranks(RunConfig::Parallel& p, std::int64_t world) {
  const std::int64_t others = p.dp_replicate * model_ranks(p);
  if (p.dp_replicate < 1 || p.tp < 1 || p.pp < 1 || p.cp < 1 ||
      (p.dp_shard < 1 && p.dp_shard != -1)) {
    return {};  // ranges are reported by the table
  }
  if (p.dp_shard == -1) {
    p.dp_shard = 1;
    if (world == 0) {
      return {{"parallel.dp_shard", "dp_shard = -1 needs the number of ranks",
               "give it, or start with --ranks N"}};
    }
    if (world % others != 0) {
      return {{"parallel.dp_shard",
               fmt::format(
                   "{} ranks are not a multiple of dp_replicate {} x tp {} x pp {} x cp {} = {}",
                   world, p.dp_replicate, p.tp, p.pp, p.cp, others),
               fmt::format("nearest: {} or {} ranks", world / others * others,
                           (world / others + 1) * others)}};
    }
    p.dp_shard = static_cast<int>(world / others);
    return {};
  }
  const std::int64_t product = others * p.dp_shard;
  if (world == 0 || world == product) return {};
  const std::string hint =
      world % others == 0
          ? fmt::format("dp_shard = {} fits, or start {} ranks", world / others, product)
          : fmt::format("start {} ranks, or choose degrees among the divisors of {}: {}", product,
                        world, join(divisors(world), " "));
  return {{"parallel.dp_shard",
           fmt::format("{} = {} ranks, but there are {}", degrees_in_words(p), product, world),
           hint}};
}

class Batch {
 public:
  explicit Batch(RunConfig& config)
      : t_(config.training), p_(config.parallel), dp_(data_ranks(config.parallel)) {}

  Problems resolve() {
    if (t_.micro_batch < 0 || t_.accumulation < 0 || t_.global_batch < 0 || dp_ < 1) return {};
    if (t_.micro_batch > 0 && t_.accumulation > 0 && t_.global_batch > 0) return consistent();
    if (t_.global_batch == 0) {
      if (t_.micro_batch == 0) t_.micro_batch = 1;
      if (t_.accumulation == 0) t_.accumulation = 1;
      t_.global_batch = t_.micro_batch * t_.accumulation * dp_;
      return {};
    }
    if (t_.micro_batch > 0)
      return divide("accumulation", t_.accumulation, "micro_batch", t_.micro_batch);
    if (t_.accumulation == 0) t_.accumulation = 1;
    return divide("micro_batch", t_.micro_batch, "accumulation", t_.accumulation);
  }

 private:
  std::string dp_in_words() const {
    return fmt::format("dp = {} = {} ranks / (tp {} x pp {} x cp {})", dp_, dp_ * model_ranks(p_),
                       p_.tp, p_.pp, p_.cp);
  }
  Problems consistent() const {
    const std::int64_t product = t_.micro_batch * t_.accumulation * dp_;
    if (product == t_.global_batch) return {};
    return {{"training.global_batch",
             fmt::format("global_batch = {} is not micro_batch {} x accumulation {} x dp {} = {}",
                         t_.global_batch, t_.micro_batch, t_.accumulation, dp_, product),
             fmt::format("{}; leave one of the three out, or global_batch = {}", dp_in_words(),
                         product)}};
  }
  // wanted = global_batch / (given x dp)
  Problems divide(const char* wanted_name, std::int64_t& wanted, const char* given_name,
                  std::int64_t given) {
    const std::int64_t unit = given * dp_;
    if (t_.global_batch % unit == 0) {
      wanted = t_.global_batch / unit;
      return {};
    }
    wanted = 1;
    const std::int64_t below = t_.global_batch / unit * unit;
    const std::string nearby =
        below > 0 ? fmt::format("{} or {}", below, below + unit) : fmt::format("{}", unit);
    return {{"training.global_batch",
             fmt::format("global_batch = {} is not a multiple of {} {} x dp {} = {}, so no {} fits",
                         t_.global_batch, given_name, given, dp_, unit, wanted_name),
             fmt::format("{}; global_batch that fits: {}", dp_in_words(), nearby)}};
  }

  RunConfig::Training& t_;
  const RunConfig::Parallel& p_;
  std::int64_t dp_;
};

}  // namespace

Problems resolve_numbers(RunConfig& config, int world) {
  if (config.run.folder.empty()) config.run.folder = "runs/" + config.run.name;
  Problems problems = resolve_ranks(config.parallel, world);
  for (Problem& problem : Batch(config).resolve()) problems.push_back(std::move(problem));
  return problems;
}

}  // namespace quatrain

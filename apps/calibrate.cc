// SPDX-License-Identifier: Apache-2.0
// quatrain calibrate: this machine as a cluster file. Each trial is a process of its own, so that
// one that dies is a row of the table and not the end.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/child.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/calibrate/cluster_of.h"

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

struct CalibrateOptions {
  std::string out, trial;
  std::vector<std::string> faults;
  int ranks = 0, threads = 0;
  double timeout = 60, budget = 0.3;
  bool json = false;
};

Ranks ranks_of(const CalibrateOptions& options) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Ranks ranks;
  ranks.count = options.ranks > 0 ? options.ranks : cores;
  ranks.threads = options.threads > 0 ? options.threads : std::max(1, cores / ranks.count);
  return ranks;
}

double memory_of_host() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGE_SIZE));
}

// --fault NAME=crash|hang|fail: to see the table go on.
void break_if_asked(const CalibrateOptions& options) {
  for (const std::string& fault : options.faults) {
    const std::size_t equals = fault.rfind('=');
    if (fault.substr(0, equals) != options.trial) continue;
    const std::string how = fault.substr(equals + 1);
    if (how == "crash") ::kill(::getpid(), SIGSEGV);
    while (how == "hang") ::pause();
    throw ConfigError(options.trial + ": asked to fail");
  }
}

// The child: the measurement's numbers, or "<name>: <why>" and an exit code.
int one_trial(const CalibrateOptions& options) {
  const Ranks ranks = ranks_of(options);
  for (const Trial& trial : default_trials(ranks)) {
    if (name(trial) != options.trial) continue;
    break_if_asked(options);
    const Measurement found = measure(trial, ranks, options.budget);
    Console().line(
        fmt::format("{:.9g} {:.4g} {:.4g}", found.seconds, found.waiting, found.solo_gain));
    return kDone;
  }
  throw ConfigError(fmt::format("there is no trial \"{}\"", options.trial));
}

TrialResult run_trial(const Trial& trial, const CalibrateOptions& options, const Ranks& ranks) {
  std::vector<std::string> words = {"calibrate",
                                    "--trial",
                                    name(trial),
                                    "--ranks",
                                    std::to_string(ranks.count),
                                    "--threads",
                                    std::to_string(ranks.threads),
                                    "--budget",
                                    fmt::format("{}", options.budget)};
  for (const std::string& fault : options.faults) words.insert(words.end(), {"--fault", fault});
  const ChildResult child = run_child(words, options.timeout);
  TrialResult result{.trial = trial};
  char* rest = nullptr;
  const double seconds = child.done() ? std::strtod(child.out.c_str(), &rest) : 0;
  if (seconds > 0) {
    result.seconds = seconds;
    result.waiting = std::strtod(rest, &rest);
    result.solo_gain = std::strtod(rest, nullptr);
  } else {
    result.failure = child.reason(options.timeout);
  }
  return result;
}

// "12.3 GFLOP/s" or "1.2 GB/s".
std::string rate_text(const Trial& trial, double seconds) {
  const double work = flops(trial);
  if (work > 0) return fmt::format("{:.1f} GFLOP/s", work / seconds / 1e9);
  return fmt::format("{:.2f} GB/s", static_cast<double>(trial.bytes) / seconds / 1e9);
}

Json row_of(const TrialResult& result) {
  Json row = {{"trial", name(result.trial)}, {"seconds", nullptr}, {"failure", nullptr}};
  if (result.seconds) row["seconds"] = *result.seconds;
  if (!result.seconds) row["failure"] = result.failure;
  return row;
}

void print(Console& console, const std::vector<TrialResult>& results, const ClusterSpec& cluster,
           int ranks) {
  Table table({"trial", "measured us", "by the file us", "rate of a rank"});
  for (const TrialResult& result : results) {
    if (!result.seconds) {
      table.add({name(result.trial), "-", "-", result.failure});
      continue;
    }
    table.add({name(result.trial), fmt::format("{:.1f}", 1e6 * *result.seconds),
               fmt::format("{:.1f}", 1e6 * predicted_seconds(result.trial, cluster, ranks)),
               rate_text(result.trial, *result.seconds)});
  }
  std::string text = table.to_string();
  text.pop_back();
  console.line(text);
}

int calibrate(const CalibrateOptions& options) {
  if (!options.trial.empty()) return one_trial(options);
  Console console(options.json);
  const HostFacts host{memory_of_host(), ranks_of(options)};
  std::vector<TrialResult> results;
  Json rows = Json::array();
  for (const Trial& trial : default_trials(host.ranks)) {
    console.progress(name(trial));
    results.push_back(run_trial(trial, options, host.ranks));
    rows.push_back(row_of(results.back()));
  }
  const ClusterSpec cluster = cluster_of(results, host);
  print(console, results, cluster, host.ranks.count);
  const std::string text = calibrated_toml(cluster, host, results);
  if (options.out.empty()) {
    console.line(text);
  } else {
    write_file_atomically(options.out, text);
    console.line(fmt::format("{} ranks of this host -> {}; quatrain plan --cluster {} reads it",
                             host.ranks.count, options.out, options.out));
  }
  console.document({{"ranks", host.ranks.count},
                    {"threads", host.ranks.threads},
                    {"out", options.out},
                    {"trials", rows}});
  return kDone;
}

}  // namespace

Registered add_calibrate(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("calibrate", "This machine, measured, as a cluster file");
  auto o = std::make_shared<CalibrateOptions>();
  parser->add_option("--out", o->out, "the cluster file, TOML; else it is printed");
  parser->add_option("--ranks", o->ranks, "that work at once; default: the cores of this host")
      ->check(CLI::Range(1, 4096));
  parser->add_option("--threads", o->threads, "of each rank; default: the cores over the ranks")
      ->check(CLI::Range(1, 4096));
  parser->add_option("--budget", o->budget, "seconds that a trial measures")
      ->capture_default_str()
      ->check(CLI::Range(1e-4, 3600.0));
  parser->add_option("--timeout", o->timeout, "seconds after which a trial is ended")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  parser->add_option("--trial", o->trial, "that one alone, here: prints its seconds");
  parser->add_option("--fault", o->faults, "TRIAL=crash|hang|fail: to see the others go on");
  parser->add_flag("--json", o->json, "one JSON document on stdout, the rest on stderr");
  parser->footer(
      "Example:\n  quatrain calibrate --out this.toml\n"
      "  quatrain simulate configs/demo.toml --cluster this.toml");
  return {parser, [o] { return calibrate(*o); }};
}

}  // namespace quatrain::apps

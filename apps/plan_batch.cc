// SPDX-License-Identifier: Apache-2.0
// plan --batch: a CSV of questions in, the same rows with answers out. Each row stands alone: a bad
// one gets its reason in `why`.
#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "apps/csv.h"
#include "apps/plan_text.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/planner/explain.h"
#include "quatrain/spec/model_io.h"

namespace quatrain::apps {
namespace {

constexpr const char* kAnswers[] = {
    "step_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "peak_gib", "fits", "plan",
    "why"};
constexpr std::size_t kNumAnswers = std::size(kAnswers);

// One row by column; what is absent is empty.
class Question {
 public:
  Question(const CsvRow& header, const CsvRow& row) {
    for (std::size_t i = 0; i < header.size() && i < row.size(); ++i) cells_[header[i]] = row[i];
  }
  std::string text(const std::string& key) const {
    const auto found = cells_.find(key);
    return found == cells_.end() ? "" : found->second;
  }
  std::int64_t number(const std::string& key) const {
    const std::string cell = text(key);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    constexpr std::int64_t kMost = 1'000'000'000;
    if (error == std::errc{} && end == cell.data() + cell.size() && value >= 1 && value <= kMost) {
      return value;
    }
    throw ConfigError(fmt::format("{} = \"{}\" is no whole number, 1 or more", key, cell));
  }

  Job job() const {
    Job job;
    job.model = find_model(text("model"));
    job.cluster = cluster(text("cluster"));
    job.gpus = static_cast<int>(number("gpus"));
    job.seq = number("seq");
    job.global_batch = number("global_batch");
    const std::string dtype = text("dtype");
    set_dtype(job, dtype.empty() ? "bfloat16" : dtype);
    return job;
  }

  Fixed fixed() const {
    std::string list;
    for (const char* key : {"micro_batch", "dp", "tp", "pp", "chunks", "cp", "cp_style", "ep",
                            "etp", "zero", "recompute", "schedule"}) {
      const std::string value = text(key);
      if (value.empty()) continue;
      list += fmt::format("{}{}={}", list.empty() ? "" : ",", key, value);
    }
    return parse_fixed(list);
  }

 private:
  std::map<std::string, std::string> cells_;
};

CsvRow answered(const Job& job, const RankedPlan& plan) {
  const Estimate& e = plan.estimate;
  constexpr double kGib = 1 << 30;
  return {fmt::format("{:.6g}", e.step),
          fmt::format("{:.6g}", tokens_per_second(job, e) / job.gpus),
          fmt::format("{:.6g}", e.model_flops / e.step / job.gpus / 1e12),
          fmt::format("{:.4f}", e.mfu),
          fmt::format("{:.4f}", e.memory.sum() / kGib),
          e.fits ? "true" : "false",
          to_string(plan.geometry),
          why(job, plan)};
}

CsvRow answer(const Question& question) {
  const Job job = question.job();
  SearchRequest request;
  request.fixed = question.fixed();
  request.top = 1;
  SearchResult result = search(job, request);
  if (result.plans.empty()) {
    // A row may be a run that was tried: its time and memory are an answer as well.
    request.must_fit = false;
    request.objective = Objective::kMemory;
    result = search(job, request);
  }
  if (result.plans.empty()) throw ConfigError(why_nothing(job, result));
  return answered(job, result.plans.front());
}

}  // namespace

int answer_batch(const std::string& in, const std::string& out) {
  const std::vector<CsvRow> rows = parse_csv(read_file(in));
  if (rows.empty()) throw ConfigError(in + " has no header line");
  const CsvRow& asked = rows.front();
  CsvRow header = asked;
  header.insert(header.end(), std::begin(kAnswers), std::end(kAnswers));
  std::string text = csv_line(header);
  int bad = 0;
  for (auto row = rows.begin() + 1; row != rows.end(); ++row) {
    CsvRow cells = *row;
    cells.resize(asked.size());
    CsvRow more(kNumAnswers);
    try {
      more = answer(Question(asked, cells));
    } catch (const ConfigError& error) {
      ++bad;
      more.back() = error.what();
    } catch (const StorageError& error) {
      ++bad;
      more.back() = error.what();
    }
    cells.insert(cells.end(), more.begin(), more.end());
    text += csv_line(cells);
  }
  write_file_atomically(out, text);
  return bad;
}

}  // namespace quatrain::apps

// SPDX-License-Identifier: Apache-2.0
// plan --batch: a CSV of questions in, the same rows with answers out. Each row stands alone: a bad
// one gets its reason in `why`.
#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/plan_text.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/planner/explain.h"

namespace quatrain::apps {
namespace {

using Row = std::vector<std::string>;

// RFC 4180: quoted cells may hold commas, quotes (doubled) and newlines.
std::vector<Row> parse_csv(std::string_view text) {
  std::vector<Row> rows;
  Row row{""};
  bool quoted = false, any = false;
  const auto end_row = [&] {
    if (any) rows.push_back(row);
    row = {""};
    any = false;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      row.back() += text[++i];
    } else if (c == '"') {
      quoted = !quoted;
      any = true;
    } else if (!quoted && c == ',') {
      row.emplace_back();
      any = true;
    } else if (!quoted && c == '\n') {
      end_row();
    } else if (quoted || c != '\r') {
      row.back() += c;
      any = true;
    }
  }
  end_row();
  return rows;
}

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

std::string line(const Row& row) {
  std::string text;
  for (std::size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + cell(row[i]);
  return text + "\n";
}

using Cells = std::map<std::string, std::string>;

std::int64_t number(const Cells& cells, const char* key) {
  const auto found = cells.find(key);
  if (found == cells.end() || found->second.empty()) {
    throw ConfigError(fmt::format("column {} is empty", key));
  }
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(found->second, &used);
  } catch (const std::logic_error&) {
    used = 0;
  }
  if (used != found->second.size() || value < 1 || value > 1'000'000'000) {
    throw ConfigError(
        fmt::format("{} = \"{}\" is no whole number of 1 or more", key, found->second));
  }
  return value;
}

Job job_of(const Cells& cells) {
  const auto text = [&](const char* key) {
    const auto found = cells.find(key);
    return found == cells.end() ? std::string() : found->second;
  };
  Job job;
  job.model = model_of(text("model"));
  job.cluster = cluster(text("cluster"));
  job.gpus = static_cast<int>(number(cells, "gpus"));
  job.seq = number(cells, "seq");
  job.global_batch = number(cells, "global_batch");
  const std::string dtype = text("dtype");
  if (dtype == "bf16") {
    job.dtype = Dtype::kBFloat16;
  } else if (!dtype.empty()) {
    const auto known = dtype_from_name(dtype);
    if (!known) throw ConfigError("dtype = \"" + dtype + "\"; bfloat16, bf16 or float32");
    job.dtype = *known;
  }
  return job;
}

Fixed fixed_of(const Cells& cells) {
  std::string text;
  for (const char* key : {"micro_batch", "dp", "tp", "pp", "chunks", "cp", "ep", "etp", "zero",
                          "recompute", "schedule"}) {
    const auto found = cells.find(key);
    if (found == cells.end() || found->second.empty()) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key, found->second);
  }
  return parse_fixed(text);
}

Row answered(const Job& job, const RankedPlan& plan, bool fits) {
  const Estimate& e = plan.estimate;
  const double gpus = job.gpus;
  return {fmt::format("{:.6g}", e.step),
          fmt::format("{:.6g}", static_cast<double>(job.global_batch * job.seq) / e.step / gpus),
          fmt::format("{:.6g}", e.model_flops / e.step / gpus / 1e12),
          fmt::format("{:.4f}", e.mfu),
          fmt::format("{:.4f}", e.memory.sum() / (1 << 30)),
          fits ? "true" : "false",
          to_string(plan.geometry),
          why(job, plan)};
}

Row answer(const Cells& cells) {
  const Job job = job_of(cells);
  SearchRequest request;
  request.fixed = fixed_of(cells);
  request.top = 1;
  if (const SearchResult result = search(job, request); !result.plans.empty()) {
    return answered(job, result.plans.front(), true);
  }
  // A row may be a run that was tried: its time and memory are an answer as well.
  request.must_fit = false;
  request.objective = Objective::kMemory;
  const SearchResult any = search(job, request);
  if (any.plans.empty()) {
    std::string reasons;
    for (const auto& [reason, refusal] : any.refused) {
      reasons += (reasons.empty() ? "" : "; ") + reason;
    }
    throw ConfigError(reasons.empty() ? "no geometry has these degrees" : reasons);
  }
  return answered(job, any.plans.front(), false);
}

}  // namespace

int answer_batch(const std::string& in, const std::string& out) {
  const std::vector<Row> rows = parse_csv(read_file(in));
  if (rows.empty()) throw ConfigError(in + " has no header line");
  Row header = rows.front();
  const std::size_t columns = header.size();
  for (const char* name : {"step_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu",
                           "peak_gib", "fits", "plan", "why"}) {
    header.emplace_back(name);
  }
  std::string text = line(header);
  int bad = 0;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    Row row = rows[r];
    row.resize(columns);
    Cells cells;
    for (std::size_t c = 0; c < columns; ++c) cells[header[c]] = row[c];
    try {
      for (std::string& more : answer(cells)) row.push_back(std::move(more));
    } catch (const ConfigError& error) {
      ++bad;
      row.resize(columns + 7);
      row.emplace_back(error.what());
    }
    text += line(row);
  }
  write_file_atomically(out, text);
  return bad;
}

}  // namespace quatrain::apps

// SPDX-License-Identifier: Apache-2.0
// Published runs as questions to the planner: what was run, on what, and what was measured.
#pragma once
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/planner/estimate.h"

namespace quatrain::bench {

struct PublishedRun {
  std::string table = {};     // its line in the output
  std::string label = {};     // the row, for lists of residuals
  std::string group = {};     // model or hardware: rows of one are fitted or predicted together
  std::string software = {};  // a name of software_table()
  std::string contest = {};   // rows among which the planner may choose; empty: none
  Job job = {};
  std::vector<Geometry> geometries =
      {};  // several where the table leaves something open: the fastest
  double seconds = std::numeric_limits<double>::quiet_NaN();         // of a step
  double gib = std::numeric_limits<double>::quiet_NaN();             // of the fullest GPU
  double tensor_overlap = std::numeric_limits<double>::quiet_NaN();  // if not its software's
  bool failed = false;  // out of memory, or another failure
};

// One line of a CSV by column name; absent columns and empty cells are "".
using CsvLine = std::map<std::string, std::string>;
std::vector<CsvLine> read_csv(const std::string& file);
double number(const CsvLine& line, const std::string& key, double otherwise = 0);
int whole(const CsvLine& line, const std::string& key, int otherwise = 1);

// What software does beside Quatrain's own ways: facts of its documentation, not fits.
struct Software {
  std::string name = {};
  std::vector<std::pair<double ClusterSpec::*, double>> facts = {};
};
const std::vector<Software>& software_table();
const Software& software(const std::string& name);
void put_on(ClusterSpec& cluster, const Software& software);

// All runs of the tables in a folder; a table that is not there has no rows.
std::vector<PublishedRun> published_runs(const std::string& folder);

// Readers of one table each, into `runs`.
void read_megatron_2021(const std::string& folder, std::vector<PublishedRun>& runs);
void read_korthikanti(const std::string& folder, std::vector<PublishedRun>& runs);
void read_zero_bubble(const std::string& folder, std::vector<PublishedRun>& runs);
void read_nanotron_sweep(const std::string& folder, std::vector<PublishedRun>& runs);
void read_nvidia_steps(const std::string& folder, std::vector<PublishedRun>& runs);
void read_bridge(const std::string& folder, std::vector<PublishedRun>& runs);
void read_llmfoundry(const std::string& folder, std::vector<PublishedRun>& runs);
void read_moe_folding(const std::string& folder, std::vector<PublishedRun>& runs);
void read_torchtitan(const std::string& folder, std::vector<PublishedRun>& runs);
void read_llama3(const std::string& folder, std::vector<PublishedRun>& runs);

// What tables say of a model, as a spec.
struct Shape {
  int hidden = 0, layers = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0, positions = 0;
  bool tied = false;
};
ModelSpec gpt(const Shape& shape);    // ffn: 4 x hidden
ModelSpec llama(const Shape& shape);  // ffn as given

// Seconds of a step that ran at `flops` a second and GPU. `full_attention`: the authors count pairs
// that a causal mask hides.
double seconds_at(const Job& job, double flops, bool full_attention);

}  // namespace quatrain::bench

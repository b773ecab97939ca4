// SPDX-License-Identifier: Apache-2.0
// Products of published shapes: where their tables are, estimates against measured rates. One
// scalar is taken out for each accelerator, as nobody measures on our clocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/planner/median.h"
#include "bench/planner/runs.h"
#include "quatrain/planner/op_time.h"

namespace quatrain::bench {
namespace {

// Of a cell "b=1, m=4096, ...".
double field(const std::string& shape, const std::string& key) {
  const std::size_t at = (" " + shape).find(" " + key + "=");
  return at == std::string::npos ? 1 : std::atof(shape.c_str() + at + key.size() + 1);
}

bool says(const std::string& shape, const std::string& part) {
  return shape.find(part) != std::string::npos;
}

double predicted(const Job& job, const CsvLine& line) {
  const std::string& shape = line.at("shape");
  if (line.at("op") == "matmul") {
    return product_seconds(
        job, {field(shape, "m"), field(shape, "n"), field(shape, "k"), field(shape, "b")},
        Precision::kJob);
  }
  const double m = field(shape, "M"), n = field(shape, "N"), k = field(shape, "K");
  const double count = field(shape, "ng");
  if (says(shape, "stage=fwd")) return product_seconds(job, {m, n, k, count}, Precision::kJob);
  if (says(shape, "bwd_grad_act")) return product_seconds(job, {m, k, n, count}, Precision::kJob);
  return product_seconds(job, {n, k, m, count}, Precision::kJob, true);
}

double measured(const CsvLine& line) {
  const std::string& shape = line.at("shape");
  const bool one = line.at("op") == "matmul";
  const double flops = 2 * field(shape, one ? "m" : "M") * field(shape, one ? "n" : "N") *
                       field(shape, one ? "k" : "K") * field(shape, one ? "b" : "ng");
  return flops /
         (1e12 * number(line, "peak_tflops_used") * number(line, "efficiency(achieved/peak)"));
}

// Median of |predicted / measured - 1| over the rows of one kind; 0 where there are none.
double error(const char* system, const char* on, const char* op) {
  const char* folder = std::getenv("QUATRAIN_TABLES");
  if (folder == nullptr) return 0;
  Job job;
  job.cluster = cluster(on);
  std::vector<double> ratios, errors;
  for (const CsvLine& line : read_csv(std::string(folder) + "/gemm_attn_efficiency_simumax.csv")) {
    if (!line.at("system").starts_with(system) || line.at("op") != op) continue;
    if (says(line.at("shape"), "main_grad_dtype=bf16")) continue;  // ours are sums in 32 bit
    ratios.push_back(predicted(job, line) / measured(line));
  }
  if (ratios.empty()) return 0;
  const double scale = median(ratios);
  for (const double ratio : ratios) errors.push_back(std::abs(ratio / scale - 1));
  return median(std::move(errors));
}

TEST(PublishedShapes, OneProduct) {
  EXPECT_LT(error("a100", "a100-sxm-80gb", "matmul"), 0.03);
  EXPECT_LT(error("b200", "b200-sxm", "matmul"), 0.07);
}

TEST(PublishedShapes, ManyProductsAtOnce) {
  EXPECT_LT(error("a100", "a100-sxm-80gb", "group_matmul"), 0.08);
  EXPECT_LT(error("b200", "b200-sxm", "group_matmul"), 0.12);
}

}  // namespace
}  // namespace quatrain::bench

// SPDX-License-Identifier: Apache-2.0
// See metrics.h. Keys are those of the command-line reference; they may be added to, not renamed.
#include "apps/metrics.h"

#include <fmt/format.h>

#include "quatrain/base/text.h"

namespace quatrain::apps {

std::optional<double> StepMetrics::mfu() const {
  if (!peak_flops_per_s) return std::nullopt;
  return model_flops / seconds / *peak_flops_per_s;
}

nlohmann::ordered_json to_json(const StepMetrics& m) {
  nlohmann::ordered_json line;
  line["step"] = m.report.step;
  line["tokens"] = m.tokens_seen;
  line["loss"] = m.report.loss;
  line["loss_hex"] = hex_float(m.report.loss);
  line["grad_norm"] = m.report.grad_norm;
  line["grad_norm_hex"] = hex_float(m.report.grad_norm);
  line["lr"] = m.lr;
  line["step_ms"] = m.seconds * 1e3;
  line["tokens_per_s"] = m.tokens_per_s();
  if (const auto mfu = m.mfu()) line["mfu"] = *mfu;
  line["trained_tokens"] = m.report.trained_tokens;
  line["max_logit"] = m.report.max_logit;
  line["max_attention_lse"] = m.report.max_attention_lse;
  if (!m.report.router.loads.empty()) {
    const RouterReport& router = m.report.router;
    line["router"] = {{"balance_loss", router.balance}, {"z_loss", router.z},
                      {"entropy", router.entropy},      {"max_load", router.worst_load()},
                      {"dropped", router.dropped},      {"loads", router.loads}};
  }
  line["skipped"] = m.report.skipped;
  line["flops"] = m.report.flops.total();
  auto& peak = line["peak_bytes"];
  peak["total"] = m.peak.total();
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    peak[std::string(name(category))] = m.peak[category];
  }
  line["comm"] = m.comm;
  line["exposed_comm_ms"] = m.exposed_comm_ms;
  line["bubble_ms"] = m.bubble_ms;
  return line;
}

std::string console_line(const StepMetrics& m, std::int64_t steps, double eta_seconds) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}  grad_norm {:.4f}  lr {:.1e}  {} tok/s",
                                 m.report.step, steps, m.report.loss, m.report.grad_norm, m.lr,
                                 with_commas(static_cast<std::int64_t>(m.tokens_per_s())));
  if (const auto mfu = m.mfu()) text += fmt::format("  mfu {:.1f} %", 100.0 * *mfu);
  text +=
      fmt::format("  peak {}  eta {}", human_bytes(m.peak.total()), human_duration(eta_seconds));
  if (!m.report.router.loads.empty()) {
    text += fmt::format("  load {:.2f}", m.report.router.worst_load());
  }
  if (m.report.skipped) text += "  SKIPPED (gradient not finite)";
  return text;
}

}  // namespace quatrain::apps

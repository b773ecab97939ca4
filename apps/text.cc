// SPDX-License-Identifier: Apache-2.0
// See text.h.
#include "apps/text.h"

#include <ATen/Parallel.h>

#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/infer/generate.h"
#include "quatrain/spec/parameters.h"

namespace quatrain::apps {
namespace {

// One position at a time, the matrices of a small model are done sooner than a team of threads has
// come together; on a busy machine by a factor of ten and more.
constexpr std::int64_t kWorthTeam = 1 << 24;  // parameters

class DecodingThreads {
 public:
  explicit DecodingThreads(const ModelSpec& model) : before_(at::get_num_threads()) {
    if (num_parameters(model) < kWorthTeam) at::set_num_threads(1);
  }
  ~DecodingThreads() { at::set_num_threads(before_); }
  DecodingThreads(const DecodingThreads&) = delete;
  DecodingThreads& operator=(const DecodingThreads&) = delete;

 private:
  int before_;
};

}  // namespace

std::string generate_text(Model& model, const Tokenizer& tokenizer, const TextRequest& request) {
  std::vector<std::int64_t> ids = tokenizer.encode(request.prompt);
  if (ids.empty()) {
    if (!tokenizer.eod_id()) throw ConfigError("the prompt is empty: give at least one character");
    ids.push_back(*tokenizer.eod_id());  // a document begins where another ended
  }
  GenerateOptions options;
  options.max_tokens = request.tokens;
  options.sampling.temperature = request.temperature;
  options.sampling.top_k = request.top_k;
  options.sampling.top_p = request.top_p;
  options.seed = request.seed;
  options.forward = request.forward;
  if (tokenizer.eod_id()) options.stop_ids = {*tokenizer.eod_id()};
  const DecodingThreads threads(model.spec());
  const std::vector<std::int64_t> added = generate(model, ids, options);
  ids.insert(ids.end(), added.begin(), added.end());
  return tokenizer.decode(ids);
}

}  // namespace quatrain::apps

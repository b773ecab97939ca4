// SPDX-License-Identifier: Apache-2.0
// The ranks' threads: each ends by telling the job, whether it returns or throws.
#include "quatrain/comm/thread/thread.h"

#include <fmt/format.h>

#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "quatrain/base/check.h"
#include "quatrain/comm/thread/communicator.h"

namespace quatrain {
namespace {

using RankMain = std::function<void(std::unique_ptr<Communicator> world)>;

void run_rank(const std::shared_ptr<ThreadJob>& job, ThreadGroup& world, int rank,
              const RankMain& rank_main) {
  const auto first = [rank](std::string_view text) {
    return fmt::format("rank {} failed first: {}", rank, text);
  };
  try {
    rank_main(make_thread_communicator(job, world, rank));
  } catch (const std::exception& error) {
    job->fail(std::current_exception(), first(error.what()));
  } catch (...) {
    job->fail(std::current_exception(), first("an exception of unknown type"));
  }
  job->leave(rank);
}

// Joins on every way out: a thread that could not be started fails those that were.
class RankThreads {
 public:
  explicit RankThreads(std::shared_ptr<ThreadJob> job) : job_(std::move(job)) {}
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  ~RankThreads() { join(); }

  template <class Main>
  void start(Main main) {
    try {
      threads_.emplace_back(std::move(main));
    } catch (const std::exception& error) {
      job_->fail(std::current_exception(),
                 fmt::format("rank {} did not start: {}", threads_.size(), error.what()));
      throw;
    }
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::shared_ptr<ThreadJob> job_;
  std::vector<std::thread> threads_;
};

}  // namespace

void run_thread_ranks(int n, const ThreadOptions& options, const RankMain& rank_main) {
  CHECK(n >= 1, "{} thread ranks", n);
  const auto job = std::make_shared<ThreadJob>(n, options);
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  ThreadGroup world("world", ranks);
  RankThreads threads(job);
  for (int rank = 0; rank < n; ++rank) {
    threads.start([&, rank] { run_rank(job, world, rank, rank_main); });
  }
  threads.join();
  if (const std::exception_ptr error = job->error()) std::rethrow_exception(error);
}

}  // namespace quatrain

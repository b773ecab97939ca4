// SPDX-License-Identifier: Apache-2.0
// Saves and loads of thread ranks beside plain sequential writes and reads of the same bytes, in
// turns, on the same disk. The state is that of AdamW under ZeRO: every tensor cut by rows.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/checkpointer.h"
#include "quatrain/checkpoint/load.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/storage.h"
#include "quatrain/comm/thread/thread.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kRows = 2048;
constexpr std::int64_t kColumns = 2048;
constexpr std::size_t kPlainBytes = 8 << 20;  // of one plain call

struct Options {
  fs::path folder = "/tmp/quatrain-bench-checkpoint";
  std::int64_t mib = 768;
  int ranks = 2;
  int turns = 5;
  int products = 40;  // of 1024 x 1024 matrices: what a step computes before its update
  std::string json;
};

double seconds_of(const std::function<void()>& f) {
  const Clock::time_point begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// dim 0: a rank's rows; dim 1: its columns.
std::vector<HeldPiece> held(const Options& options, int ranks, int rank, std::size_t dim) {
  std::vector<HeldPiece> pieces;
  const std::int64_t tensors = options.mib / (kRows * kColumns * 4 >> 20);
  for (std::int64_t i = 0; i < tensors; ++i) {
    const std::string kind =
        std::array{"weight", "exp_avg", "exp_avg_sq"}[static_cast<std::size_t>(i % 3)];
    Box box{{0, 0}, {kRows, kColumns}};
    const Range own = piece(box.size[dim], ranks, rank);
    box.begin[dim] = own.begin;
    box.size[dim] = own.size();
    pieces.push_back({{fmt::format("w{:03}", i / 3), kind},
                      {kRows, kColumns},
                      box,
                      at::full(box.size, static_cast<double>(i), at::kFloat)});
  }
  return pieces;
}

// So that reads come from the disk.
void forget(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

class Bench {
 public:
  Bench(const Options& options, Communicator& comm)
      : options_(options),
        comm_(comm),
        rows_(held(options, comm.size(), comm.rank(), 0)),
        columns_(held(options, comm.size(), comm.rank(), 1)),
        buffer_(kPlainBytes) {
    for (const HeldPiece& piece : rows_) bytes_ += piece.values.nbytes();
  }

  void run() {
    for (int turn = 0; turn < options_.turns; ++turn) {
      time("plain write", [this] { plain_write(); });
      time("save", [this] { save(); });
      time("compute alone", [this] { compute(); });
      time("save, asynchronous, and compute", [this] { save_beside_compute(); });
      cold("plain read", plain_folder(), [this] { plain_read(); });
      cold("load", checkpoint(), [this] { load(rows_); });
      cold("load, other geometry", checkpoint(), [this] { load(columns_); });
      time("plain read, cached", [this] { plain_read(); });
      time("load, cached", [this] { load(rows_); });
    }
  }
  const std::map<std::string, std::vector<double>>& seconds() const { return seconds_; }
  std::size_t bytes() const { return bytes_ * static_cast<std::size_t>(comm_.size()); }

 private:
  fs::path plain_folder() const { return options_.folder / "plain"; }
  fs::path checkpoint() const { return options_.folder / "run" / step_folder_name(step_); }
  fs::path plain_file() const { return plain_folder() / std::to_string(comm_.rank()); }

  void time(const std::string& what, const std::function<void()>& f) {
    comm_.barrier().wait();
    seconds_[what].push_back(seconds_of([&] {
      f();
      comm_.barrier().wait();
    }));
  }
  void cold(const std::string& what, const fs::path& folder, const std::function<void()>& f) {
    if (comm_.rank() == 0) forget(folder);
    time(what, f);
  }
  // The calls alone, as a stranger would make them.
  void plain_write() {
    fs::create_directories(plain_folder());
    const int file = ::open(plain_file().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (std::size_t done = 0; done < bytes_;) {
      const ssize_t n = ::write(file, buffer_.data(), std::min(kPlainBytes, bytes_ - done));
      if (n <= 0) throw StorageError(fmt::format("cannot write {}", plain_file().string()));
      done += static_cast<std::size_t>(n);
    }
    if (::fsync(file) != 0)
      throw StorageError(fmt::format("cannot sync {}", plain_file().string()));
    ::close(file);
  }
  void plain_read() {
    InputFile file(files_, plain_file());
    for (std::size_t done = 0; done < bytes_; done += kPlainBytes) {
      file.read(buffer_, static_cast<std::int64_t>(done));
    }
  }
  void compute() {
    for (int i = 0; i < options_.products; ++i) at::mm_out(product_, factor_, factor_);
  }
  void save() {
    sync_.save({.step = ++step_}, rows_);
    sync_.finish();
  }
  // Training is held up by the call, and where the update comes before the copy is there.
  void save_beside_compute() {
    const double call = seconds_of([&] { async_.save({.step = ++step_}, rows_); });
    seconds_["compute beside a copy"].push_back(seconds_of([&] { compute(); }));
    const double wait = seconds_of([&] { async_.await_copy(); });
    seconds_["stall of the asynchronous"].push_back(call + wait);
    async_.finish();
  }
  void load(const std::vector<HeldPiece>& into) {
    load_checkpoint(files_, comm_, checkpoint(), into);
  }

  const Options& options_;
  Communicator& comm_;
  PosixFileSystem files_;
  Checkpointer sync_{files_, comm_, {.folder = options_.folder / "run", .async = false}};
  Checkpointer async_{files_, comm_, {.folder = options_.folder / "run", .async = true}};
  std::vector<HeldPiece> rows_, columns_;
  at::Tensor factor_ = at::full({1024, 1024}, 0.5, at::kFloat);  // of compute's products
  at::Tensor product_ = at::empty_like(factor_);
  std::vector<std::byte> buffer_;
  std::size_t bytes_ = 0;  // of this rank
  std::int64_t step_ = 0;
  std::map<std::string, std::vector<double>> seconds_;
};

void report(const Options& options, const Bench& bench) {
  nlohmann::ordered_json document{{"bytes", bench.bytes()}, {"ranks", options.ranks}};
  Table table({"", "s", "GB/s"});
  for (auto [what, all] : bench.seconds()) {
    std::sort(all.begin(), all.end());
    const double median = all[all.size() / 2];
    const double rate = static_cast<double>(bench.bytes()) / median / 1e9;
    table.add({what, fmt::format("{:.3f}", median), fmt::format("{:.2f}", rate)});
    document["seconds"][what] = all;
  }
  fmt::print("{} on {} ranks, medians of {}\n{}\n",
             human_bytes(static_cast<std::int64_t>(bench.bytes())), options.ranks, options.turns,
             table.to_string());
  if (!options.json.empty()) write_file_atomically(options.json, document.dump(1) + "\n");
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) {
  quatrain::Options options;
  CLI::App app("Checkpoints beside plain files.");
  app.add_option("--folder", options.folder, "on the disk to measure; made and removed");
  app.add_option("--mib", options.mib, "size of the state");
  app.add_option("--ranks", options.ranks);
  app.add_option("--turns", options.turns);
  app.add_option("--products", options.products, "of matrices, behind an asynchronous save");
  app.add_option("--json", options.json, "file for the result");
  CLI11_PARSE(app, argc, argv);
  quatrain::run_thread_ranks(options.ranks, {}, [&](std::unique_ptr<quatrain::Communicator> world) {
    at::set_num_threads(1);
    quatrain::Bench bench(options, *world);
    bench.run();
    if (world->rank() == 0) quatrain::report(options, bench);
  });
  std::filesystem::remove_all(options.folder);
  return 0;
}

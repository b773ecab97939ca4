// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/testing/scenarios.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/reader.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/testing/crash_states.h"
#include "quatrain/checkpoint/testing/faulty_file_system.h"
#include "quatrain/checkpoint/testing/recording_file_system.h"
#include "quatrain/checkpoint/testing/test_run.h"

namespace quatrain::testing {
namespace {

using ::testing::HasSubstr;

// Of a size at which states differ in blocks of 4 KiB.
TestRun small_run(std::uint64_t seed) {
  return {.seed = seed, .ranks = 2, .shape = {.most_tensors = 4, .most_elements = 3000}};
}

// One byte of a checkpoint's files.
struct Place {
  std::string file;  // its path
  std::size_t byte = 0;
};

class Damage {
 public:
  explicit Damage(std::uint64_t seed) : run_(small_run(seed)), draws_(seed, "damage") {
    MemoryFileSystem files;
    run_.ranks = 3;
    run_.save(files, 100);
    good_ = files.files();
    manifest_ = read_manifest(files, step_path(run_, 100));
    wanted_ = whole_pieces(run_.tensors(0));
  }

  void flip() {
    const Place place = random_place();
    MemoryFileSystem::Files files = good_;
    files[place.file][place.byte] ^= static_cast<char>(1 << draws_.below(8));
    expect_found(files, place, tensor_at(place));
  }
  void cut() {
    Place place = random_place();
    MemoryFileSystem::Files files = good_;
    if (draws_.below(5) == 0) {
      files[place.file].append(static_cast<std::size_t>(draws_.between(1, 5000)), '\0');
    } else {
      files[place.file].resize(place.byte);
    }
    expect_found(files, place, "");
  }

 private:
  // Headers and manifest as often as data, however small they are.
  Place random_place() {
    auto file = std::next(good_.begin(), draws_.below(static_cast<std::int64_t>(good_.size())));
    const auto size = static_cast<std::int64_t>(file->second.size());
    const std::int64_t bound = draws_.below(3) == 0 ? std::min<std::int64_t>(size, 200) : size;
    return {file->first, static_cast<std::size_t>(draws_.below(bound))};
  }
  std::string tensor_at(const Place& place) const {
    const auto byte = static_cast<std::int64_t>(place.byte);
    for (const TensorRecord& tensor : manifest_.tensors) {
      for (const PieceRecord& piece : tensor.pieces) {
        if (place.file.ends_with("/" + manifest_.files[piece.file].name) && piece.begin <= byte &&
            byte < piece.begin + bytes_of(piece, tensor.dtype)) {
          return to_string(tensor.id);
        }
      }
    }
    return "";
  }
  void expect_found(const MemoryFileSystem::Files& damaged, const Place& place,
                    const std::string& tensor) {
    MemoryFileSystem files(damaged);
    const std::string file = std::filesystem::path(place.file).filename();
    const std::string where = fmt::format("{} byte {}", place.file, place.byte);
    const Problems problems = verify_checkpoint(files, step_path(run_, 100));
    ASSERT_FALSE(problems.empty()) << where;
    EXPECT_THAT(to_string(problems), HasSubstr(file)) << where;
    EXPECT_THAT(to_string(problems), HasSubstr(tensor)) << where;
    try {
      const std::vector<HeldPiece> into = empty_copy(wanted_);
      for_each_rank(
          1, [&](Communicator& comm) { load_checkpoint(files, comm, step_path(run_, 100), into); });
      ADD_FAILURE() << where << " was not found by a load";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(file)) << where;
      EXPECT_THAT(error.what(), HasSubstr(tensor)) << where;
    }
    EXPECT_EQ(files.open_files(), 0) << where;
  }

  TestRun run_;
  Draws draws_;
  MemoryFileSystem::Files good_;
  Manifest manifest_;
  std::vector<HeldPiece> wanted_;
};

// What a save does to the disk, after others that are safe.
struct RecordedSave {
  std::string name;
  TestRun run;
  MemoryFileSystem::Files before;
  std::vector<FileOperation> operations;
  std::vector<std::int64_t> allowed;  // steps that a load may find; 0: none
  std::int64_t saved;
};

RecordedSave record(std::string name, const TestRun& run, const std::vector<std::int64_t>& before,
                    std::int64_t step, std::vector<std::int64_t> allowed) {
  RecordedSave save{std::move(name), run, {}, {}, std::move(allowed), step};
  MemoryFileSystem disk;
  for (const std::int64_t earlier : before) run.save(disk, earlier);
  save.before = disk.files();
  RecordingFileSystem recorder(disk);
  run.save(recorder, step);
  save.operations = recorder.operations();
  return save;
}

// A save that a full disk stops, and the next one, which cleans up.
RecordedSave record_after_failure(const TestRun& run) {
  RecordedSave save{"after a failure", run, {}, {}, {20, 30}, 30};
  MemoryFileSystem disk;
  run.save(disk, 10);
  run.save(disk, 20);
  save.before = disk.files();
  RecordingFileSystem recorder(disk);
  FaultyFileSystem faulty(recorder, {FileCall::kSync, 2, ENOSPC, true});
  EXPECT_THROW(run.save(faulty, 30), StorageError);
  run.save(recorder, 30);
  save.operations = recorder.operations();
  return save;
}

void expect_old_or_new(const RecordedSave& save, std::size_t done, std::uint64_t number) {
  const CrashStates crashes(save.before, save.operations);
  MemoryFileSystem disk(crashes.state(done, number));
  const std::string where = fmt::format("{}, seed {}, {} of {} operations, state {}", save.name,
                                        save.run.seed, done, save.operations.size(), number);
  SCOPED_TRACE(where);
  const std::int64_t found = save.run.load(disk).value_or(0);
  if (done == save.operations.size()) {
    EXPECT_EQ(found, save.saved);
  } else {
    EXPECT_THAT(save.allowed, ::testing::Contains(found));
  }
}

constexpr std::array kEveryCall{FileCall::kCreate, FileCall::kOpen,       FileCall::kClose,
                                FileCall::kWrite,  FileCall::kRead,       FileCall::kSize,
                                FileCall::kSync,   FileCall::kMakeFolder, FileCall::kRename,
                                FileCall::kRemove, FileCall::kSyncFolder, FileCall::kList};
constexpr std::array kEveryError{ENOSPC, EIO, EINTR, FileFault::kShort};

// EINTR and short counts are no failures.
bool is_harmless(int error) { return error == EINTR || error == FileFault::kShort; }

std::string to_string(const FileFault& fault) {
  return fmt::format("{} #{} gives {}", name(fault.call), fault.number, fault.error);
}

class Faults {
 public:
  Faults(std::uint64_t seed, bool async) : run_(small_run(seed)) {
    set_log_level(LogLevel::kError);  // thousands of warnings otherwise
    run_.options.async = async;
    MemoryFileSystem disk;
    for (const std::int64_t step : {10, 20}) run_.save(disk, step);
    before_ = disk.files();
    run_.save(disk, 30);
    after_ = disk.files();
  }

  void expect_save_survives(const FileFault& fault) {
    MemoryFileSystem disk(before_);
    FaultyFileSystem faulty(disk, fault);
    std::vector<std::string> errors(static_cast<std::size_t>(run_.ranks));
    std::atomic<int> went_on = 0;
    for_each_rank(run_.ranks, [&](Communicator& comm) {
      try {
        run_.save(faulty, comm, 30);
      } catch (const StorageError& error) {
        errors[static_cast<std::size_t>(comm.rank())] = error.what();
      }
      ++went_on;
    });
    EXPECT_EQ(went_on, run_.ranks);
    for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
    const bool failed = !errors.front().empty();
    if (failed) {
      EXPECT_FALSE(is_harmless(fault.error)) << errors.front();
      EXPECT_THAT(errors.front(), ::testing::MatchesRegex("rank [01]: cannot .* /run.*"));
    }
    EXPECT_EQ(disk.open_files(), 0);
    EXPECT_EQ(run_.load(disk), failed ? 20 : 30);
    if (!failed) return;
    run_.save(disk, 30);
    EXPECT_EQ(run_.load(disk), 30);
  }
  // None where the fault did not strike: there are no more such calls.
  bool expect_load_survives(const FileFault& fault) {
    MemoryFileSystem disk(after_);
    FaultyFileSystem faulty(disk, fault);
    try {
      const std::optional<std::int64_t> step = run_.load(faulty, 7, 2);
      EXPECT_THAT(step, ::testing::AnyOf(20, 30));
      EXPECT_TRUE(step == 30 || !is_harmless(fault.error));
    } catch (const StorageError& error) {
      EXPECT_FALSE(is_harmless(fault.error)) << error.what();
      EXPECT_THAT(error.what(), ::testing::MatchesRegex("rank [01]: cannot .* /run.*"));
    }
    EXPECT_EQ(disk.open_files(), 0);
    EXPECT_EQ(disk.files(), after_);
    return faulty.struck();
  }
  std::int64_t calls_of_save(FileCall call) {
    MemoryFileSystem disk(before_);
    FaultyFileSystem counting(disk);
    run_.save(counting, 30);
    return counting.calls(call);
  }

 private:
  TestRun run_;
  MemoryFileSystem::Files before_;
  MemoryFileSystem::Files after_;
};

}  // namespace

void expect_round_trip(std::uint64_t seed) {
  Draws draws(seed, "round trip");
  TestRun run{.seed = seed, .ranks = static_cast<int>(draws.between(1, 4))};
  run.options.async = draws.below(2) == 0;
  if (seed % 10 == 0) run.shape.most_elements = 60000;  // pieces of many tiles
  MemoryFileSystem files;
  run.save(files, 5);
  const Problems problems = verify_checkpoint(files, step_path(run, 5));
  EXPECT_TRUE(problems.empty()) << "seed " << seed << ": " << quatrain::to_string(problems);
  EXPECT_EQ(run.load(files, draws.bits() % 1000, static_cast<int>(draws.between(1, 4))), 5);
  EXPECT_EQ(files.open_files(), 0);
}

void expect_damage_found(std::uint64_t seed, int flips, int cuts) {
  Damage damage(seed);
  for (int i = 0; i < flips; ++i) damage.flip();
  for (int i = 0; i < cuts; ++i) damage.cut();
}

void expect_whole_after_power_loss(std::uint64_t seed, int states) {
  set_log_level(LogLevel::kError);
  TestRun async = small_run(seed);
  TestRun sync = async;
  sync.options.async = false;
  const std::vector<RecordedSave> saves{
      record("first", async, {}, 10, {0, 10}), record("next", async, {10, 20}, 30, {20, 30}),
      record("sync", sync, {10, 20}, 30, {20, 30}), record("again", async, {10, 20}, 20, {10, 20}),
      record_after_failure(async)};
  Draws draws(seed, "power loss");
  for (int i = 0; i < states; ++i) {
    const RecordedSave& save = saves[static_cast<std::size_t>(i) % saves.size()];
    const auto all = static_cast<std::int64_t>(save.operations.size());
    const std::int64_t done = draws.below(10) == 0 ? all : draws.below(all + 1);
    expect_old_or_new(save, static_cast<std::size_t>(done), draws.bits());
  }
}

void expect_faults_survived(std::uint64_t seed, bool async) {
  Faults faults(seed, async);
  for (const FileCall call : kEveryCall) {
    const std::int64_t calls = faults.calls_of_save(call);
    for (const int error : kEveryError) {
      for (std::int64_t number = 1; number <= calls; ++number) {
        const FileFault fault{call, number, error};
        SCOPED_TRACE("save: " + to_string(fault));
        faults.expect_save_survives(fault);
      }
      for (std::int64_t number = 1;; ++number) {
        const FileFault fault{call, number, error};
        SCOPED_TRACE("load: " + to_string(fault));
        if (!faults.expect_load_survives(fault)) break;
      }
    }
  }
}

}  // namespace quatrain::testing

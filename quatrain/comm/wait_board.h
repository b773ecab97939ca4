// SPDX-License-Identifier: Apache-2.0
// What one rank waits for now and what it finished last, as text that any thread and any signal
// handler may read while the rank writes: no locks, no allocation, never a torn line.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quatrain {

// One line of text, one writer, any readers. Two slots: the writer fills the one that is not
// published and then publishes it, so a reader that interrupts the writer still finds the other.
class BoardLine {
 public:
  static constexpr std::size_t kBytes = 248;  // longer text is cut

  void write(std::string_view text) noexcept;  // the writer's thread only
  // Copies the line, as much of it as fits, and returns its length.
  std::size_t read(std::span<char> out) const noexcept;

 private:
  using Slot = std::array<std::atomic<std::uint64_t>, kBytes / 8 + 1>;  // words, then the length
  std::array<Slot, 2> slots_{};
  std::atomic<std::uint32_t> generation_{0};  // slot generation % 2 is published
};

class WaitBoard {
 public:
  // "thread all_gather #3 on dp {0, 2} for ranks {2}"; empty: for nothing.
  void waits_for(std::string_view text) noexcept { waits_.write(text); }
  void finished(std::string_view text) noexcept { finished_.write(text); }

  // "waits in thread all_gather #3 on dp {0, 2} for ranks {2}; last finished thread barrier #2 on
  // dp {0, 2}". Safe in a signal handler; returns the length.
  std::size_t read(std::span<char> out) const noexcept;
  std::string to_string() const;
  std::string last_finished() const;  // the second half of it

 private:
  BoardLine waits_;
  BoardLine finished_;
};

}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// Time runs to the right, a column a fixed time. Cells are as wide as fits one block of lines, and
// no narrower than a character an action: a longer timeline is folded.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "quatrain/schedule/picture.h"

namespace quatrain {
namespace {

struct Cell {
  char kind = '.';
  char number = ' ';
  std::string_view colour;  // ANSI background; empty where idle
};

char small(char kind) { return static_cast<char>(kind - 'A' + 'a'); }

char letter(const Tile& tile) {
  const auto of_kind = [&] {
    switch (tile.action.kind) {
      case ActionKind::kForward:
        return 'F';
      case ActionKind::kBackwardInput:
        return 'I';
      case ActionKind::kBackwardWeight:
        return 'W';
      case ActionKind::kBackward:
        return 'B';
      case ActionKind::kOptimizerStep:
        return 'O';
      case ActionKind::kSendForward:
      case ActionKind::kRecvForward:
      case ActionKind::kSendBackward:
      case ActionKind::kRecvBackward:
      case ActionKind::kUnshard:
      case ActionKind::kReshard:
      case ActionKind::kReduceGrad:
      case ActionKind::kReduceTied:
      case ActionKind::kNormPart:
        return 'C';  // communication
    }
    return '?';
  }();
  return tile.light ? small(of_kind) : of_kind;
}

// Dark with white numbers, light with black ones.
std::string_view colour(char kind) {
  switch (kind) {
    case 'F':
      return "\x1b[97;48;5;25m";
    case 'f':
      return "\x1b[30;48;5;117m";
    case 'I':
      return "\x1b[97;48;5;30m";
    case 'i':
      return "\x1b[30;48;5;159m";
    case 'W':
      return "\x1b[97;48;5;28m";
    case 'w':
      return "\x1b[30;48;5;157m";
    case 'B':
      return "\x1b[97;48;5;29m";
    case 'b':
      return "\x1b[30;48;5;122m";
    case 'O':
    case 'o':
      return "\x1b[97;48;5;54m";
    default:
      return "\x1b[30;48;5;214m";
  }
}
constexpr std::string_view kPlain = "\x1b[0m";

constexpr std::array<std::pair<char, std::string_view>, 6> kNames = {{{'F', "forward"},
                                                                      {'I', "input half"},
                                                                      {'W', "weight half"},
                                                                      {'B', "both halves"},
                                                                      {'O', "optimizer"},
                                                                      {'C', "communication"}}};

char one_character(int number) {
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const auto index = static_cast<std::size_t>(number);
  return index < kDigits.size() ? kDigits[index] : '*';
}

// The time that gets the narrowest cell: the shortest action, unless it is far below the others.
double unit_of(const std::vector<std::vector<Tile>>& rows) {
  double shortest = INFINITY, sum = 0.0;
  std::size_t count = 0;
  for (const auto& row : rows) {
    for (const Tile& tile : row) {
      const double time = (tile.end - tile.begin) * (tile.share_end - tile.share_begin);
      shortest = std::min(shortest, time);
      sum += time;
      ++count;
    }
  }
  return count == 0 ? 1.0 : std::max(shortest, sum / static_cast<double>(count) / 4.0);
}

class Grid {
 public:
  Grid(const Timeline& timeline, const GridOptions& options)
      : options_(options),
        rows_(tiles(timeline)),
        label_(fmt::format("rank {} ", rows_.size() - 1).size()) {
    const double units = timeline.makespan / unit_of(rows_);
    const int room = std::max(8, options.columns - static_cast<int>(label_));
    int width = 4;
    while (width > 1 && units * width > room) --width;
    per_time_ = units > 0.0 ? width * units / timeline.makespan : 1.0;
    columns_ = std::max(1L, std::lround(units * width));
    block_ = std::min<long>(columns_, room);
    decimal_ = decimals_fit();
    for (const auto& row : rows_) lines_.push_back(cells(row));
  }

  std::string text() const {
    std::string result;
    for (long begin = 0; begin < columns_; begin += block_) {
      if (begin > 0) result += '\n';
      const long end = std::min(begin + block_, columns_);
      if (columns_ > block_)
        result += fmt::format("time {:.4g}\n", static_cast<double>(begin) / per_time_);
      for (std::size_t rank = 0; rank < lines_.size(); ++rank) {
        const std::span<const Cell> part(lines_[rank].data() + begin, lines_[rank].data() + end);
        const std::string label = fmt::format("{:<{}}", fmt::format("rank {}", rank), label_);
        result += options_.colour ? label + coloured(part) : plain(part, label);
      }
    }
    return result + legend();
  }

 private:
  struct Columns {
    long begin, end;
  };
  Columns columns_of(const Tile& tile) const {
    const double time = tile.end - tile.begin;
    return {std::lround((tile.begin + tile.share_begin * time) * per_time_),
            std::min(columns_, std::lround((tile.begin + tile.share_end * time) * per_time_))};
  }

  // Every number in its cell; one of several digits with a space behind it.
  bool decimals_fit() const {
    long narrowest = columns_;
    int last = 0;
    for (const auto& row : rows_) {
      for (const Tile& tile : row) {
        const Columns columns = columns_of(tile);
        if (!tile.action.microbatch || columns.begin >= columns.end) continue;
        narrowest = std::min(narrowest, columns.end - columns.begin);
        last = std::max(last, *tile.action.microbatch);
      }
    }
    return last < 10 || static_cast<long>(std::to_string(last).size()) < narrowest;
  }

  std::vector<Cell> cells(const std::vector<Tile>& row) const {
    std::vector<Cell> line(static_cast<std::size_t>(columns_));
    for (const Tile& tile : row) fill(line, tile, columns_of(tile));
    return line;
  }

  void fill(std::vector<Cell>& line, const Tile& tile, Columns columns) const {
    const char kind = letter(tile);
    const std::string number = tile.action.microbatch ? text_of(*tile.action.microbatch) : "";
    for (long c = columns.begin; c < columns.end; ++c) {
      const auto at = static_cast<std::size_t>(c - columns.begin);
      line[static_cast<std::size_t>(c)] = {at == 0 ? kind : '-',
                                           at < number.size() ? number[at] : ' ', colour(kind)};
    }
  }

  std::string text_of(int microbatch) const {
    return decimal_ ? std::to_string(microbatch) : std::string(1, one_character(microbatch));
  }

  static std::string coloured(std::span<const Cell> part) {
    std::string text;
    std::string_view now;
    for (const Cell& cell : part) {
      if (cell.colour != now) text += cell.colour.empty() ? kPlain : cell.colour;
      now = cell.colour;
      text += cell.number;
    }
    if (!now.empty()) text += kPlain;
    return text + '\n';
  }

  static std::string plain(std::span<const Cell> part, const std::string& label) {
    std::string kinds = label, numbers(label.size(), ' ');
    for (const Cell& cell : part) {
      kinds += cell.kind;
      numbers += cell.number;
    }
    numbers.erase(numbers.find_last_not_of(' ') + 1);
    return kinds + '\n' + numbers + '\n';
  }

  // Of what occurs.
  std::string legend() const {
    std::string seen;
    for (const auto& row : rows_) {
      for (const Tile& tile : row) seen += letter(tile);
    }
    const bool light = seen.find_first_of("fiwboc") != std::string::npos;
    std::vector<std::string> notes;
    for (const auto& [kind, name] : kNames) {
      if (seen.find_first_of(std::string{kind, small(kind)}) == std::string::npos) continue;
      notes.push_back(options_.colour ? fmt::format("{} {} {}", colour(kind), name, kPlain)
                                      : fmt::format("{} {}", kind, name));
    }
    if (light) {
      notes.push_back(fmt::format("{}: further stages", options_.colour ? "lighter" : "small"));
    }
    if (!decimal_) notes.push_back(fmt::format("{}: micro-batch 10", one_character(10)));
    return fmt::format("{}\n", fmt::join(notes, options_.colour ? " " : ", "));
  }

  GridOptions options_;
  std::vector<std::vector<Tile>> rows_;
  std::size_t label_;
  double per_time_ = 1.0;  // columns
  long columns_ = 1;
  long block_ = 1;
  bool decimal_ = true;  // how all micro-batches are written; else a character each
  std::vector<std::vector<Cell>> lines_;
};

}  // namespace

std::string to_grid(const Timeline& timeline, const GridOptions& options) {
  return Grid(timeline, options).text();
}

}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// A line a rank, time to the right; the halves of a pair lie above each other.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "quatrain/schedule/picture.h"

namespace quatrain {
namespace {

constexpr double kLabel = 58, kTop = 58, kRow = 26, kGap = 4, kBottom = 34, kRight = 14;
constexpr double kNarrowest = 20;  // of the shortest action: two digits fit

struct Paint {
  std::string_view dark, light, name;
};

constexpr Paint kForward{"#2f62ac", "#a8c6ee", "forward"};
constexpr Paint kInput{"#128a94", "#9be0e3", "backward, input half"};
constexpr Paint kWeight{"#3f8f3a", "#b7e2ab", "backward, weight half"};
constexpr Paint kFused{"url(#both)", "url(#both-light)", "backward, both halves"};
constexpr Paint kOptimizer{"#7a4fa0", "#7a4fa0", "optimizer"};
constexpr Paint kCommunication{"#d9822b", "#f3c38e", "communication"};
constexpr std::array kPaints = {kForward, kInput, kWeight, kFused, kOptimizer, kCommunication};

const Paint& paint(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return kForward;
    case ActionKind::kBackwardInput:
      return kInput;
    case ActionKind::kBackwardWeight:
      return kWeight;
    case ActionKind::kBackward:
      return kFused;
    case ActionKind::kOptimizerStep:
      return kOptimizer;
    case ActionKind::kSendForward:
    case ActionKind::kRecvForward:
    case ActionKind::kSendBackward:
    case ActionKind::kRecvBackward:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kReduceTied:
    case ActionKind::kNormPart:
      return kCommunication;
  }
  return kCommunication;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else
      result += c;
  }
  return result;
}

class Svg {
 public:
  Svg(const Timeline& timeline, std::string_view title)
      : timeline_(timeline), title_(title), rows_(tiles(timeline)) {
    double shortest = timeline.makespan;
    for (const auto& row : rows_) {
      for (const Tile& tile : row) shortest = std::min(shortest, tile.end - tile.begin);
    }
    // No wider than 8000: pictures of long schedules lose their smallest numbers.
    per_time_ = shortest > 0.0 ? std::min(kNarrowest / shortest, 8000.0 / timeline.makespan) : 1.0;
  }

  std::string text() {
    open();
    legend();
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) idle(rank);
    for (const ClockMessage& message : timeline_.messages) draw(message);
    boxes();
    numbers();
    axis();
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  double x(double time) const { return kLabel + time * per_time_; }
  static double y(std::size_t rank) { return kTop + static_cast<double>(rank) * (kRow + kGap); }
  double bottom() const { return y(rows_.size()); }

  void open() {
    const double width = std::max(x(timeline_.makespan) + kRight, 760.0);
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n",
        width, bottom() + kBottom);
    for (const auto& [id, from, to] :
         {std::array{std::string_view("both"), kInput.dark, kWeight.dark},
          std::array{std::string_view("both-light"), kInput.light, kWeight.light}}) {
      add("<linearGradient id=\"{}\"><stop offset=\"0.2\" stop-color=\"{}\"/><stop offset=\"0.8\" "
          "stop-color=\"{}\"/></linearGradient>\n",
          id, from, to);
    }
    add("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    add("<text x=\"8\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>\n",
        escaped(title_));
  }

  // Of the paints that occur.
  void legend() {
    double at = 8;
    for (const Paint& of : kPaints) {
      if (!occurs(of)) continue;
      add("<rect x=\"{:.0f}\" y=\"32\" width=\"14\" height=\"12\" fill=\"{}\"/><text "
          "x=\"{:.0f}\" y=\"42\">{}</text>\n",
          at, of.dark, at + 19, of.name);
      at += 34 + 6.0 * static_cast<double>(of.name.size());
    }
    const auto light = [](const auto& row) { return std::ranges::any_of(row, &Tile::light); };
    if (std::ranges::any_of(rows_, light)) {
      add("<text x=\"{:.0f}\" y=\"42\">lighter: further stages</text>\n", at + 8);
    }
  }
  bool occurs(const Paint& of) const {
    if (of.name == kCommunication.name && shows_messages()) return true;
    return std::any_of(rows_.begin(), rows_.end(), [&](const std::vector<Tile>& row) {
      return std::any_of(row.begin(), row.end(),
                         [&](const Tile& tile) { return paint(tile.action.kind).name == of.name; });
    });
  }
  bool shows_messages() const {
    return std::any_of(timeline_.messages.begin(), timeline_.messages.end(),
                       [](const ClockMessage& message) { return message.end > message.begin; });
  }

  void idle(std::size_t rank) {
    add("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y(rank) + kRow / 2 + 4, rank);
    add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f0f0f0\"/>\n", x(0),
        y(rank), timeline_.makespan * per_time_, kRow);
  }

  struct Box {
    double left, top, width, height;
  };
  Box box(const Tile& tile, std::size_t rank) const {
    const double height = kRow / tile.halves;
    return {x(tile.begin), y(rank) + tile.half * height, (tile.end - tile.begin) * per_time_,
            height};
  }
  template <class F>
  void for_tiles(const F& f) const {
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      for (const Tile& tile : rows_[rank]) f(tile, box(tile, rank));
    }
  }

  void boxes() {
    add("<g stroke=\"#ffffff\" stroke-width=\"0.8\">\n");
    for_tiles([this](const Tile& tile, const Box& at) {
      const Paint& of = paint(tile.action.kind);
      add("<rect x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\" "
          "fill=\"{}\"><title>{} {:.6g} to {:.6g}</title></rect>\n",
          at.left, at.top, at.width, at.height, tile.light ? of.light : of.dark,
          to_string(tile.action), tile.begin, tile.end);
    });
    add("</g>\n");
  }

  void numbers() {
    add("<g text-anchor=\"middle\" fill=\"#ffffff\">\n");
    for_tiles([this](const Tile& tile, const Box& at) {
      const std::string number =
          tile.action.microbatch ? fmt::format("{}", *tile.action.microbatch) : "opt";
      const double size = tile.halves == 1 ? 11 : 9.5;
      if (0.58 * size * static_cast<double>(number.size()) > at.width) return;
      const bool dark = tile.light && tile.action.kind != ActionKind::kOptimizerStep;
      add("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", at.left + at.width / 2,
          at.top + at.height / 2 + 0.36 * size, tile.halves == 1 ? "" : " font-size=\"9.5\"",
          dark ? " fill=\"#111111\"" : "", number);
    });
    add("</g>\n");
  }

  // From the sender's line to the receiver's, behind what ranks between them compute.
  void draw(const ClockMessage& message) {
    if (message.end <= message.begin) return;
    const bool down = message.from < message.to;
    const auto edge = [&](int rank, bool below) {
      return y(static_cast<std::size_t>(rank)) + (below ? kRow : 0);
    };
    add("<line x1=\"{:.2f}\" y1=\"{:.1f}\" x2=\"{:.2f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"1.2\" opacity=\"0.8\"/>\n",
        x(message.begin), edge(message.from, down), x(message.end), edge(message.to, !down),
        kCommunication.dark);
  }

  void axis() {
    const double step = nice_step(timeline_.makespan / 12.0);
    for (double time = 0; step > 0.0 && time <= timeline_.makespan * 1.0001; time += step) {
      add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" "
          "stroke=\"#666666\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" "
          "fill=\"#444444\">{4:.6g}</text>\n",
          x(time), bottom(), bottom() + 5, bottom() + 18, time);
    }
  }
  // 1, 2 or 5 times a power of ten.
  static double nice_step(double least) {
    if (least <= 0.0) return 0.0;
    const double power = std::pow(10.0, std::floor(std::log10(least)));
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * power >= least) return factor * power;
    }
    return 10.0 * power;
  }

  const Timeline& timeline_;
  std::string_view title_;
  std::vector<std::vector<Tile>> rows_;
  double per_time_ = 1.0;
  std::string text_;
};

}  // namespace

std::string to_svg(const Timeline& timeline, std::string_view title) {
  return Svg(timeline, title).text();
}

}  // namespace quatrain

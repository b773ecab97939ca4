// SPDX-License-Identifier: Apache-2.0
// See svg.h. The eight colours keep their order of lightness for readers who see fewer of them.
#include "quatrain/report/svg.h"

#include <fmt/format.h>

#include <iterator>

namespace quatrain {
namespace {

constexpr std::string_view kStyle = R"(:root{color-scheme:light dark;
--ink:#1c2430;--muted:#566070;--grid:#e2e6eb;--paper:#ffffff;--card:#f6f8fa;
--c0:#2563a8;--c1:#d1600f;--c2:#1f8a5b;--c3:#a83279;--c4:#7a5cc4;--c5:#8a6d00;--c6:#0f8595;
--c7:#6b7280;--heat:#2563a8;--on-heat:#ffffff}
@media(prefers-color-scheme:dark){:root{
--ink:#e8ecf2;--muted:#a7b1bf;--grid:#313a46;--paper:#14181e;--card:#1b2129;
--c0:#6aa9f2;--c1:#f3954a;--c2:#4fc28e;--c3:#e37fbf;--c4:#b09af0;--c5:#d8b640;--c6:#4cc3d2;
--c7:#a3abb8;--heat:#6aa9f2;--on-heat:#0c1118}}
.chart{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.chart text{fill:var(--ink);stroke:none}
.chart .title{font-size:14px;font-weight:600}
.chart .muted{fill:var(--muted)}
.chart .end{text-anchor:end}
.chart .middle{text-anchor:middle}
.chart .small{font-size:10px}
.chart .on{fill:var(--paper)}
.chart .on-heat{fill:var(--on-heat)}
.chart .grid{stroke:var(--grid);stroke-width:1}
.chart .axis{stroke:var(--muted);stroke-width:1}
.chart .guide{stroke:var(--muted);stroke-width:1;stroke-dasharray:4 4}
.chart .paper{fill:var(--paper)}
.chart .track{fill:var(--grid)}
.chart .heat{fill:var(--heat)}
.chart .stroke{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.chart .faint{opacity:.35}
.chart .area{opacity:.85}
.chart .dot{stroke:var(--paper);stroke-width:1}
.chart .f0{fill:var(--c0)}.chart .f1{fill:var(--c1)}.chart .f2{fill:var(--c2)}
.chart .f3{fill:var(--c3)}.chart .f4{fill:var(--c4)}.chart .f5{fill:var(--c5)}
.chart .f6{fill:var(--c6)}.chart .f7{fill:var(--c7)}
.chart .s0{stroke:var(--c0)}.chart .s1{stroke:var(--c1)}.chart .s2{stroke:var(--c2)}
.chart .s3{stroke:var(--c3)}.chart .s4{stroke:var(--c4)}.chart .s5{stroke:var(--c5)}
.chart .s6{stroke:var(--c6)}.chart .s7{stroke:var(--c7)}
)";

std::string tip_of(std::string_view tip) {
  return tip.empty() ? std::string() : fmt::format("<title>{}</title>", escaped(tip));
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

SvgWriter::SvgWriter(double width, double height, std::string_view title) {
  text_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" "
      "viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\"><title>{}</title>\n",
      width, height, width, escaped(title));
}

void SvgWriter::rect(const SvgBox& box, std::string_view style, std::string_view tip) {
  fmt::format_to(std::back_inserter(text_),
                 "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
                 "class=\"{}\">{}</rect>\n",
                 box.left, box.top, box.width, box.height, style, tip_of(tip));
}

void SvgWriter::line(SvgPoint from, SvgPoint to, std::string_view style) {
  fmt::format_to(std::back_inserter(text_),
                 "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n",
                 from.x, from.y, to.x, to.y, style);
}

void SvgWriter::text(SvgPoint at, std::string_view text, std::string_view style) {
  fmt::format_to(std::back_inserter(text_),
                 "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", at.x, at.y, style,
                 escaped(text));
}

void SvgWriter::upward_text(SvgPoint at, std::string_view text, std::string_view style) {
  fmt::format_to(std::back_inserter(text_),
                 "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" "
                 "class=\"middle {}\">{}</text>\n",
                 at.x, at.y, style, escaped(text));
}

void SvgWriter::circle(SvgPoint at, double radius, std::string_view style, std::string_view tip) {
  fmt::format_to(std::back_inserter(text_),
                 "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"{}\">{}</circle>\n",
                 at.x, at.y, radius, style, tip_of(tip));
}

void SvgWriter::path(std::string_view commands, std::string_view style) {
  fmt::format_to(std::back_inserter(text_), "<path d=\"{}\" class=\"{}\"/>\n", commands, style);
}

void SvgWriter::cell(const SvgBox& box, double strength, std::string_view tip) {
  fmt::format_to(std::back_inserter(text_),
                 "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
                 "class=\"heat\" fill-opacity=\"{:.3f}\">{}</rect>\n",
                 box.left, box.top, box.width, box.height, 0.06 + 0.94 * strength, tip_of(tip));
}

std::string SvgWriter::finish() {
  text_ += "</svg>\n";
  return std::move(text_);
}

std::string_view chart_style() { return kStyle; }

std::string standalone(std::string_view svg) {
  const std::size_t inside = svg.find('\n') + 1;
  return fmt::format(
      "{}<style>{}</style><rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n{}",
      svg.substr(0, inside), kStyle, svg.substr(inside));
}

double text_width(std::string_view text) { return 6.9 * static_cast<double>(text.size()); }

}  // namespace quatrain

// SPDX-License-Identifier: Apache-2.0
// What the header reader takes and refuses: one row a rule, judged by the format's text and by what
// the reference parser does, stricter where two parsers could disagree.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/json_scanner.h"
#include "quatrain/checkpoint/safetensors.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

struct Row {
  std::string what;
  std::string json;
  std::int64_t buffer_bytes;
  std::string rule;  // part of the message; empty: accepted
};

// One tensor "a" of 8 bytes with the given members.
std::string one(const std::string& members) { return R"({"a":{)" + members + "}}"; }
const std::string kGood = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

void expect_verdicts(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    try {
      parse_safetensors_header(row.json, row.buffer_bytes);
      EXPECT_EQ(row.rule, "") << "accepted";
    } catch (const DataError& error) {
      EXPECT_FALSE(row.rule.empty()) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(row.rule));
    }
  }
}

TEST(SafetensorsHeader, Accepts) {
  expect_verdicts({
      {"empty object", "{}", 0, ""},
      {"one tensor", one(kGood), 8, ""},
      {"padding at the end", one(kGood) + "   ", 8, ""},
      {"white space before", " \n\t" + one(kGood), 8, ""},
      {"scalar", one(R"("dtype":"F64","shape":[],"data_offsets":[0,8])"), 8, ""},
      {"zero dimension", one(R"("dtype":"F32","shape":[0,3],"data_offsets":[0,0])"), 0, ""},
      {"members in any order", one(R"("data_offsets":[0,8],"shape":[2],"dtype":"F32")"), 8, ""},
      {"metadata", R"({"__metadata__":{"format":"pt","x":"a\nb"}})", 0, ""},
      {"unaligned start",
       R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
       5, ""},
      {"not in order of offsets",
       R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       2, ""},
      {"empty tensor between two",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, ""},
      {"path-like name", R"({"../../etc/passwd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, ""},
      {"even F4", one(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1, ""},
      {"four F6", one(R"("dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3])"), 3, ""},
      {"escaped name", R"({"\u00e9\ud83d\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, ""},
      {"dtype with an escape", one(R"("dtype":"F\u0033\u0032","shape":[2],"data_offsets":[0,8])"),
       8, ""},
  });
}

TEST(SafetensorsHeader, RefusesWhatTwoParsersReadDifferently) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  expect_verdicts({
      {"twice, same range", "{" + a + "," + a + "}", 8, "does not begin where"},
      {"twice, next range", "{" + a + R"(,"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "\"a\" is listed twice"},
      {"twice, empty",
       R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
       R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
       0, "\"a\" is listed twice"},
      {"twice, other dtype", "{" + a + R"(,"a":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}})",
       16, "listed twice"},
      {"twice, first out of range",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[100,108]},)" + a + "}", 8,
       "does not begin where"},
      {"twice, one escaped",
       "{" + a + R"(,"\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16,
       "listed twice"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ twice"},
      {"metadata twice, one escaped", R"({"__metadata__":{},"\u005f_metadata__":{}})", 0,
       "__metadata__ twice"},
      {"metadata key twice", R"({"__metadata__":{"k":"1","\u006b":"2"}})", 0, "\"k\" twice"},
      {"null metadata", R"({"__metadata__":null})", 0, "expected an object"},
      {"unknown field", one(kGood + R"(,"extra":1)"), 8, "unknown field \"extra\""},
      {"field twice", one(kGood + R"(,"dtype":"F32")"), 8, "has \"dtype\" twice"},
      {"field twice, one escaped", one(kGood + R"(,"\u0064type":"F32")"), 8, "has \"dtype\" twice"},
      {"entry as an array", R"({"a":["F32",[2],[0,8]]})", 8, "expected an object"},
      {"dtype as an object", one(R"("dtype":{"F32":null},"shape":[2],"data_offsets":[0,8])"), 8,
       "expected a string"},
      {"empty name", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "empty"},
      {"name with NUL", R"({"a\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
       "control character"},
      {"name with DEL", "{\"a\x7f\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
       "control character"},
      {"zero times 2^64 - 1",
       one(R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])"), 0,
       "above 2^63 - 1"},
      {"zero hides an overflow",
       one(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), 0,
       "overflows"},
  });
}

TEST(SafetensorsHeader, RefusesBrokenJson) {
  const std::string good = one(kGood);
  expect_verdicts({
      {"nothing", "", 0, "expected an object"},
      {"BOM", "\xEF\xBB\xBF" + good, 8, "expected an object"},
      {"trailing NUL", good + std::string(1, '\0'), 8, "after the end"},
      {"trailing garbage", good + "x", 8, "after the end"},
      {"two objects", good + good, 8, "after the end"},
      {"top-level array", "[" + good + "]", 8, "expected an object"},
      {"cut", good.substr(0, good.size() - 1), 8, "expected"},
      {"comment", "{/*c*/" + good.substr(1), 8, "expected a string"},
      {"trailing comma", R"({"a":{)" + kGood + "},}", 8, "expected a string"},
      {"leading comma", R"({,"a":{)" + kGood + "}}", 8, "expected a string"},
      {"no comma", R"({"a":{"dtype":"F32" "shape":[2],"data_offsets":[0,8]}})", 8, "expected ','"},
      {"no colon", R"({"a" {}})", 8, "expected ':'"},
      {"single quotes", "{'a':{}}", 8, "expected a string"},
      {"bare key", "{a:{}}", 8, "expected a string"},
      {"raw control character", "{\"a\nb\":{}}", 8, "raw control character"},
      {"unknown escape", R"({"\x61":{}})", 8, "unknown escape"},
      {"short \\u", R"({"\u006":{}})", 8, "four hexadecimal"},
      {"lone high surrogate", R"({"\ud800":{}})", 8, "lone surrogate"},
      {"lone low surrogate", R"({"\udc00":{}})", 8, "lone surrogate"},
      {"high surrogate twice", R"({"\ud800\ud800":{}})", 8, "lone surrogate"},
      {"overlong UTF-8", "{\"\xC0\xAF\":{}}", 8, "not UTF-8"},
      {"UTF-8 surrogate", "{\"\xED\xA0\x80\":{}}", 8, "not UTF-8"},
      {"UTF-8 above U+10FFFF", "{\"\xF4\x90\x80\x80\":{}}", 8, "not UTF-8"},
      {"cut UTF-8", "{\"\xE2\x82\":{}}", 8, "not UTF-8"},
      {"Latin-1", "{\"\xE9\":{}}", 8, "not UTF-8"},
      {"string without end", R"({"a)", 8, "without end"},
      {"metadata as a string", R"({"__metadata__":"x"})", 0, "expected an object"},
      {"metadata number", R"({"__metadata__":{"a":1}})", 0, "expected a string"},
      {"metadata null value", R"({"__metadata__":{"a":null}})", 0, "expected a string"},
      {"metadata nested", R"({"__metadata__":{"a":{}}})", 0, "expected a string"},
      {"entry null", R"({"a":null})", 0, "expected an object"},
  });
}

TEST(SafetensorsHeader, RefusesWrongMembers) {
  auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return one(fmt::format(R"("dtype":{},"shape":{},"data_offsets":{})", dtype, shape, offsets));
  };
  std::vector<Row> rows{
      {"no dtype", one(R"("shape":[2],"data_offsets":[0,8])"), 8, "no \"dtype\""},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,8])"), 8, "no \"shape\""},
      {"no offsets", one(R"("dtype":"F32","shape":[2])"), 8, "no \"data_offsets\""},
      {"lower-case dtype", entry(R"("f32")", "[2]", "[0,8]"), 8, "unknown dtype \"f32\""},
      {"unknown dtype", entry(R"("F128")", "[2]", "[0,32]"), 32, "unknown dtype"},
      {"dtype number", entry("1", "[2]", "[0,8]"), 8, "expected a string"},
      {"dtype null", entry("null", "[2]", "[0,8]"), 8, "expected a string"},
      {"shape number", entry(R"("F32")", "2", "[0,8]"), 8, "expected an array"},
      {"shape null", entry(R"("F32")", "null", "[0,8]"), 8, "expected an array"},
      {"one offset", entry(R"("F32")", "[2]", "[8]"), 8, "exactly two"},
      {"no offset", entry(R"("F32")", "[2]", "[]"), 8, "exactly two"},
      {"three offsets", entry(R"("F32")", "[2]", "[0,8,8]"), 8, "exactly two"},
      {"odd F4", entry(R"("F4")", "[3]", "[0,2]"), 2, "inside a byte"},
      {"too few bytes", entry(R"("F32")", "[3]", "[0,8]"), 8, "needs 12 bytes"},
      {"too many bytes", entry(R"("F32")", "[1]", "[0,8]"), 8, "needs 4 bytes"},
      {"shape overflow", entry(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0, "overflows"},
      {"bits overflow", entry(R"("F64")", "[1152921504606846976]", "[0,0]"), 0, "overflows"},
      {"end before begin", entry(R"("U8")", "[1]", "[1,0]"), 1, "does not begin"},
  };
  for (const char* bad :
       {"-1", "2.0", "2e0", "2E0", "02", "-0", "\"2\"", "true", "null", "+2", "NaN", "Infinity",
        "0x2", "9223372036854775808", "18446744073709551616", "1e400", ".5", "[2]"}) {
    rows.push_back({fmt::format("shape [{}]", bad),
                    entry(R"("F32")", fmt::format("[{}]", bad), "[0,8]"), 8, "the JSON"});
    rows.push_back({fmt::format("offset {}", bad),
                    entry(R"("F32")", "[2]", fmt::format("[0,{}]", bad)), 8, "the JSON"});
  }
  expect_verdicts(rows);
}

TEST(SafetensorsHeader, RefusesHolesOverlapsAndTruncation) {
  auto bytes = [](const std::string& name, int begin, int end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name,
                       end - begin, begin, end);
  };
  auto all = [](const std::vector<std::string>& entries) {
    return fmt::format("{{{}}}", fmt::join(entries, ","));
  };
  expect_verdicts({
      {"hole in front", all({bytes("a", 1, 3)}), 3, "does not begin"},
      {"hole in the middle", all({bytes("a", 0, 2), bytes("b", 3, 4)}), 4, "does not begin"},
      {"hole at the end", all({bytes("a", 0, 2)}), 4, "extra"},
      {"no tensors, some bytes", "{}", 1, "extra"},
      {"overlap", all({bytes("a", 0, 3), bytes("b", 2, 5)}), 5, "does not begin"},
      {"alias", all({bytes("a", 0, 4), bytes("b", 0, 4)}), 4, "does not begin"},
      {"inside another", all({bytes("a", 0, 4), bytes("b", 1, 2)}), 4, "does not begin"},
      {"empty inside another", all({bytes("a", 0, 4), bytes("b", 2, 2)}), 4, "does not begin"},
      {"truncated", all({bytes("a", 0, 4)}), 3, "truncated"},
  });
}

TEST(SafetensorsHeader, UnknownFieldsOnRequest) {
  auto parse = [](const std::string& members) {
    return parse_safetensors_header(one(members), 8, true);
  };
  EXPECT_EQ(parse(kGood + R"(,"x":{"y":[1,-2.5e3,"z",null,true,false,{}]})").tensors.size(), 1U);
  EXPECT_THROW(parse(kGood + R"(,"x":1,"x":1)"), DataError);
  for (const char* bad : {"tru", "nul", "01", "1.", "-", "1e", "[1,]", "{\"a\"}", "NaN", ""}) {
    EXPECT_THROW(parse(kGood + fmt::format(R"(,"x":{})", bad)), DataError) << bad;
  }
  const std::string deep(127, '[');
  EXPECT_NO_THROW(parse(kGood + ",\"x\":" + deep + std::string(127, ']')));
  EXPECT_THROW(parse(kGood + ",\"x\":[" + deep + std::string(128, ']')), DataError);
}

TEST(SafetensorsHeader, KeepsWhatItRead) {
  const SafetensorsHeader header = parse_safetensors_header(
      R"({"__metadata__":{"format":"pt"},"x\"\u00e9":{"dtype":"BF16","shape":[2,3],)"
      R"("data_offsets":[4,16]},"y":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
      16);
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "y");
  EXPECT_EQ(header.tensors[1].name, "x\"\xC3\xA9");
  EXPECT_EQ(header.tensors[1].dtype, "BF16");
  EXPECT_EQ(header.tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[1].begin, 4);
  EXPECT_EQ(header.tensors[1].end, 16);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(JsonScanner, FindsInvalidUtf8AtEveryPlace) {
  const std::string text = "plain ascii text, then \xC3\xA9, \xE2\x82\xAC and \xF0\x9F\x98\x80.";
  EXPECT_EQ(find_invalid_utf8(text), std::string_view::npos);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string broken = text;
    broken[i] = '\xFF';
    EXPECT_NE(find_invalid_utf8(broken), std::string_view::npos) << i;
  }
}

std::string bytes_named(const std::vector<std::string>& names) {
  std::string json = "{";
  for (std::size_t i = 0; i < names.size(); ++i) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                        i == 0 ? "" : ",", names[i], i, i + 1);
  }
  return json + "}";
}

TEST(SafetensorsHeader, FindsOneRepeatedNameAmongMany) {
  std::vector<std::string> names;
  for (int i = 0; i < 3000; ++i) names.push_back(fmt::format("layers.{}.weight", i));
  const auto buffer = static_cast<std::int64_t>(names.size());
  EXPECT_EQ(parse_safetensors_header(bytes_named(names), buffer).tensors.size(), names.size());
  for (const std::size_t at : {std::size_t{1}, names.size() / 2, names.size() - 1}) {
    std::vector<std::string> twice = names;
    twice[at] = names[0];
    expect_verdicts({{"many", bytes_named(twice), buffer, "\"layers.0.weight\" is listed twice"}});
  }
}

}  // namespace
}  // namespace quatrain

#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "checkpoint/xxh3.h"

namespace meshtrain {
namespace {

std::string file_of(std::string_view header, std::size_t data_bytes) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + std::string(header) + std::string(data_bytes, '\x01');
}

std::string complaint(const std::string& file) {
  try {
    SafetensorsReader(std::as_bytes(std::span(file)), "x.safetensors");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

template <class T>
std::vector<T> values(const SafetensorsEntry* entry) {
  std::vector<T> result(entry->data.size() / sizeof(T));
  std::memcpy(result.data(), entry->data.data(), entry->data.size());
  return result;
}

TEST(Safetensors, ReadsWhatTheReferenceImplementationWrote) {
  const SafetensorsReader reader(std::string(MESHTRAIN_TEST_DATA) + "/reference.safetensors");
  EXPECT_EQ(reader.entries().size(), 7U);
  EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"note", "a \"quoted\" ünï"}}));
  ASSERT_NE(reader.find("matrix"), nullptr);
  EXPECT_EQ(reader.find("matrix")->dtype, DType::kF32);
  EXPECT_EQ(reader.find("matrix")->dims, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(values<float>(reader.find("matrix")), (std::vector<float>{0.0F, 0.25F, 0.5F, 0.75F, 1.0F, 1.25F}));
  EXPECT_EQ(reader.find("half")->dtype, DType::kBF16);
  EXPECT_EQ(values<std::uint16_t>(reader.find("half")), (std::vector<std::uint16_t>{0x3F80, 0xC000, 0x3F00}));
  EXPECT_EQ(reader.find("fp16")->dtype, DType::kF16);
  EXPECT_EQ(values<std::uint16_t>(reader.find("fp16")), (std::vector<std::uint16_t>{0x3C00, 0x7BFF}));
  EXPECT_EQ(reader.find("scalar")->dtype, DType::kI64);
  EXPECT_TRUE(reader.find("scalar")->dims.empty());
  EXPECT_EQ(values<std::int64_t>(reader.find("scalar")), (std::vector<std::int64_t>{-7}));
  EXPECT_TRUE(reader.find("empty")->data.empty());
  EXPECT_EQ(reader.find("mask")->dtype, std::nullopt);
  EXPECT_EQ(reader.find("mask")->dtype_name, "BOOL");
  EXPECT_EQ(reader.find("deep")->dims.size(), 5U);
  EXPECT_EQ(reader.find("absent"), nullptr);
}

TEST(Safetensors, WritesTheFormat) {
  const auto path = (std::filesystem::temp_directory_path() / "meshtrain_writer_test.safetensors").string();
  const std::vector<SafetensorsDecl> decls = {
      {"b", DType::kF32, {2}}, {"a", DType::kI64, {}}, {"e", DType::kU8, {0}}};
  SafetensorsWriter writer(path, decls, {{"k", "v"}});
  const float b[2] = {1.5F, -2.0F};
  const std::int64_t a = 3;
  writer.append(std::as_bytes(std::span(b)).first(3));  // pieces may end anywhere
  writer.append(std::as_bytes(std::span(b)).subspan(3));
  writer.append(std::as_bytes(std::span(&a, 1)));
  writer.finish();

  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"I64","shape":[],"data_offsets":[8,16]},"e":{"dtype":"U8","shape":[0],"data_offsets":[16,16]}})";
  EXPECT_EQ(text.substr(8, header.size()), header);
  EXPECT_EQ(static_cast<unsigned char>(text[0]) % 8, 0);
  EXPECT_EQ(writer.size(), text.size());
  EXPECT_EQ(writer.header_hash(), hash_of(std::as_bytes(std::span(text)).first(text.size() - 16)));

  const SafetensorsReader reader(path);
  EXPECT_EQ(values<float>(reader.find("b")), (std::vector<float>{1.5F, -2.0F}));
  EXPECT_EQ(values<std::int64_t>(reader.find("a")), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(reader.metadata().at("k"), "v");
  std::filesystem::remove(path);
}

TEST(Safetensors, WriterHoldsItsContract) {
  const auto path = (std::filesystem::temp_directory_path() / "meshtrain_writer_test.safetensors").string();
  const std::vector<SafetensorsDecl> decls = {{"a", DType::kU8, {2}}};
  const std::byte bytes[3] = {};
  SafetensorsWriter writer(path, decls);
  EXPECT_THROW(writer.append(bytes), std::logic_error);
  EXPECT_THROW(writer.finish(), std::logic_error);
  const std::vector<SafetensorsDecl> same = {{"a", DType::kU8, {2}}, {"a", DType::kU8, {2}}};
  EXPECT_THROW(SafetensorsWriter(path, same), std::logic_error);
  std::filesystem::remove(path);
}

// As safetensors 0.8.0 does: whatever is white space in JSON may stand around the header, and nothing else.
TEST(Safetensors, AcceptsPaddedAndEmptyFiles) {
  const std::string_view header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (const std::string padding : {"\t", "\n", "\r", " \n "}) {
    EXPECT_EQ(complaint(file_of(std::string(header) + padding, 4)), "");
    EXPECT_EQ(complaint(file_of(padding + std::string(header), 4)), "");
  }
  for (const std::string& padding : {std::string(1, '\0'), std::string(3, '\0'), std::string("\0 {}", 4),
                                     std::string(" \0", 2), std::string("\f"), std::string("\u00a0"),
                                     std::string("}"), std::string("{}"), std::string("\xEF\xBB\xBF")}) {
    for (const std::string& text : {std::string(header) + padding, padding + std::string(header)})
      EXPECT_NE(complaint(file_of(text, 4)).find("no proper JSON"), std::string::npos)
          << testing::PrintToString(text);
  }
  EXPECT_NE(complaint(file_of(std::string("{\0}", 3), 0)).find("NUL byte at position 1"), std::string::npos);
  EXPECT_EQ(complaint(file_of("{}", 0)), "");
  EXPECT_EQ(complaint(file_of("{}      ", 0)), "");
  EXPECT_EQ(complaint(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  )", 4)), "");
}

// The format's limit.
TEST(Safetensors, RefusesAHeaderAbove100MB) {
  EXPECT_NE(complaint(file_of(std::string(100'000'001, ' '), 0)).find("header of 100000001 bytes"),
            std::string::npos);
}

TEST(Safetensors, RefusesDamagedFiles) {
  const std::pair<std::string, std::string_view> bad[] = {
      {"", "has 0 bytes"},
      {"1234567", "has 7 bytes"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "header of 18446744073709551615 bytes"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10), "header of 3 bytes"},
      {file_of("{", 0), "no proper JSON"},
      {file_of("[]", 0), "not a JSON object"},
      {file_of("{}x", 0), "no proper JSON"},
      {file_of("{}", 1), "belong to none"},
      {file_of(R"({"a":3})", 0), "exactly dtype, shape and data_offsets"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1]}})", 0), "exactly"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1],"offsets":[0,4]}})", 4), "no data_offsets"},
      {file_of(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4), "unknown dtype \"F33\""},
      {file_of(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4), "not an array"},
      {file_of(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), "not a size"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4), "not a size"},
      {file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", 4), "64 bits"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), "has 4 bytes, but its shape"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), "not [begin, end]"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4),
       "not [begin, end]"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4), "not [begin, end]"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4), "the file has only 4"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "begins at byte 4"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
           6),
       "begins at byte 2"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
           1),
       "\"a\" twice"},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "not a string"},
      {file_of(R"({"__metadata__":[]})", 0), "__metadata__"},
      {file_of("{\"\xff\":1}", 0), "no proper JSON"},
      {file_of(std::string(100000, '['), 0), "nested deeper"},
  };
  for (const auto& [file, part] : bad) {
    const std::string message = complaint(file);
    EXPECT_NE(message.find("x.safetensors"), std::string::npos) << part;
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

TEST(Safetensors, FilesThatCannotBeRead) {
  EXPECT_THROW(SafetensorsReader("/nonexistent.safetensors"), UserError);
  EXPECT_THROW(SafetensorsReader("/"), UserError);
  EXPECT_THROW(SafetensorsReader("/dev/null"), UserError);
  EXPECT_THROW(SafetensorsReader("/dev/zero"), UserError);  // which has no end
}

}  // namespace
}  // namespace meshtrain

#include "data/llmc_tokens.h"

#include <cstring>

#include "base/error.h"

namespace meshtrain {
namespace {

constexpr std::size_t kHeaderBytes = 1024;
constexpr std::uint32_t kMagic = 20240520;

std::uint32_t header_field(std::span<const std::byte> file, std::size_t i) {
  std::uint32_t value = 0;
  std::memcpy(&value, file.data() + i * 4, 4);
  return value;
}

}  // namespace

bool LlmcTokens::has_magic(std::span<const std::byte> file) {
  return file.size() >= 4 && header_field(file, 0) == kMagic;
}

LlmcTokens LlmcTokens::open(const std::string& path) {
  LlmcTokens tokens;
  tokens.path_ = path;
  tokens.file_ = MappedFile::open(path, "the token file");
  tokens.bytes_ = tokens.file_.bytes();
  tokens.parse();
  return tokens;
}

LlmcTokens::LlmcTokens(std::span<const std::byte> file, std::string path)
    : path_(std::move(path)), bytes_(file) {
  parse();
}

void LlmcTokens::parse() {
  const auto refuse = [&](const std::string& what) {
    throw_user_error("the llm.c token file \"{}\" is broken: {}. Make it again.", path_, what);
  };
  if (!has_magic(bytes_)) refuse(fmt::format("it does not start with {}", kMagic));
  if (bytes_.size() < kHeaderBytes) {
    refuse(fmt::format("it has {} bytes, and its header alone takes {}", bytes_.size(), kHeaderBytes));
  }
  const std::uint32_t version = header_field(bytes_, 1);
  if (version != 1) refuse(fmt::format("it has version {}, and only 1 (16-bit tokens) is known", version));
  const std::uint64_t count = header_field(bytes_, 2);
  if (bytes_.size() != kHeaderBytes + count * 2) {
    refuse(fmt::format("it has {} bytes, but its {} tokens take {}", bytes_.size(), count,
                       kHeaderBytes + count * 2));
  }
  size_ = static_cast<std::int64_t>(count);
}

void LlmcTokens::read(std::int64_t begin, std::span<std::int32_t> out) const {
  check(begin >= 0 && static_cast<std::int64_t>(out.size()) <= size_ - begin, "tokens to read are in the file");
  file_.check_whole();
  const std::byte* from = bytes_.data() + kHeaderBytes + begin * 2;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t value = 0;
    std::memcpy(&value, from + i * 2, 2);
    out[i] = value;
  }
}

}  // namespace meshtrain

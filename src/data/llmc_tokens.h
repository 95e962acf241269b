// llm.c's token files: a header of 256 int32 ([0] magic 20240520, [1] version 1, [2] number of tokens), then
// u16 tokens. Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/mapped_file.h"
#include "data/token_source.h"

namespace meshtrain {

class LlmcTokens final : public TokenSource {
 public:
  // Whether the file starts with llm.c's magic number.
  static bool has_magic(std::span<const std::byte> file);
  // Throws UserError when the header or the size is wrong.
  static LlmcTokens open(const std::string& path);
  // The same from memory, which must outlive it.
  LlmcTokens(std::span<const std::byte> file, std::string path);

  std::string name() const override { return path_; }
  std::int64_t size() const override { return size_; }
  void read(std::int64_t begin, std::span<std::int32_t> out) const override;
  void let_go() const override { file_.let_go(); }

 private:
  LlmcTokens() = default;
  void parse();

  std::string path_;
  MappedFile file_;
  std::span<const std::byte> bytes_;
  std::int64_t size_ = 0;
};

}  // namespace meshtrain

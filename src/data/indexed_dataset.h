// Megatron's indexed data set: PREFIX.bin holds tokens, PREFIX.idx says where sequences and documents lie.
//
// PREFIX.idx, little-endian: "MMIDIDX\0\0"; u64 version = 1; u8 token type; u64 sequences; u64 document
// indices (= documents + 1); i32 lengths[sequences]; i64 byte pointers[sequences]; i64 document
// indices[...] (a document is a run of sequences); optional i8 modes[sequences].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "data/token_source.h"

namespace meshtrain {

// Megatron's codes. 6 and 7 are floating point: not tokens.
enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
std::int64_t size_of(TokenType type);
std::string_view name_of(TokenType type);
// u16 below 65500, as Megatron does, else i32.
TokenType token_type_for(std::int64_t vocab);

// Reads any integer type. Sequences may lie in any order in the .bin and need not fill it.
class IndexedDataset final : public TokenSource {
 public:
  // Both files are checked whole here: header, sizes, lengths, pointers. Throws UserError.
  static IndexedDataset open(const std::string& prefix);
  // The same from memory, which must outlive it.
  IndexedDataset(std::span<const std::byte> index, std::span<const std::byte> tokens, std::string prefix);

  std::string name() const override { return prefix_; }
  std::int64_t size() const override { return size_; }
  void read(std::int64_t begin, std::span<std::int32_t> out) const override;
  std::int64_t id_at(std::int64_t position) const override;
  void let_go() const override { token_file_.let_go(); }

  TokenType type() const { return type_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t sequence_length(std::int64_t i) const;
  std::vector<std::int32_t> sequence(std::int64_t i) const;
  // First sequence of document i; i = documents() gives sequences().
  std::int64_t document_start(std::int64_t i) const;

 private:
  // Sequences that lie one behind the other in the .bin; most files have one such run.
  struct Run {
    std::int64_t first_token;
    std::int64_t first_byte;
  };

  IndexedDataset() = default;
  void parse();
  void parse_header();
  void find_runs();
  void check_documents() const;
  std::int64_t sequence_pointer(std::int64_t i) const;
  [[noreturn]] void refuse(const std::string& what) const;
  static bool starts_behind(std::int64_t token, const Run& run);
  void convert(std::int64_t byte, std::span<std::int32_t> out) const;

  std::string prefix_;
  MappedFile index_file_;
  MappedFile token_file_;
  std::span<const std::byte> index_;
  std::span<const std::byte> tokens_;
  TokenType type_ = TokenType::kU16;
  std::int64_t sequences_ = 0;
  std::int64_t documents_ = 0;
  std::int64_t size_ = 0;
  std::vector<Run> runs_;
};

}  // namespace meshtrain

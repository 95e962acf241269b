// Token files as one long sequence of ids: documents lie one behind the other in file order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace meshtrain {

// Immutable and shared by threads. Positions and sizes count tokens.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // The file or prefix it was opened from, for messages.
  virtual std::string name() const = 0;
  virtual std::int64_t size() const = 0;
  // Fills `out` with the tokens from `begin` on; all must exist. Costs O(log n) and the copy. An id that
  // does not fit 32 bits reads as -1, which is in no vocabulary.
  virtual void read(std::int64_t begin, std::span<std::int32_t> out) const = 0;
  // The id at `position` as the source holds it, of 64 bits where it has them; for messages.
  virtual std::int64_t id_at(std::int64_t position) const;
  // Memory of the process that earlier reads have filled may be given back.
  virtual void let_go() const {}
};

// Ids that lie in memory.
class MemoryTokens final : public TokenSource {
 public:
  MemoryTokens(std::string name, std::vector<std::int32_t> ids)
      : name_(std::move(name)), ids_(std::move(ids)) {}
  std::string name() const override { return name_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(ids_.size()); }
  void read(std::int64_t begin, std::span<std::int32_t> out) const override;

 private:
  std::string name_;
  std::vector<std::int32_t> ids_;
};

// Opens what `path` names:
//   PREFIX of PREFIX.bin and PREFIX.idx  Megatron's indexed data set, mapped into memory (either file's own
//                                        name will do)
//   FILE with llm.c's header             llm.c's tokens, mapped into memory
//   FILE.jsonl                           one document a line, in the field "text"
//   any other FILE                       text: one document
// Text is tokenized here, on all cores, and kept in memory at 4 bytes a token; it needs `tokenizer`, which
// may be null for the other two. For more than some hundred megabytes run `meshtrain tokenize` once instead.
// Throws UserError that names what was looked for.
std::unique_ptr<TokenSource> open_token_source(const std::string& path, const Tokenizer* tokenizer);

// Throws UserError naming the first id outside [0, vocab) and its place. Up to 2^29 tokens it looks at all
// of them, beyond that at the first and the last 2^27; BatchSampler checks the rest as it reads them.
void check_vocabulary(const TokenSource& source, std::int64_t vocab);

}  // namespace meshtrain

// XXH3-64 (xxhash.com), the checksum of checkpoints, as 16 hexadecimal digits.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/mapped_file.h"

namespace meshtrain {

// Of bytes that come in pieces.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void update(std::span<const std::byte> bytes);
  std::string digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_of(std::span<const std::byte> bytes);
std::string hash_of(std::string_view text);
// Bytes of a mapping, which is let go of as they are read.
std::string hash_of(std::span<const std::byte> bytes, const MappedFile& mapping);

}  // namespace meshtrain

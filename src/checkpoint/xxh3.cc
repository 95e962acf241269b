#include "checkpoint/xxh3.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <new>

namespace meshtrain {
namespace {

std::string hexadecimal(XXH64_hash_t hash) {
  return fmt::format("{:016x}", hash);
}

}  // namespace

struct Xxh3::State {
  XXH3_state_t* state = XXH3_createState();
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {
  if (state_->state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_->state);
}

Xxh3::~Xxh3() {
  XXH3_freeState(state_->state);
}

void Xxh3::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->state, bytes.data(), bytes.size());
}

std::string Xxh3::digest() const {
  return hexadecimal(XXH3_64bits_digest(state_->state));
}

std::string hash_of(std::span<const std::byte> bytes) {
  return hexadecimal(XXH3_64bits(bytes.data(), bytes.size()));
}

std::string hash_of(std::string_view text) {
  return hash_of(std::as_bytes(std::span(text)));
}

std::string hash_of(std::span<const std::byte> bytes, const MappedFile& mapping) {
  constexpr std::size_t kPiece = std::size_t{16} << 20U;
  Xxh3 hash;
  while (!bytes.empty()) {
    const std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), kPiece));
    hash.update(piece);
    mapping.let_go();
    bytes = bytes.subspan(piece.size());
  }
  return hash.digest();
}

}  // namespace meshtrain

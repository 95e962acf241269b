// Any text is either a manifest, whose pieces then reach no further than their tensors, or a UserError.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/strict_json.h"
#include "checkpoint/manifest.h"

namespace {

// Pieces of a small tensor are put together; a sanitizer sees what goes astray.
void read(const meshtrain::ManifestTensor& tensor) {
  constexpr std::int64_t kMost = 4096;
  const std::int64_t elements = tensor.shape.numel();
  if (elements > kMost) return;
  for (const std::int64_t first : {std::int64_t{0}, elements / 2}) {
    std::vector<std::byte> to(static_cast<std::size_t>(elements - first));
    for (const meshtrain::ManifestPiece& piece : tensor.pieces) {
      const std::vector<std::byte> from(static_cast<std::size_t>(piece.range.count));
      const std::int64_t copied = meshtrain::copy_overlap(piece.range, tensor.shape, from, 1, first, to);
      if (copied < 0 || copied > std::min(piece.range.count, elements - first)) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    meshtrain::parse_manifest(text, "fuzz");
  } catch (const meshtrain::UserError&) {
  }
  // Without the hash, which hardly any input has.
  try {
    const meshtrain::ManifestPart part = meshtrain::part_from_json(nlohmann::json::parse(text), "fuzz");
    for (const auto& [name, tensor] : part.tensors) read(tensor);
  } catch (const meshtrain::UserError&) {
  } catch (const meshtrain::StrictJsonError&) {
  } catch (const nlohmann::json::exception&) {
  }
  return 0;
}

// Any bytes are either a well-formed file, whose tensors can then be read in full, or a UserError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const meshtrain::SafetensorsReader reader(std::as_bytes(std::span(data, size)), "fuzz");
    std::size_t bytes = 0;
    unsigned sum = 0;
    for (const meshtrain::SafetensorsEntry& entry : reader.entries()) {
      for (const std::byte b : entry.data) sum += std::to_integer<unsigned>(b);
      bytes += entry.data.size();
      if (reader.find(entry.name) != &entry) std::abort();
    }
    if (bytes > size || sum > 255 * size) std::abort();
  } catch (const meshtrain::UserError&) {
  }
  return 0;
}

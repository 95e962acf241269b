// Bytes that a rank sends in training steps, by the axis of the mesh along which they go.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace meshtrain {

class Assembly;

enum class AxisTraffic : std::uint8_t {
  kTensorLayers,    // tp: within layers
  kTensorCopies,    // tp: gradients of what several ranks hold
  kNextStage,       // pp: activations
  kPreviousStage,   // pp: their gradients
  kTiedTable,       // pp: its gradient from the last stage to the first, its weights back
  kDataGradients,   // dp
  kDataParameters,  // dp
};
inline constexpr std::size_t kAxisTraffics = 7;

struct AxisBytes {
  std::array<std::int64_t, kAxisTraffics> bytes{};
  std::int64_t& operator[](AxisTraffic t) { return bytes[static_cast<std::size_t>(t)]; }
  std::int64_t operator[](AxisTraffic t) const { return bytes[static_cast<std::size_t>(t)]; }
  friend AxisBytes operator+(AxisBytes a, const AxisBytes& b) {
    for (std::size_t i = 0; i < kAxisTraffics; ++i) a.bytes[i] += b.bytes[i];
    return a;
  }
  friend AxisBytes operator-(AxisBytes a, const AxisBytes& b) {
    for (std::size_t i = 0; i < kAxisTraffics; ++i) a.bytes[i] -= b.bytes[i];
    return a;
  }
  friend AxisBytes operator*(AxisBytes a, std::int64_t times) {
    for (std::int64_t& of_one : a.bytes) of_one *= times;
    return a;
  }
  friend bool operator==(const AxisBytes&, const AxisBytes&) = default;
};

// Of all training steps so far: what evaluation, checkpoints and agreement of the ranks took is left out.
// Nothing may be under way.
AxisBytes axis_bytes_of(const Assembly& assembly);

// {"tp": {"layers", "copies"}, "pp": {"next", "previous", "tied"}, "dp": {"gradients", "parameters"}}.
nlohmann::json to_json(const AxisBytes& bytes);

}  // namespace meshtrain

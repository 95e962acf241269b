#include "telemetry/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace meshtrain {
namespace {

template <std::size_t N>
std::string scaled(double value, double base, const std::array<std::string_view, N>& units) {
  std::size_t unit = 0;
  while (value >= base && unit + 1 < N) {
    value /= base;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} {}", value, units[0]) : fmt::format("{:.2f} {}", value, units[unit]);
}

// Three digits, and no exponent where a number is large.
std::string significant(double value) {
  return value < 100.0 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(static_cast<double>(bytes), 1024.0, kUnits);
}

std::string format_flops(std::int64_t flops) {
  return format_flops(static_cast<long double>(flops));
}

std::string format_flops(long double flops) {
  constexpr std::array<std::string_view, 8> kUnits = {"FLOP",  "KFLOP", "MFLOP", "GFLOP",
                                                      "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  return scaled(static_cast<double>(flops), 1000.0, kUnits);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0.0) return "n/a";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

std::string format_duration(double seconds) {
  if (seconds < 1.0) return significant(seconds * 1e3) + " ms";
  if (seconds < 120.0) return significant(seconds) + " s";
  if (seconds < 7200.0) return fmt::format("{:.1f} min", seconds / 60.0);
  const double hours = seconds / 3600.0;
  return fmt::format("{:.{}f} h", hours, hours < 1000.0 ? 1 : 0);
}

std::string format_rate(double bytes_per_second) {
  return significant(bytes_per_second * 1e-9) + " GB/s";
}

std::string format_count(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string grouped(std::int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::int64_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<std::int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string grouped_count(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}

nlohmann::json memory_to_json(const MemoryUse& use) {
  nlohmann::json json;
  for (std::size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    json[std::string(name_of(category))] = use[category];
  }
  json["total"] = use.total();
  return json;
}

std::string memory_table(const MemoryUse& use) {
  std::string text;
  for (std::size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (use[category] == 0) continue;
    text += fmt::format("{:<14} {:>16} bytes  {:>11}\n", name_of(category), use[category],
                        format_bytes(use[category]));
  }
  return text + fmt::format("{:<14} {:>16} bytes  {:>11}", "total", use.total(), format_bytes(use.total()));
}

}  // namespace meshtrain

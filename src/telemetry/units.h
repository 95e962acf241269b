// Quantities as people and programs read them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "device/memory.h"

namespace meshtrain {

std::string format_bytes(std::int64_t bytes);  // "1.50 GiB"
std::string format_flops(std::int64_t flops);  // "3.21 TFLOP"
std::string format_flops(long double flops);
std::string format_seconds(double seconds);  // "1h02m", "3m20s", "12s"

// {"parameters": bytes, …, "total": sum}.
nlohmann::json memory_to_json(const MemoryUse& use);
// A line a category that is not zero, and the sum.
std::string memory_table(const MemoryUse& use);

}  // namespace meshtrain

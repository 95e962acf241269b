// Quantities as people and programs read them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "device/memory.h"

namespace meshtrain {

std::string format_bytes(std::int64_t bytes);  // "1.50 GiB"
std::string format_flops(std::int64_t flops);  // "3.21 TFLOP"
std::string format_flops(long double flops);
std::string format_seconds(double seconds);  // "1h02m", "3m20s", "12s"
// Of what is computed or measured rather than waited for: "7.32 ms", "12.3 s", "45.6 min", "78.9 h", "50000 h".
std::string format_duration(double seconds);
std::string format_rate(double bytes_per_second);  // 1e9 bytes a second: "0.551 GB/s", "2000 GB/s"
std::string format_count(std::int64_t count, std::string_view noun);   // "1 step", "2 steps"
std::string grouped(std::int64_t count);                               // "1,242,037"
std::string grouped_count(std::int64_t count, std::string_view noun);  // "9,703 sequences"

// {"parameters": bytes, …, "total": sum}.
nlohmann::json memory_to_json(const MemoryUse& use);
// A line a category that is not zero, and the sum.
std::string memory_table(const MemoryUse& use);

}  // namespace meshtrain

#include "base/dtype.h"

#include <array>
#include <utility>

namespace meshtrain {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 7> kNames = {{
    {DType::kF32, "fp32"},
    {DType::kBF16, "bf16"},
    {DType::kF16, "fp16"},
    {DType::kF64, "fp64"},
    {DType::kI32, "int32"},
    {DType::kI64, "int64"},
    {DType::kU8, "uint8"},
}};

}  // namespace

std::string_view name_of(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace meshtrain

#include "ops/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <hwy/targets.h>

#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <string_view>

#include "ops/cpu/gemm.h"

namespace meshtrain::ops {
namespace {

std::string vendor() {
#if defined(__x86_64__)
  unsigned most = 0;
  std::array<unsigned, 3> words{};
  if (__get_cpuid(0, &most, &words[0], &words[2], &words[1]) != 0) {
    std::string name(sizeof(words), '\0');
    std::memcpy(name.data(), words.data(), sizeof(words));
    return name;
  }
#endif
  return "";
}

std::string widest_vectors() {
  const auto targets = static_cast<std::int64_t>(hwy::SupportedTargets());
  if ((targets & HWY_AVX3) != 0) return "AVX-512";
  return (targets & HWY_AVX2) != 0 ? "AVX2" : "SSE2";
}

}  // namespace

Processor this_processor() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto amx = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);
  const std::string made_by = vendor();
  return {.vectors = widest_vectors(),
          .bf16_kernels = cpu::has_bf16_kernels(),
          .amx = (isa & amx) == amx,
          .amd = made_by == "AuthenticAMD" || made_by == "HygonGenuine"};
}

bool multiplies_bf16(const Processor& processor) {
  return processor.bf16_kernels && (processor.amx || processor.amd);
}

std::string describe_bf16_products(const Processor& processor) {
  if (!multiplies_bf16(processor)) return "bf16 products in fp32";
  return processor.amx ? "bf16 products by AMX" : "bf16 products by AVX512-BF16";
}

}  // namespace meshtrain::ops

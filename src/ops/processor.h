// What this processor can do, as far as it changes how operations on `cpu` compute.
#pragma once

#include <string>

namespace meshtrain::ops {

struct Processor {
  std::string vectors;        // the widest that kernels use: "AVX-512", "AVX2" or "SSE2"
  bool bf16_kernels = false;  // oneDNN has a fast product of bf16 blocks
  bool amx = false;           // which multiplies tiles (AMX-BF16)
  bool amd = false;           // made by AMD, or by Hygon after its designs
};

// This one. ONEDNN_MAX_CPU_ISA, where it is set, takes instructions away.
Processor this_processor();

// Whether products of bf16 numbers are computed by its bf16 instructions, which are faster there than
// widening the numbers and multiplying in fp32. Both ways multiply exactly and sum in fp32.
//
// A table, since a measurement could come out differently on two ranks of a run, and the choice changes the
// order of sums. AMX has 8 times the rate of fp32. AVX512-BF16 (VDPBF16PS) has twice its rate on AMD's Zen 4
// and 5, but on Intel's processors a quarter per instruction, half in all. Of others nothing is known: fp32
// is never slower than fp32.
bool multiplies_bf16(const Processor& processor);

// "bf16 products by AMX", "bf16 products by AVX512-BF16" or "bf16 products in fp32".
std::string describe_bf16_products(const Processor& processor);

}  // namespace meshtrain::ops

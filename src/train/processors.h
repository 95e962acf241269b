// What the ranks of a run settle about their processors, which differ where its hosts do.
#pragma once

#include "comm/communicator.h"
#include "device/stream.h"
#include "ops/processor.h"

namespace meshtrain {

// How all ranks compute products of bf16 numbers: in fp32 as soon as one of them does. Rank 0 says on standard
// error when that makes others slower, and when vectors are of different widths, which changes the rounding of
// sums. A collective call.
Bf16Products agree_on_bf16_products(Communicator& ranks, const ops::Processor& own);

}  // namespace meshtrain

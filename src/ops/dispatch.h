// How an operation reaches a back end. Each operation's front end (ops/NAME.cc) checks shapes,
// states the cost, and hands over; the back ends are folders of the same shape (ops/cpu, …). The
// simulated device has no kernels: charging the cost is all it does.
#pragma once

#include "device/stream.h"

namespace meshtrain::ops {

template <class CpuKernel>
void run(Stream& stream, OpCost cost, CpuKernel&& cpu_kernel) {
  stream.charge(cost);
  switch (stream.kind()) {
    case DeviceKind::kCpu:
      cpu_kernel();
      break;
    case DeviceKind::kSim:
      break;
  }
}

}  // namespace meshtrain::ops

#include "ops/transfer.h"

#include <cstring>

#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

Tensor first_dimension_removed(const Tensor& x, std::int64_t i) {
  const Tensor row = x.slice(0, i, 1);
  switch (x.rank()) {
    case 2:
      return Tensor(row.raw(), x.dtype(), {x.dim(1)}, {x.stride(1)});
    case 3:
      return Tensor(row.raw(), x.dtype(), {x.dim(1), x.dim(2)}, {x.stride(1), x.stride(2)});
    default:
      return Tensor(row.raw(), x.dtype(), {x.dim(1), x.dim(2), x.dim(3)},
                    {x.stride(1), x.stride(2), x.stride(3)});
  }
}

void copy_strided(const Tensor& from, const Tensor& to) {
  if (from.rank() == 1) {
    std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
    return;
  }
  for (std::int64_t i = 0; i < from.dim(0); ++i) {
    copy_strided(first_dimension_removed(from, i), first_dimension_removed(to, i));
  }
}

}  // namespace

void copy_from_host(Stream& stream, const void* host, const Tensor& to) {
  check(to.contiguous(), "copy_from_host needs a contiguous tensor");
  run(stream, {.flops = 0, .bytes = to.bytes()},
      [&] { std::memcpy(to.raw(), host, static_cast<std::size_t>(to.bytes())); });
}

void copy_to_host(Stream& stream, const Tensor& from, void* host) {
  check(from.contiguous(), "copy_to_host needs a contiguous tensor");
  run(stream, {.flops = 0, .bytes = from.bytes()},
      [&] { std::memcpy(host, from.raw(), static_cast<std::size_t>(from.bytes())); });
}

void copy(Stream& stream, const Tensor& from, const Tensor& to) {
  check(from.dtype() == to.dtype() && from.shape() == to.shape(), "copy between unlike tensors");
  run(stream, {.flops = 0, .bytes = 2 * from.bytes()}, [&] { copy_strided(from, to); });
}

}  // namespace meshtrain::ops

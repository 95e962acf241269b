#include "ops/elementwise.h"

#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

void check_flat_f32(const Tensor& t, std::string_view what) {
  check(t.contiguous() && t.dtype() == DType::kF32, what);
}

}  // namespace

void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out) {
  check(a.contiguous() && b.contiguous() && out.contiguous() && is_float(a.dtype()),
        "add takes contiguous fp32, bf16 or fp16");
  check(a.dtype() == b.dtype() && a.dtype() == out.dtype(), "add takes one dtype");
  check(a.numel() == b.numel() && a.numel() == out.numel(), "add takes tensors of one size");
  run(stream, {.bytes = a.bytes() + b.bytes() + out.bytes()}, [&] { cpu::add(stream, a, b, out); });
}

void cast(Stream& stream, const Tensor& from, const Tensor& to) {
  check(from.contiguous() && to.contiguous() && is_float(from.dtype()) && is_float(to.dtype()),
        "cast takes contiguous fp32, bf16 or fp16");
  check(from.numel() == to.numel(), "cast takes tensors of one size");
  run(stream, {.bytes = from.bytes() + to.bytes()}, [&] { cpu::cast(stream, from, to); });
}

void fill(Stream& stream, const Tensor& out, float value) {
  check(out.contiguous(), "fill takes a contiguous tensor");
  run(stream, {.bytes = out.bytes()}, [&] { cpu::fill(stream, out, value); });
}

void touch(Stream& stream, const Tensor& out) {
  check(out.contiguous(), "touch takes a contiguous tensor");
  run(stream, {}, [&] { cpu::touch(stream, out); });
}

void scale(Stream& stream, const Tensor& x, float factor) {
  check_flat_f32(x, "scale takes a contiguous fp32 tensor");
  run(stream, {.bytes = 2 * x.bytes()}, [&] { cpu::scale(stream, x, factor); });
}

void fill_normal(Stream& stream, const Tensor& out, const RandomStream& random, std::int64_t first_index,
                 float mean, float deviation) {
  check_flat_f32(out, "fill_normal takes a contiguous fp32 tensor");
  run(stream, {.bytes = out.bytes()},
      [&] { cpu::fill_normal(stream, out, random, first_index, mean, deviation); });
}

double sum(Stream& stream, const Tensor& x) {
  check_flat_f32(x, "sum takes a contiguous fp32 tensor");
  double result = 0.0;
  run(stream, {.bytes = x.bytes()}, [&] { result = cpu::sum(stream, x); });
  return result;
}

}  // namespace meshtrain::ops

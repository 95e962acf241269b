#include "ops/attention.h"

#include "ops/checks.h"
#include "ops/cpu/attention.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

// Multiply-adds of one product of queries by keys: half of the square where each sees itself and what
// came before, all of it for the keys before the first query.
std::int64_t flops_of_product(const Tensor& q, const Tensor& k) {
  return q.dim(0) * q.dim(2) * q.dim(3) * q.dim(1) * (2 * k.dim(1) - q.dim(1));
}

void check_like(const Tensor& t, const Tensor& model, std::string_view what) {
  check(t.shape() == model.shape() && t.dtype() == model.dtype(), what);
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q.rank() == 4 && k.rank() == 4, "attention: q, k and v must be [B, T, heads, D]");
  check(is_float(q.dtype()) && k.dtype() == q.dtype(),
        "attention: q, k and v must be of one dtype of fp32, bf16, fp16");
  check_like(v, k, "attention: v must be like k");
  check(k.dim(0) == q.dim(0) && k.dim(3) == q.dim(3), "attention: q and k differ in batch or head size");
  check(q.numel() == 0 || (k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0),
        "attention: the query heads must be a multiple of the kv heads");
  check(k.dim(1) >= q.dim(1), "attention: more queries than keys");
}

void check_lse(const Tensor& lse, const Tensor& q) {
  check(lse.dtype() == DType::kF32 && lse.shape() == Shape{q.dim(0), q.dim(2), q.dim(1)},
        "attention: lse must be fp32 [B, heads, Tq]");
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  check_inputs(args.q, args.k, args.v);
  check_like(args.o, args.q, "attention: o must be like q");
  if (args.lse.defined()) check_lse(args.lse, args.q);
  const OpCost cost = {
      .flops = 2 * flops_of_product(args.q, args.k),
      .bytes = 2 * args.q.bytes() + 2 * args.k.bytes() + bytes_of(args.lse),
  };
  run(stream, cost, [&] {
    cpu::attention_forward(args, cpu::operand_for(args.q.dtype(), stream.bf16_products()), stream.pool());
  });
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  check_inputs(args.q, args.k, args.v);
  check(args.q.dim(1) == args.k.dim(1), "attention: the backward pass needs as many queries as keys");
  check_like(args.o, args.q, "attention: o must be like q");
  check_like(args.d_o, args.q, "attention: d_o must be like q");
  check_like(args.dq, args.q, "attention: dq must be like q");
  check_like(args.dk, args.k, "attention: dk must be like k");
  check_like(args.dv, args.k, "attention: dv must be like v");
  check_lse(args.lse, args.q);
  // Twice the forward pass by convention; the product that is computed anew is not counted.
  const OpCost cost = {
      .flops = 4 * flops_of_product(args.q, args.k),
      .bytes = 4 * args.q.bytes() + 4 * args.k.bytes() + args.lse.bytes(),
  };
  run(stream, cost, [&] {
    cpu::attention_backward(args, cpu::operand_for(args.q.dtype(), stream.bf16_products()), stream.pool());
  });
}

}  // namespace meshtrain::ops

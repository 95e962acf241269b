// y = x·Wᵀ (+ bias), W stored [out, in]. Between tensor-parallel ranks W is cut by rows (Linear) or by columns
// (RowLinear; "row" of the matrix that x is multiplied with, as Shoeybi et al. 2019 call it).
#pragma once

#include "model/context.h"
#include "params/param_store.h"

namespace meshtrain {

// Whole, or with some of the outputs: each rank computes columns of y. Then dx is a partial sum.
class Linear {
 public:
  Linear() = default;
  explicit Linear(ParamRef weight, ParamRef bias = {}) : weight_(weight), bias_(bias) {}

  std::int64_t in() const { return weight_.shape()[1]; }
  std::int64_t out() const { return weight_.shape()[0]; }

  // x [tokens, in] → y [tokens, out].
  void forward(Context& ctx, const Tensor& x, const Tensor& y) const;
  // dy [tokens, out] → dx [tokens, in].
  void backward_input(Context& ctx, const Tensor& dy, const Tensor& dx) const;
  // From x as forward saw it and dy.
  void backward_weight(Context& ctx, const Tensor& x, const Tensor& dy) const;

 private:
  ParamRef weight_;
  ParamRef bias_;
};

// Whole, or with some of the inputs: each rank has columns of x, and y is a partial sum. The bias is whole on
// every rank, and one of them adds it.
class RowLinear {
 public:
  RowLinear() = default;
  RowLinear(ParamRef weight, ParamRef bias) : weight_(weight), bias_(bias) {}

  std::int64_t in() const { return weight_.shape()[1]; }
  std::int64_t out() const { return weight_.shape()[0]; }

  // x [tokens, in] → y [tokens, out], to be summed over ranks.
  void forward(Context& ctx, const Tensor& x, const Tensor& y) const;
  // dy [tokens, out], inner → dx [tokens, in].
  void backward_input(Context& ctx, const Tensor& dy, const Tensor& dx) const;
  // The bias's gradient is of the rank's own rows.
  void backward_weight(Context& ctx, const Tensor& x, const SharedRows& dy) const;

 private:
  ParamRef weight_;
  ParamRef bias_;
};

}  // namespace meshtrain

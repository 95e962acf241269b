// y = x·Wᵀ (+ bias), W stored [out, in].
#pragma once

#include "model/context.h"
#include "params/param_store.h"

namespace meshtrain {

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

}  // namespace meshtrain

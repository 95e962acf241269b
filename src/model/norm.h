// RMSNorm or LayerNorm, alone or fused with the residual addition before it.
#pragma once

#include "model/context.h"
#include "ops/norm.h"
#include "params/param_store.h"

namespace meshtrain {

// What the backward pass needs besides the input itself.
struct NormSaved {
  Tensor x;  // what was normalised
  Tensor stats;
};

class Norm {
 public:
  Norm() = default;
  // `bias` defined makes it a LayerNorm.
  Norm(ParamRef weight, ParamRef bias, double epsilon)
      : weight_(weight), bias_(bias), epsilon_(static_cast<float>(epsilon)) {}

  // x [.., hidden], leading dimensions strided as they come; y has x's shape, saved.stats lies in `arena`.
  void forward(Context& ctx, const Tensor& x, const Tensor& y, NormSaved& saved, Arena& arena) const;
  // sum = x + delta; y = norm(sum).
  void forward_add(Context& ctx, const Tensor& x, const Tensor& delta, const Tensor& sum, const Tensor& y,
                   NormSaved& saved, Arena& arena) const;
  // dx = gradient through the norm (+ residual_gradient, when defined).
  void backward_input(Context& ctx, const NormSaved& saved, const Tensor& dy, const Tensor& residual_gradient,
                      const Tensor& dx) const;
  void backward_weight(Context& ctx, const NormSaved& saved, const Tensor& dy) const;

 private:
  ops::NormKind kind() const { return bias_.defined() ? ops::NormKind::kLayerNorm : ops::NormKind::kRmsNorm; }

  ParamRef weight_;
  ParamRef bias_;
  float epsilon_ = 0.0F;
};

}  // namespace meshtrain

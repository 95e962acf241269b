#include "ops/cross_entropy.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cross_entropy.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/cross_entropy-inl.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void cross_entropy_rows(const CrossEntropy& args, const Rows& logits, const Rows& dlogits, std::int64_t begin,
                        std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int32_t target = args.targets.data<std::int32_t>()[r];
    float& loss = args.losses.data<float>()[r];
    T* gradient = dlogits.defined() ? dlogits.row<T>(r) : nullptr;
    if (target == kIgnoredTarget) {
      loss = 0.0F;
      if (gradient != nullptr) std::fill_n(gradient, logits.width(), T(0.0F));
      continue;
    }
    const float* x = logits.row<float>(r);
    const Denominator d = denominator(x, args.vocab);
    const double exact_loss = loss_of(d, static_cast<double>(x[target]));
    loss = static_cast<float>(exact_loss);
    if (gradient == nullptr) continue;
    write_gradient(x, d, args.scale, args.vocab, logits.width(), gradient);
    gradient[target] = T(target_gradient(exact_loss, args.scale));
  }
}

}  // namespace

void CrossEntropyRows(const CrossEntropy& args, const Rows& logits, const Rows& dlogits, std::int64_t begin,
                      std::int64_t end) {
  with_float_type(args.dlogits.dtype(),
                  [&]<class T>(T) HWY_ATTR { cross_entropy_rows<T>(args, logits, dlogits, begin, end); });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(CrossEntropyRows);

void check_targets(const Tensor& targets, std::int64_t vocab) {
  const std::int32_t* ids = targets.data<std::int32_t>();
  check(std::all_of(ids, ids + targets.numel(),
                    [&](std::int32_t id) { return id == kIgnoredTarget || (id >= 0 && id < vocab); }),
        "cross_entropy: a target is neither ignored nor below vocab");
}

void cross_entropy(Stream& stream, const CrossEntropy& args) {
  const Rows logits(args.logits);
  const Rows dlogits(args.dlogits);
  check_targets(args.targets, args.vocab);
  parallel_ranges(stream, logits.count(), args.logits.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(args, logits, dlogits, begin, end);
  });
}

}  // namespace meshtrain::ops::cpu
#endif

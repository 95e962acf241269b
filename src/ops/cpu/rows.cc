#include "ops/cpu/rows.h"

namespace meshtrain::ops::cpu {

Rows::Rows(const Tensor& t) {
  if (t.rank() == 0) return;
  data_ = static_cast<std::byte*>(t.raw());
  width_ = t.shape().back();
  count_ = 1;
  for (int i = 0; i < t.rank() - 1; ++i) {
    const std::int64_t stride = t.stride(i) * size_of(t.dtype());
    count_ *= t.dim(i);
    if (t.dim(i) == 1) continue;
    const auto last = static_cast<std::size_t>(levels_ - 1);
    if (levels_ > 0 && strides_[last] == t.dim(i) * stride) {
      dims_[last] *= t.dim(i);
      strides_[last] = stride;
    } else {
      dims_[last + 1] = t.dim(i);
      strides_[last + 1] = stride;
      ++levels_;
    }
  }
}

}  // namespace meshtrain::ops::cpu

#include "comm/reduce.h"

#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>
#include <hwy/targets.h>

#include <array>
#include <functional>
#include <vector>

#include "comm_reference.h"

namespace meshtrain {
namespace {

using testing::input_element;
using testing::kAllReduceOps;
using testing::kAllTypes;
using testing::reference_reduce;
using testing::same_value;
using testing::with_type;

void for_each_target(const std::function<void()>& visit) {
  const std::int64_t available = hwy::SupportedTargets() | HWY_SCALAR;
  for (const std::int64_t target : {std::int64_t{HWY_SCALAR}, std::int64_t{HWY_AVX2}, std::int64_t{HWY_AVX3}}) {
    if ((available & target) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    visit();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

template <class T>
std::byte* bytes_of(T* values) {
  return reinterpret_cast<std::byte*>(values);
}

struct Case {
  int ranks;
  std::int64_t count;
  ReduceOp op;
  Stores stores;
  std::size_t shift;  // elements before the first one: breaks the alignment
};

// Two fresh outputs and, in place, the last input.
template <class T>
void expect_reference(const Case& c) {
  std::vector<std::vector<T>> in(static_cast<std::size_t>(c.ranks));
  for (int k = 0; k < c.ranks; ++k) {
    for (std::int64_t i = 0; i < c.count; ++i) in[k].push_back(input_element<T>(1, k, i, true));
    in[k].insert(in[k].begin(), c.shift, T());
  }
  std::vector<T> expected;
  for (std::size_t i = 0; i < static_cast<std::size_t>(c.count); ++i) {
    std::vector<T> column;
    for (const std::vector<T>& values : in) column.push_back(values[c.shift + i]);
    expected.push_back(reference_reduce(column, c.op));
  }
  const T guard = input_element<T>(2, 0, 0, false);
  const std::size_t end = c.shift + static_cast<std::size_t>(c.count);
  std::array<hwy::AlignedFreeUniquePtr<T[]>, 2> out = {hwy::AllocateAligned<T>(end + 1),
                                                       hwy::AllocateAligned<T>(end + 1)};
  std::vector<const std::byte*> from;
  for (std::vector<T>& values : in) from.push_back(bytes_of(values.data() + c.shift));
  std::vector<std::byte*> to;
  for (auto& buffer : out) {
    buffer[end] = guard;
    to.push_back(bytes_of(buffer.get() + c.shift));
  }
  // In place too; vectors are not aligned enough for streaming.
  if (c.stores == Stores::kCached) to.push_back(bytes_of(in.back().data() + c.shift));
  reduce(from, to, c.count, DTypeOf<T>::value, c.op, c.stores);
  for (const std::byte* bytes : to) {
    const T* result = reinterpret_cast<const T*>(bytes);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(same_value(result[i], expected[i]))
          << name_of(DTypeOf<T>::value) << ' ' << name_of(c.op) << " of " << c.ranks << " ranks, element " << i
          << " of " << c.count;
    }
  }
  for (const auto& buffer : out) EXPECT_TRUE(same_value(buffer[end], guard));
}

TEST(Reduce, EqualsTheReferenceOnEachInstructionSet) {
  for_each_target([] {
    for (const DType dtype : kAllTypes) {
      with_type(dtype, []<class T>(T) {
        for (const ReduceOp op : kAllReduceOps) {
          for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 11, 300}) {
            expect_reference<T>({ranks, 129, op, Stores::kCached, 1});
            if (::testing::Test::HasFatalFailure()) return;
          }
          for (const std::int64_t count : {0, 1, 7, 63, 64, 1000}) {
            expect_reference<T>({2, count, op, Stores::kStreaming, 0});
            expect_reference<T>({3, count, op, Stores::kStreaming, 0});
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      });
    }
  });
}

TEST(Reduce, RoundsOnceAtTheEnd) {
  // 256 + 1 is no bf16: rounded at each step it would stay 256.
  std::vector<BF16> a = {BF16(256.0F)}, b = {BF16(1.0F)}, c = {BF16(1.0F)}, out = {BF16(0.0F)};
  const std::vector<const std::byte*> in = {bytes_of(a.data()), bytes_of(b.data()), bytes_of(c.data())};
  std::vector<std::byte*> to = {bytes_of(out.data())};
  reduce(in, to, 1, DType::kBF16, ReduceOp::kSum);
  EXPECT_EQ(static_cast<float>(out[0]), 258.0F);
}

TEST(Reduce, AddsNeighboursFirst) {
  // (2^24 + 1) + (1 + 1): from left to right it would be 2^24.
  std::vector<float> a = {0x1p24F}, b = {1.0F}, c = {1.0F}, d = {1.0F}, out = {0.0F};
  const std::vector<const std::byte*> in = {bytes_of(a.data()), bytes_of(b.data()), bytes_of(c.data()),
                                            bytes_of(d.data())};
  std::vector<std::byte*> to = {bytes_of(out.data())};
  reduce(in, to, 1, DType::kF32, ReduceOp::kSum);
  EXPECT_EQ(out[0], 0x1p24F + 2.0F);
}

}  // namespace
}  // namespace meshtrain

#include "ops/cpu/gemm.h"

#include <omp.h>
#include <sys/mman.h>

#include <dnnl.hpp>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "ops/processor.h"

namespace meshtrain::ops::cpu {
namespace {

struct BlockShape {
  Operand operand = Operand::kF32;
  RightLayout layout = RightLayout::kRows;
  bool accumulate = false;
  std::int64_t m = 0;
  std::int64_t width = 0;
  std::int64_t depth = 0;
  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

struct BlockShapeHash {
  std::size_t operator()(const BlockShape& s) const {
    auto h = static_cast<std::uint64_t>(s.m);
    h = h * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(s.width);
    h = h * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(s.depth);
    h = h * 0x9E3779B97F4A7C15U + (static_cast<std::uint64_t>(s.operand) * 4 + (s.accumulate ? 1U : 0U));
    return static_cast<std::size_t>(h ^ (h >> 32U));
  }
};

const dnnl::engine& engine() {
  static const dnnl::engine kEngine(dnnl::engine::kind::cpu, 0);
  return kEngine;
}

struct BlockProduct {
  explicit BlockProduct(const BlockShape& s);

  void run(dnnl_stream_t stream, const void* a, const void* b, float* c);

  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  dnnl::memory left, right, result;
};

dnnl::matmul::primitive_desc describe(const BlockShape& s) {
  using Tag = dnnl::memory::format_tag;
  using Type = dnnl::memory::data_type;
  const Type type = s.operand == Operand::kBF16 ? Type::bf16 : Type::f32;
  const Tag panels = s.operand == Operand::kBF16 ? Tag::BA16a64b2a : Tag::BA16a64b;
  const dnnl::memory::desc a({s.m, s.depth}, type, Tag::ab);
  const dnnl::memory::desc b({s.depth, s.width}, type, s.layout == RightLayout::kPanels ? panels : Tag::ab);
  const dnnl::memory::desc c({s.m, s.width}, Type::f32, Tag::ab);
  dnnl::primitive_attr attributes;
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  return {dnnl::matmul::desc(a, b, c), attributes, engine()};
}

BlockProduct::BlockProduct(const BlockShape& s)
    : description(describe(s)),
      primitive(description),
      left(description.src_desc(), engine(), DNNL_MEMORY_NONE),
      right(description.weights_desc(), engine(), DNNL_MEMORY_NONE),
      result(description.dst_desc(), engine(), DNNL_MEMORY_NONE) {}

void require(dnnl_status_t status) {
  check(status == dnnl_success, "oneDNN failed to run a matrix product");
}

// The C interface: the C++ one builds a map for each call, which costs as much as a small product.
void BlockProduct::run(dnnl_stream_t stream, const void* a, const void* b, float* c) {
  require(dnnl_memory_set_data_handle(left.get(), const_cast<void*>(a)));
  require(dnnl_memory_set_data_handle(right.get(), const_cast<void*>(b)));
  require(dnnl_memory_set_data_handle(result.get(), c));
  const std::array<dnnl_exec_arg_t, 3> arguments = {
      {{DNNL_ARG_SRC, left.get()}, {DNNL_ARG_WEIGHTS, right.get()}, {DNNL_ARG_DST, result.get()}}};
  require(
      dnnl_primitive_execute(primitive.get(), stream, static_cast<int>(arguments.size()), arguments.data()));
}

// oneDNN 2.6 keeps descriptions in a cache of all threads, whose entries it changes while others compare them.
std::mutex& creation() {
  static std::mutex mutex;
  return mutex;
}

// Of one thread. Holds at most kMaxProducts; starts afresh when a new size would exceed that.
class BlockProducts {
 public:
  static constexpr std::size_t kMaxProducts = 512;

  // oneDNN would start threads of its own in this one otherwise.
  BlockProducts() { omp_set_num_threads(1); }

  void run(const BlockShape& shape, const void* a, const void* b, float* c) {
    auto found = products_.find(shape);
    if (found == products_.end()) {
      if (products_.size() >= kMaxProducts) products_.clear();
      const std::lock_guard lock(creation());
      found = products_.try_emplace(shape, shape).first;
    }
    found->second.run(stream_.get(), a, b, c);
  }

 private:
  dnnl::stream stream_{engine()};
  std::unordered_map<BlockShape, BlockProduct, BlockShapeHash> products_;
};

// Whether oneDNN has one of its fast kernels for this block.
bool has_fast_kernel(Operand operand, RightLayout layout) {
  try {
    const auto description = describe({operand, layout, false, 2 * kWidthUnit, kWidthUnit, 2 * kDepthUnit});
    return std::string_view(description.impl_info_str()).substr(0, 3) == "brg";
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace

bool has_bf16_kernels() {
  return has_fast_kernel(Operand::kBF16, RightLayout::kPanels);
}

Operand operand_for(DType dtype, Bf16Products products) {
  static const bool kFastest = multiplies_bf16(this_processor());
  const bool bf16 = dtype == DType::kBF16 && products == Bf16Products::kFastest && kFastest;
  return bf16 ? Operand::kBF16 : Operand::kF32;
}

RightLayout right_layout(Operand operand) {
  static const bool kF32Panels = has_fast_kernel(Operand::kF32, RightLayout::kPanels);
  return operand == Operand::kBF16 || kF32Panels ? RightLayout::kPanels : RightLayout::kRows;
}

void multiply_block(Operand operand, std::int64_t m, std::int64_t width, std::int64_t depth, const void* a,
                    const void* b, float* c, bool accumulate) {
  static thread_local BlockProducts products;
  products.run({operand, right_layout(operand), accumulate, m, width, depth}, a, b, c);
}

Scratch::~Scratch() {
  std::free(data_);
}

void* Scratch::grow(std::int64_t bytes) {
  if (bytes > bytes_) {
    std::free(data_);
    bytes_ = 0;
    constexpr std::int64_t kHugePage = 2 << 20;
    const std::int64_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
    const std::int64_t size = round_up(bytes, alignment);
    data_ = std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(size));
    if (data_ == nullptr) throw std::bad_alloc();
    // A refusal costs speed only.
    if (bytes >= kHugePage) madvise(data_, static_cast<std::size_t>(size), MADV_HUGEPAGE);
    bytes_ = size;
  }
  return data_;
}

}  // namespace meshtrain::ops::cpu

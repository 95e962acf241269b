// What the parts of the conformance suite share.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "comm_conformance.h"
#include "comm_reference.h"

namespace meshtrain::testing {

class Conformance {
 public:
  Conformance(World& world, Extent extent) : world_(world), extent_(extent), device_(world.make_device()) {}

  World& world() { return world_; }
  Device& device() { return *device_; }
  bool quick() const { return extent_ == Extent::kQuick; }
  // Keeps the first few.
  void fail(const std::string& what);
  void expect(bool holds, const std::string& what) {
    if (!holds) fail(what);
  }
  const std::vector<std::string>& failures() const { return failures_; }
  // A number that no call has had before; the same on each rank.
  std::uint64_t next_seed() { return ++seed_; }

 private:
  World& world_;
  Extent extent_;
  std::unique_ptr<Device> device_;
  std::vector<std::string> failures_;
  std::uint64_t seed_ = 0;
};

// Where a rank's tensors lie: in the engine's shared memory, in ordinary memory, or in one on even ranks and
// in the other on odd ones.
enum class Place : std::uint8_t { kDevice, kHost, kMixed };
inline constexpr std::array<Place, 3> kAllPlaces = {Place::kDevice, Place::kHost, Place::kMixed};
std::string name_of(Place place);

// A tensor with its memory and guards around it; it begins on a cache line if its count is even.
class Block {
 public:
  Block(Conformance& suite, Place place, DType dtype, std::int64_t count);

  const Tensor& tensor() const { return tensor_; }
  Tensor piece(std::int64_t begin, std::int64_t count) const;
  bool guards_untouched() const;

 private:
  Buffer buffer_;
  std::vector<std::byte> host_;
  std::byte* begin_ = nullptr;
  std::int64_t before_ = 0;
  Tensor tensor_;
};

// Element i becomes element(i), a T.
template <class T, class Element>
void fill_elements(const Tensor& tensor, const Element& element) {
  T* to = tensor.data<T>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) to[i] = element(i);
}

// Says where the tensor differs from element(i), a T, first.
template <class T, class Element>
void expect_elements(Conformance& suite, const std::string& what, const Tensor& tensor,
                     const Element& element) {
  const T* actual = tensor.data<T>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    if (same_value(actual[i], element(i))) continue;
    const auto readable = [](T value) { return static_cast<Sum<T>>(value); };
    return suite.fail(fmt::format("{}: element {} of {} is {}, not {}", what, i, tensor.numel(),
                                  readable(actual[i]), readable(element(i))));
  }
}

void check_reductions(Conformance& suite, Communicator& comm);
void check_moves(Conformance& suite, Communicator& comm);
void check_exchanges(Conformance& suite, Communicator& comm);
void check_groups(Conformance& suite);
void check_queues(Conformance& suite);
void check_stats(Conformance& suite);

}  // namespace meshtrain::testing

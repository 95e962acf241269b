#include "comm/shm/communicator.h"

#include <algorithm>

#include "base/round_up.h"
#include "comm/reduce.h"
#include "comm/shm/rounds.h"

namespace meshtrain::shm {
namespace {

// What a task reads and writes in all: long against the cost of claiming it.
constexpr std::int64_t kTaskBytes = std::int64_t{512} << 10U;
// A slice is worth another rank's attention from here on.
constexpr std::int64_t kLeastSlice = 2048;

// Results of all ranks together that do not stay in caches until somebody reads them.
constexpr std::int64_t kStreamBytes = std::int64_t{32} << 20U;

Stores stores_for(std::int64_t bytes_written) {
  return bytes_written >= kStreamBytes ? Stores::kStreaming : Stores::kCached;
}

std::byte* bytes_of(const Tensor& tensor) {
  return static_cast<std::byte*>(tensor.raw());
}

template <class Count, class Reachable, class Run>
struct Tasks {
  Count count;
  Reachable reachable;
  Run run;
};
template <class Count, class Reachable, class Run>
Tasks(Count, Reachable, Run) -> Tasks<Count, Reachable, Run>;

}  // namespace

void ShmCommunicator::do_barrier(const CommCall& call) {
  begin_operation(call);
  meet(0, 0, {});
}

void ShmCommunicator::do_broadcast(const CommCall& call, const Tensor& data) {
  begin_operation(call);
  const bool is_root = rank() == call.root;
  if (data.bytes() <= kInlineBytes) {
    if (is_root) {
      meet_with(data);
    } else {
      meet(0, 0, {});
      copy_bytes(of(call.root).data.data(), bytes_of(data), data.bytes());
    }
    return;
  }
  const std::array<std::int64_t, 2> offsets = {0, is_root ? call.count : 0};
  const Pieces in{bytes_of(data), offsets, size_of(call.dtype)};
  in_rounds(
      in, data, [&] { return call.count; },
      [&](const Range& range) {
        const std::byte* from = source(call.root, 0, 0, range);
        constexpr std::int64_t kChunk = kTaskBytes / 2;
        const Stores stores = stores_for(range.bytes() * (size() - 1));
        share(Tasks{
            [&](int slice) { return slice == call.root ? 0 : pieces(range.bytes(), kChunk); },
            [&](int slice) { return output_of(slice) != nullptr; },
            [&](int slice, std::int64_t task) {
              std::byte* to =
                  (slice == rank() ? bytes_of(data) : output_of(slice)) + range.begin * range.element;
              const std::int64_t begin = task * kChunk;
              copy_bytes(from + begin, to + begin, std::min(kChunk, range.bytes() - begin), stores);
            },
        });
      });
}

void ShmCommunicator::do_all_reduce(const CommCall& call, const Tensor& in, const Tensor& out) {
  begin_operation(call);
  if (in.bytes() <= kInlineBytes) {
    meet_with(in);
    for (int k = 0; k < size(); ++k) in_[k] = of(k).data.data();
    const std::array<std::byte*, 1> to = {bytes_of(out)};
    return reduce(in_, to, call.count, call.dtype, call.reduce);
  }
  const std::array<std::int64_t, 2> offsets = {0, call.count};
  const Pieces pieces_in{bytes_of(in), offsets, size_of(call.dtype)};
  in_rounds(
      pieces_in, out, [&] { return call.count; },
      [&](const Range& range) {
        out_.clear();
        bool any_staged = false;
        bool in_place = false;
        for (int k = 0; k < size(); ++k) {
          in_[k] = source(k, 0, 0, range);
          std::byte* to = output_of(k);
          any_staged |= to == nullptr;
          in_place |= of(k).in == of(k).out;
          if (to != nullptr) out_.push_back(to + range.begin * range.element);
        }
        if (any_staged) out_.push_back(block_.results());
        const Stores stores = in_place ? Stores::kCached : stores_for(range.bytes() * size());
        const std::int64_t buffers = size() + static_cast<std::int64_t>(out_.size());
        const std::int64_t chunk = std::max(kLeastSlice, kTaskBytes / buffers) / 64 * 64;
        const std::int64_t slice_bytes = round_up(std::max(pieces(range.bytes(), size()), kLeastSlice), 64);
        const auto begin_of = [&](std::int64_t slice) { return std::min(range.bytes(), slice * slice_bytes); };
        task_out_.resize(out_.size());
        share(Tasks{
            [&](int slice) { return pieces(begin_of(slice + 1) - begin_of(slice), chunk); },
            [](int) { return true; },
            [&](int slice, std::int64_t task) {
              const std::int64_t begin = begin_of(slice) + task * chunk;
              const std::int64_t end = std::min(begin + chunk, begin_of(slice + 1));
              for (std::size_t k = 0; k < in_.size(); ++k) task_in_[k] = in_[k] + begin;
              for (std::size_t m = 0; m < out_.size(); ++m) task_out_[m] = out_[m] + begin;
              reduce(task_in_, task_out_, (end - begin) / range.element, call.dtype, call.reduce, stores);
            },
        });
        if (output_of(rank()) == nullptr) {
          copy_bytes(block_.results(), bytes_of(out) + range.begin * range.element, range.bytes());
        }
      });
}

void ShmCommunicator::do_reduce_scatter(const CommCall& call, const Tensor& in, const Tensor& out) {
  begin_operation(call);
  if (in.bytes() <= kInlineBytes) {
    meet_with(in);
    for (int k = 0; k < size(); ++k) in_[k] = of(k).data.data() + rank() * out.bytes();
    const std::array<std::byte*, 1> to = {bytes_of(out)};
    return reduce(in_, to, call.count, call.dtype, call.reduce);
  }
  offsets_.resize(in_.size() + 1);
  for (std::size_t p = 0; p < offsets_.size(); ++p) offsets_[p] = static_cast<std::int64_t>(p) * call.count;
  const Pieces pieces_in{bytes_of(in), offsets_, size_of(call.dtype)};
  in_rounds(
      pieces_in, out, [&] { return call.count; },
      [&](const Range& range) {
        const std::int64_t chunk = std::max(kLeastSlice, kTaskBytes / (size() + 1)) / 64 * 64;
        share(Tasks{
            [&](int) { return pieces(range.bytes(), chunk); },
            [&](int slice) { return output_of(slice) != nullptr; },
            [&](int slice, std::int64_t task) {
              const std::int64_t begin = task * chunk;
              const std::int64_t bytes = std::min(chunk, range.bytes() - begin);
              for (int k = 0; k < size(); ++k)
                task_in_[k] = source(k, slice, slice * call.count, range) + begin;
              std::byte* to = slice == rank() ? bytes_of(out) : output_of(slice);
              to += range.begin * range.element + begin;
              const bool in_place = to == task_in_[slice];
              reduce(task_in_, {&to, 1}, bytes / range.element, call.dtype, call.reduce,
                     in_place ? Stores::kCached : stores_for(range.bytes() * size()));
            },
        });
      });
}

void ShmCommunicator::do_all_gather(const CommCall& call, const Tensor& in, const Tensor& out) {
  begin_operation(call);
  if (in.bytes() <= kInlineBytes) {
    meet_with(in);
    for (int k = 0; k < size(); ++k) copy_bytes(of(k).data.data(), bytes_of(out) + k * in.bytes(), in.bytes());
    return;
  }
  const std::array<std::int64_t, 2> offsets = {0, call.count};
  const Pieces pieces_in{bytes_of(in), offsets, size_of(call.dtype)};
  in_rounds(
      pieces_in, out, [&] { return call.count; },
      [&](const Range& range) {
        constexpr std::int64_t kChunk = kTaskBytes / 2;
        const std::int64_t chunks = pieces(range.bytes(), kChunk);
        const Stores stores = stores_for(range.bytes() * size() * size());
        share(Tasks{
            [&](int) { return size() * chunks; },
            [&](int slice) { return output_of(slice) != nullptr; },
            [&](int slice, std::int64_t task) {
              // Ranks begin with what is their own, and so not all with the same.
              const int from = (slice + static_cast<int>(task / chunks)) % size();
              const std::int64_t begin = task % chunks * kChunk;
              std::byte* to = slice == rank() ? bytes_of(out) : output_of(slice);
              copy_bytes(source(from, 0, 0, range) + begin,
                         to + (from * call.count + range.begin) * range.element + begin,
                         std::min(kChunk, range.bytes() - begin), stores);
            },
        });
      });
}

void ShmCommunicator::do_all_to_all(const CommCall& call, const Tensor& in,
                                    std::span<const std::int64_t> send_counts, const Tensor& out,
                                    std::span<const std::int64_t> receive_counts) {
  begin_operation(call);
  std::int64_t* sent = block_.send_offsets(rank(), operations_);
  std::int64_t* received = block_.receive_offsets(rank(), operations_);
  sent[0] = received[0] = 0;
  for (int k = 0; k < size(); ++k) {
    sent[k + 1] = sent[k] + send_counts[k];
    received[k + 1] = received[k] + receive_counts[k];
  }
  const Pieces pieces_in{bytes_of(in), {sent, in_.size() + 1}, size_of(call.dtype)};
  const auto longest = [&] {
    std::int64_t most = 0;
    for (int k = 0; k < size(); ++k) {
      const std::int64_t* offsets = block_.send_offsets(k, operations_);
      for (int p = 0; p < size(); ++p) most = std::max(most, offsets[p + 1] - offsets[p]);
    }
    return most;
  };
  in_rounds(pieces_in, out, longest, [&](const Range& range) {
    share(Tasks{
        [&](int) { return size(); },
        [&](int slice) { return output_of(slice) != nullptr; },
        [&](int slice, std::int64_t task) {
          const int from = static_cast<int>((slice + task) % size());
          const std::int64_t* offsets = block_.send_offsets(from, operations_) + slice;
          const std::int64_t* places = block_.receive_offsets(slice, operations_) + from;
          const std::int64_t count = offsets[1] - offsets[0];
          if (count != places[1] - places[0]) {
            area_->fail_and_throw(fmt::format("{}: rank {} sends {} elements to rank {}, which expects {}",
                                              operation(), ranks()[from], count, ranks()[slice],
                                              places[1] - places[0]));
          }
          std::byte* to = slice == rank() ? bytes_of(out) : output_of(slice);
          copy_bytes(source(from, slice, offsets[0], range), to + (places[0] + range.begin) * range.element,
                     (std::min(count, range.end) - range.begin) * range.element);
        },
    });
  });
}

}  // namespace meshtrain::shm

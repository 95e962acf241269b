// Collectives through shared memory: ranks read each other's inputs and write each other's outputs in place.
//
// A collective is one or more rounds. In a round every rank publishes what it brings; once all have, the work
// lies open as tasks, a slice of them for each rank. A rank does its own slice first and then whatever of the
// others' is left and within reach, so that a rank without a core delays nobody; the round is over when all
// tasks are done. Short messages travel in the publications: there the round ends when all have published,
// and each rank computes its own result. Publications alternate between two places: by the time that a rank
// publishes round r + 2, it has seen all ranks publish r + 1, and so be done with r.
//
// Tensors of a process outside the shared heap pass through staging, a chunk a round.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/shm/area.h"
#include "comm/shm/group_block.h"
#include "comm/shm/wait.h"
#include "comm/world.h"

namespace meshtrain::shm {

class ShmCommunicator final : public Communicator {
 public:
  // Waits for the other ranks. `offset`: of the group's block in the area.
  ShmCommunicator(std::shared_ptr<Area> area, std::uint64_t offset, std::string name, std::vector<int> ranks,
                  int rank, const WorldOptions& options);
  ~ShmCommunicator() override;

 protected:
  void do_barrier(const CommCall& call) override;
  void do_broadcast(const CommCall& call, const Tensor& data) override;
  void do_all_reduce(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_reduce_scatter(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_all_gather(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const CommCall& call, const Tensor& in, std::span<const std::int64_t> send_counts,
                     const Tensor& out, std::span<const std::int64_t> receive_counts) override;
  void do_exchange(std::span<const Transfer> sends, std::span<const Transfer> receives) override;

 private:
  class RoundWatch;
  class Exchange;
  class Touching;

  // A tensor as its rank sees it: pieces that are staged side by side, from one offset (elements) to the next.
  struct Pieces {
    const std::byte* data = nullptr;
    std::span<const std::int64_t> offsets;
    std::int64_t element = 1;  // bytes
  };
  // Elements [begin, end) of each piece; in staging, pieces are `step` elements apart.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t step = 0;
    std::int64_t element = 1;
    std::int64_t bytes() const { return (end - begin) * element; }
  };

  // --- rounds.cc ---
  void begin_operation(const CommCall& call);
  // Publishes and waits for all; throws if the calls differ.
  void meet(std::uint64_t in, std::uint64_t out, std::span<const std::byte> data);
  void meet_with(const Tensor& data) {
    meet(0, 0, {static_cast<const std::byte*>(data.raw()), static_cast<std::size_t>(data.bytes())});
  }
  const Publication& of(int rank) const { return block_.publication(rank, round_ & 1U); }
  void check_calls();
  bool arrived(int rank) const { return of(rank).round.load() == round_; }
  // count(slice), reachable(slice), run(slice, task).
  template <class Tasks>
  void share(const Tasks& tasks);
  // Returns how many of the slice's `count` tasks it has done.
  template <class Tasks>
  std::uint32_t do_tasks_of(int slice, std::uint32_t count, const Tasks& tasks);
  // The next task of a slice that nobody has begun; `count`: none is left.
  std::uint32_t claim(int slice, std::uint32_t count) const;
  bool complete(std::uint32_t tasks) const;
  void report_done(std::uint32_t mine, std::uint32_t tasks);
  void wait_until_complete(std::uint32_t tasks);
  // After a failure, returns when no other thread touches this rank's tensors any more.
  void await_quiet() const;
  // body(range), once where every rank reaches all, else chunk by chunk. longest(), asked once all have
  // arrived, is the length of the longest piece of all ranks. What it throws leaves when nobody touches this
  // rank's tensors any more.
  template <class Longest, class Body>
  void in_rounds(const Pieces& in, const Tensor& out, const Longest& longest, const Body& body);
  void stage(const Pieces& in, const Range& range);
  // Element range.begin of a piece that begins at `offset` in the input of `rank`, and is number `piece`.
  const std::byte* source(int rank, int piece, std::int64_t offset, const Range& range) const;
  // Where all may write to; nullptr: its rank alone.
  std::byte* output_of(int rank) const;
  std::string operation() const;
  // World ranks that have not published this round; that have tasks of it in hand or before them.
  std::vector<int> not_arrived() const;
  std::vector<int> not_done() const;

  std::shared_ptr<Area> area_;
  std::uint64_t offset_;
  GroupBlock block_;
  Patience patience_;
  std::chrono::nanoseconds deadline_;
  CommCall call_;
  std::int64_t operations_ = 0;  // collectives; 0: the group is being made
  std::int64_t exchanges_ = 0;
  std::uint32_t round_ = 0;
  // Scratch.
  std::vector<const std::byte*> in_, task_in_;
  std::vector<std::byte*> out_, task_out_;
  std::vector<std::int64_t> offsets_;
};

// While it lives, this rank reads and writes the tensors of others, unless the world has failed: then they may
// be gone.
class ShmCommunicator::Touching {
 public:
  explicit Touching(const ShmCommunicator& comm) : busy_(comm.block_.progress(comm.rank()).busy) {
    // In one order with the failure that await_quiet() comes after.
    busy_.store(1);
    allowed_ = !comm.area_->failed();
  }
  bool allowed() const { return allowed_; }
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;
  ~Touching() { busy_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint32_t>& busy_;
  bool allowed_ = false;
};

}  // namespace meshtrain::shm

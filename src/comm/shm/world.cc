#include "comm/shm/world.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "comm/shm/communicator.h"
#include "comm/shm/heap.h"

namespace meshtrain::shm {
namespace {

class ShmWorld final : public World {
 public:
  ShmWorld(std::shared_ptr<Area> area, int rank, const WorldOptions& options)
      : area_(std::move(area)), rank_(rank), options_(options) {
    area_->enter(rank_);
    if (!area_->of_threads()) heap_ = std::make_shared<Heap>(area_, rank_);
  }
  ~ShmWorld() override { area_->leave(rank_); }

  std::string_view engine() const override { return "shm"; }
  int rank() const override { return rank_; }
  int size() const override { return area_->ranks(); }
  int local_size() const override { return area_->ranks(); }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override;
  std::unique_ptr<Device> make_device() override { return make_cpu_device(heap_); }
  void abort(const std::string& reason) noexcept override { area_->fail(reason); }

 private:
  std::uint64_t key_of(const std::string& name, const std::vector<int>& ranks);

  std::shared_ptr<Area> area_;
  int rank_;
  WorldOptions options_;
  std::shared_ptr<Heap> heap_;  // of processes
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, std::uint64_t> groups_made_;
};

// The same for the n-th group of this name and list on each of its ranks.
std::uint64_t ShmWorld::key_of(const std::string& name, const std::vector<int>& ranks) {
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = groups_made_[{name, ranks}]++;
  }
  const std::uint64_t of_ranks = XXH3_64bits_withSeed(ranks.data(), ranks.size() * sizeof(int), generation);
  return XXH3_64bits_withSeed(name.data(), name.size(), of_ranks);
}

std::unique_ptr<Communicator> ShmWorld::group(const std::string& name, const std::vector<int>& ranks) {
  const int place = place_in(ranks);
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  check(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() && sorted.front() >= 0 &&
            sorted.back() < size(),
        "a group is of ranks of the world, each once");
  area_->throw_if_failed();
  const std::uint64_t offset = area_->block_of(
      key_of(name, ranks), GroupBlock::bytes(static_cast<int>(ranks.size()), !area_->of_threads()), options_);
  return std::make_unique<ShmCommunicator>(area_, offset, name, ranks, place, options_);
}

}  // namespace

std::unique_ptr<World> make_world(std::shared_ptr<Area> area, int rank, const WorldOptions& options) {
  return std::make_unique<ShmWorld>(std::move(area), rank, options);
}

}  // namespace meshtrain::shm

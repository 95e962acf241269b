// The engine of plans: whatever is called is counted by the base class, and nothing moves.
#include "comm/engines.h"

namespace meshtrain {
namespace {

class SimCommunicator final : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  void do_barrier(const CommCall& /*call*/) override {}
  void do_broadcast(const CommCall& /*call*/, const Tensor& /*data*/) override {}
  void do_all_reduce(const CommCall& /*call*/, const Tensor& /*in*/, const Tensor& /*out*/) override {}
  void do_reduce_scatter(const CommCall& /*call*/, const Tensor& /*in*/, const Tensor& /*out*/) override {}
  void do_all_gather(const CommCall& /*call*/, const Tensor& /*in*/, const Tensor& /*out*/) override {}
  void do_all_to_all(const CommCall& /*call*/, const Tensor& /*in*/,
                     std::span<const std::int64_t> /*send_counts*/, const Tensor& /*out*/,
                     std::span<const std::int64_t> /*receive_counts*/) override {}
  void do_exchange(std::span<const Transfer> /*sends*/, std::span<const Transfer> /*receives*/) override {}
};

class SimWorld final : public World {
 public:
  SimWorld(int rank, int size) : rank_(rank), size_(size) {}

  std::string_view engine() const override { return "sim"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_size() const override { return 1; }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_unique<SimCommunicator>(name, ranks, place_in(ranks));
  }
  std::unique_ptr<Device> make_device() override { return make_sim_device(); }
  void abort(const std::string& /*reason*/) noexcept override {}

 private:
  int rank_;
  int size_;
};

}  // namespace

std::unique_ptr<World> make_sim_world(int rank, int size) {
  return std::make_unique<SimWorld>(rank, size);
}

}  // namespace meshtrain

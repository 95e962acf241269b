// One rank of one: what it sends it has.
#include <cstring>

#include "base/error.h"
#include "comm/engines.h"

namespace meshtrain {
namespace {

void move(const Tensor& in, const Tensor& out) {
  if (in.numel() > 0) std::memmove(out.raw(), in.raw(), static_cast<std::size_t>(in.bytes()));
}

class SingleCommunicator final : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  void do_barrier(const CommCall& /*call*/) override {}
  void do_broadcast(const CommCall& /*call*/, const Tensor& /*data*/) override {}
  void do_all_reduce(const CommCall& /*call*/, const Tensor& in, const Tensor& out) override { move(in, out); }
  void do_reduce_scatter(const CommCall& /*call*/, const Tensor& in, const Tensor& out) override {
    move(in, out);
  }
  void do_all_gather(const CommCall& /*call*/, const Tensor& in, const Tensor& out) override { move(in, out); }
  void do_all_to_all(const CommCall& /*call*/, const Tensor& in, std::span<const std::int64_t> /*send_counts*/,
                     const Tensor& out, std::span<const std::int64_t> /*receive_counts*/) override {
    move(in, out);
  }
  void do_exchange(std::span<const Transfer> sends, std::span<const Transfer> receives) override {
    check(sends.size() == receives.size(), "messages to oneself match one by one");
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const Tensor& in = sends[i].data;
      const Tensor& out = receives[i].data;
      check(in.numel() == out.numel() && in.dtype() == out.dtype(), "messages of unlike tensors");
      move(in, out);
    }
  }
};

class SingleWorld final : public World {
 public:
  std::string_view engine() const override { return "single"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_size() const override { return 1; }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_unique<SingleCommunicator>(name, ranks, 0);
  }
  std::unique_ptr<Device> make_device() override { return make_cpu_device(); }
  void abort(const std::string& /*reason*/) noexcept override {}
};

}  // namespace

std::unique_ptr<World> make_single_world() {
  return std::make_unique<SingleWorld>();
}

}  // namespace meshtrain

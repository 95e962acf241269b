#include <exception>

#include "comm/engines.h"
#include "comm/mpi/communicator.h"
#include "comm/mpi/native_communicator.h"
#include "comm/mpi/session.h"

namespace meshtrain {
namespace {

// A rank that ends without the normal end of its world ends the others too: the MPI launcher does it when the
// process died, MPI_Abort when it exited.
class MpiWorld final : public World {
 public:
  MpiWorld(int expected, const WorldOptions& options, MpiCollectives collectives)
      : session_(expected, options), collectives_(collectives), exceptions_(std::uncaught_exceptions()) {}

  // MPI wants all ranks at its end, so this one waits for the others; not when an error is on its way up.
  ~MpiWorld() override {
    if (std::uncaught_exceptions() == exceptions_) session_.leave();
  }

  std::string_view engine() const override {
    return collectives_ == MpiCollectives::kNative ? "mpi-native" : "mpi";
  }
  int rank() const override { return session_.rank(); }
  int size() const override { return session_.size(); }
  int local_size() const override { return session_.local_size(); }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    const int rank_in_group = place_in(ranks);
    const int tag = session_.agree_on_tag(name, ranks);
    if (collectives_ == MpiCollectives::kNative) {
      return std::make_unique<mpi::NativeCommunicator>(session_, name, ranks, rank_in_group, tag);
    }
    return std::make_unique<mpi::OwnCommunicator>(session_, name, ranks, rank_in_group, tag);
  }

  std::unique_ptr<Device> make_device() override { return make_cpu_device(); }
  void abort(const std::string& reason) noexcept override { session_.fail(reason); }

 private:
  mpi::Session session_;
  MpiCollectives collectives_;
  int exceptions_;
};

}  // namespace

bool has_mpi() {
  return true;
}

std::unique_ptr<World> make_mpi_world(int expected, const WorldOptions& options, MpiCollectives collectives) {
  return std::make_unique<MpiWorld>(expected, options, collectives);
}

}  // namespace meshtrain

// The library's own collectives, to compare with: no agreement of calls, and sums in an order of its own.
// Exchanges, and payloads of more elements than an int counts, go the usual way.
#pragma once

#include <string>
#include <vector>

#include "comm/mpi/communicator.h"

namespace meshtrain::mpi {

class NativeCommunicator final : public OwnCommunicator {
 public:
  // Called by all ranks of the group at the same time.
  NativeCommunicator(Session& session, std::string name, std::vector<int> ranks, int rank, int tag);
  // The group's communicator is left to the end of MPI: freeing it is collective.
  ~NativeCommunicator() override = default;

 protected:
  void do_barrier(const CommCall& call) override;
  void do_broadcast(const CommCall& call, const Tensor& data) override;
  // Throw UserError for sums of fp16 and bf16, which the library does not know.
  void do_all_reduce(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_reduce_scatter(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_all_gather(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const CommCall& call, const Tensor& in, std::span<const std::int64_t> send_counts,
                     const Tensor& out, std::span<const std::int64_t> receive_counts) override;

 private:
  void finish(MPI_Request request, const CommCall& call);

  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace meshtrain::mpi

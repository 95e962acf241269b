// Collectives by exchanging pieces and summing them here, in the order of the tree.
//
// An operation begins with a header to every other rank of the group and one from each: who calls what. So
// calls that differ are an error on every rank that shows both, and a deadline says who has not come. Payloads
// of up to 4 kB travel with the header, which makes them one message latency. Larger ones follow in pieces:
//  - reduce-scatter: rank j gets everybody's piece j and sums;
//  - all-gather: everybody's piece to everybody;
//  - all-reduce: both; broadcast: the root scatters, then as all-gather.
//
// Memory beside the caller's tensors: 8 kB a rank of the group, and for sums of larger payloads the pieces
// that are under way, two of 512 kB or of 64 kB a rank, whichever is more; kept from the first use on.
//
// Every send of an exchange waits until its receiver has come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/session.h"

namespace meshtrain::mpi {

// The message that opens an operation, as far as it is filled.
struct Opening {
  enum class Role : std::uint8_t { kCollective, kSends, kReceives };  // of this message of an exchange
  struct Header {
    CommCall call;
    std::uint64_t number = 0;        // of this collective in the group; of an exchange: of the last one before
    std::int64_t elements_to = 0;    // all-to-all: for the rank that gets this header,
    std::int64_t elements_from = 0;  // and expected from it
    Role role = Role::kCollective;
  };
  static constexpr std::int64_t kPayload = 4000;  // with the header, what libraries send at once

  Header header;
  std::array<std::byte, kPayload> payload{};
};

class OwnCommunicator : public Communicator {
 public:
  // The session outlives it. `tag` is the group's on both communicators.
  OwnCommunicator(Session& session, std::string name, std::vector<int> ranks, int rank, int tag);

 protected:
  void do_barrier(const CommCall& call) override;
  void do_broadcast(const CommCall& call, const Tensor& data) override;
  void do_all_reduce(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_reduce_scatter(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_all_gather(const CommCall& call, const Tensor& in, const Tensor& out) override;
  void do_all_to_all(const CommCall& call, const Tensor& in, std::span<const std::int64_t> send_counts,
                     const Tensor& out, std::span<const std::int64_t> receive_counts) override;
  void do_exchange(std::span<const Transfer> sends, std::span<const Transfer> receives) override;

  Session& session() { return session_; }
  int tag() const { return tag_; }
  // "all-reduce sum of 8 fp32, operation 3 of group "dp" (ranks 0, 1)".
  std::string describe(const CommCall& call) const;

 private:
  // Where the payload is cut: piece j is elements [begin(j), begin(j + 1)).
  struct Pieces {
    std::int64_t count = 0;
    std::int64_t ranks = 1;
    std::int64_t element = 1;  // bytes
    std::int64_t begin(std::int64_t j) const { return count / ranks * j + std::min(j, count % ranks); }
    std::int64_t size(std::int64_t j) const { return begin(j + 1) - begin(j); }
    std::int64_t offset(std::int64_t j) const { return begin(j) * element; }
    std::int64_t bytes(std::int64_t j) const { return size(j) * element; }
  };
  using PayloadFor = std::function<std::span<const std::byte>(int peer)>;

  Pieces pieces_of(const Tensor& whole) const { return {whole.numel(), size(), size_of(whole.dtype())}; }
  int world_rank(int peer) const { return ranks()[static_cast<std::size_t>(peer)]; }
  Opening& incoming(int peer) { return (*incoming_)[static_cast<std::size_t>(peer)]; }
  // Calls body(peer) for the others, beginning with the next rank: so not all turn to the same one.
  template <class Body>
  void each_peer(const Body& body) const {
    for (int i = 1; i < size(); ++i) body((rank() + i) % size());
  }

  // Sends everybody the opening with its payload, and returns when all of incoming_ are here and agree.
  void meet(const CommCall& call, const PayloadFor& payload, std::span<const std::int64_t> elements_to = {},
            std::span<const std::int64_t> elements_from = {});
  void compare(const CommCall& call);
  void compare_counts(std::span<const std::int64_t> to, std::span<const std::int64_t> from);
  void wait_for_data(Requests& requests, const CommCall& call);

  // After meet. `out`: this rank's piece.
  void reduce_pieces(const CommCall& call, const std::byte* in, const Pieces& pieces, std::byte* out);
  // `skip`: a rank that needs none; -1: nobody.
  void gather_pieces(const CommCall& call, std::byte* whole, const Pieces& pieces, int skip);
  // Payloads that came with the headers, and `own` as this rank's.
  void reduce_openings(const CommCall& call, const std::byte* own, std::byte* out, std::int64_t count);

  void send_data(Requests& requests, const std::byte* data, std::int64_t bytes, int peer);
  void receive_data(Requests& requests, std::byte* data, std::int64_t bytes, int peer);
  void exchange_with_self(std::span<const Transfer> sends, std::span<const Transfer> receives);
  void exchange_with_peers(std::span<const Transfer> sends, std::span<const Transfer> receives);

  using Openings = std::vector<Opening>;
  Session& session_;
  int tag_;
  std::uint64_t operations_ = 0;
  std::shared_ptr<Openings> outgoing_;  // shared with messages that an error left under way
  std::shared_ptr<Openings> incoming_;
  std::shared_ptr<std::vector<std::byte>> scratch_;
};

}  // namespace meshtrain::mpi

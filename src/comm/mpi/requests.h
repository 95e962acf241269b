// Messages of the MPI library: as many bytes as there are, errors as exceptions, memory that stays.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace meshtrain::mpi {

// Throws CommError with the library's text when `code` is not MPI_SUCCESS.
void check_mpi(int code, const char* call);

// The messages of one step. Peers are ranks of the communicator. Used by one thread.
class Requests {
 public:
  Requests() = default;
  // Takes back what is still open, after an error. What cannot be taken back keeps the memory below alive for
  // good; memory of callers must be left alone until the process ends.
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // No bytes are no message.
  void send(MPI_Comm comm, const void* data, std::int64_t bytes, int peer, int tag);
  void receive(MPI_Comm comm, void* data, std::int64_t bytes, int peer, int tag);
  // What the library carries out by itself.
  void add(MPI_Request request) { append(request, MPI_PROC_NULL, false); }
  // The messages lie in this memory.
  void keep(std::shared_ptr<void> memory) { memory_.push_back(std::move(memory)); }

  // Lets the library work; true when messages were completed.
  bool progress();
  bool done() const { return open_ == 0; }
  // With whom messages are open: ascending, each once.
  std::vector<int> open_peers() const { return peers_where(false); }
  std::vector<int> open_receives() const { return peers_where(true); }

 private:
  struct Peer {
    int rank;
    bool receives;
  };
  void append(MPI_Request request, int peer, bool receives);
  std::vector<int> peers_where(bool receives_only) const;

  std::vector<MPI_Request> requests_;
  std::vector<Peer> peers_;  // of each request
  std::vector<int> completed_;
  std::size_t open_ = 0;
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace meshtrain::mpi

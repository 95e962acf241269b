#include "comm/mpi/requests.h"

#include <algorithm>
#include <array>
#include <string>

#include "comm/communicator.h"

namespace meshtrain::mpi {
namespace {

// Counts of the library are ints; and a wait should see that something moves.
constexpr std::int64_t kLargestMessage = std::int64_t{64} << 20U;

// How often an abandoned message is looked at before it is given up.
constexpr int kLastLooks = 100;

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(
      fmt::format("{} failed: {}", call, std::string(text.data(), static_cast<std::size_t>(length))));
}

void Requests::append(MPI_Request request, int peer, bool receives) {
  requests_.push_back(request);
  peers_.push_back({peer, receives});
  ++open_;
}

void Requests::send(MPI_Comm comm, const void* data, std::int64_t bytes, int peer, int tag) {
  for (std::int64_t at = 0; at < bytes; at += kLargestMessage) {
    MPI_Request request = MPI_REQUEST_NULL;
    const auto length = static_cast<int>(std::min(kLargestMessage, bytes - at));
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + at, length, MPI_BYTE, peer, tag, comm, &request),
              "MPI_Isend");
    append(request, peer, false);
  }
}

void Requests::receive(MPI_Comm comm, void* data, std::int64_t bytes, int peer, int tag) {
  for (std::int64_t at = 0; at < bytes; at += kLargestMessage) {
    MPI_Request request = MPI_REQUEST_NULL;
    const auto length = static_cast<int>(std::min(kLargestMessage, bytes - at));
    check_mpi(MPI_Irecv(static_cast<std::byte*>(data) + at, length, MPI_BYTE, peer, tag, comm, &request),
              "MPI_Irecv");
    append(request, peer, true);
  }
}

bool Requests::progress() {
  if (open_ == 0) return false;
  int completed = 0;
  completed_.resize(requests_.size());
  check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &completed, completed_.data(),
                         MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  if (completed == MPI_UNDEFINED || completed == 0) return false;
  open_ -= static_cast<std::size_t>(completed);
  return true;
}

std::vector<int> Requests::peers_where(bool receives_only) const {
  std::vector<int> result;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL || peers_[i].rank == MPI_PROC_NULL) continue;
    if (!receives_only || peers_[i].receives) result.push_back(peers_[i].rank);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

Requests::~Requests() {
  if (open_ == 0) return;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL && peers_[i].receives) MPI_Cancel(&requests_[i]);
  }
  for (int look = 0; look < kLastLooks; ++look) {
    int all = 0;
    if (MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE) !=
            MPI_SUCCESS ||
        all != 0) {
      break;
    }
  }
  for (const MPI_Request request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    // On purpose never freed: the library may still read or write it.
    static_cast<void>(new std::vector<std::shared_ptr<void>>(std::move(memory_)));  // NOLINT
    return;
  }
}

}  // namespace meshtrain::mpi

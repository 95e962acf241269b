// Ranks that share no parent meet at an abstract Unix socket: no file, gone with rank 0. Rank 0 hands out the
// shared memory when all have come, so that a wrong number or a rank too many is an error for everybody.
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/shm/area.h"
#include "comm/shm/wait.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMagic = 0x6D657368'73686D31;  // "meshshm1"

struct Hello {
  std::uint64_t magic = kMagic;
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
};

// With the descriptor of the shared memory, unless it says what is wrong.
struct Reply {
  std::uint64_t magic = kMagic;
  std::array<char, 496> error{};
};

class Socket {
 public:
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~Socket() {
    if (file_ >= 0) close(file_);
  }
  int file() const { return file_; }

 private:
  int file_;
};

struct Meeting {
  std::string name;
  int rank;
  int ranks;
  std::chrono::milliseconds deadline;
  Clock::time_point end;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw CommError(fmt::format("rank {} of {} at the rendezvous \"{}\": {}", rank, ranks, name,
                                fmt::format(format, std::forward<Args>(args)...)));
  }
  [[noreturn]] void fail_system(const char* what) const { fail("{}: {}", what, std::strerror(errno)); }

  Socket socket() const {
    Socket made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (made.file() < 0) fail_system("no socket");
    return made;
  }
  std::pair<sockaddr_un, socklen_t> address() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string full = "meshtrain/" + name;
    if (full.size() >= sizeof(address.sun_path)) fail("the name is too long");
    std::copy(full.begin(), full.end(), address.sun_path + 1);
    return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size())};
  }
  // False: the time is over.
  bool wait_readable(int file, Clock::time_point until) const {
    pollfd wanted{.fd = file, .events = POLLIN, .revents = 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::min(until, end) - Clock::now());
    return poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1 << 30))) > 0;
  }
};

// Abstract names belong to nobody: another user may listen or knock.
bool is_same_user(int file) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// `shared`: a descriptor to go along; -1: none.
bool send_reply(int file, const Reply& reply, int shared) {
  iovec part{.iov_base = const_cast<Reply*>(&reply), .iov_len = sizeof(reply)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (shared >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &shared, sizeof(int));
  }
  return sendmsg(file, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(reply));
}

// The descriptor that came along, or -1.
int receive_reply(int file, Reply& reply) {
  iovec part{.iov_base = &reply, .iov_len = sizeof(reply)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(file, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof(reply))) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int shared = -1;
  std::memcpy(&shared, CMSG_DATA(header), sizeof(int));
  return shared;
}

// What is wrong with it, if anything.
std::string objection_to(const Hello& hello, const Meeting& meeting, const std::vector<Socket>& guests) {
  if (hello.magic != kMagic) return "somebody else's program came";
  if (hello.ranks != meeting.ranks) {
    return fmt::format("rank {} expects {} ranks, rank 0 expects {}", hello.rank, hello.ranks, meeting.ranks);
  }
  if (hello.rank < 1 || hello.rank >= meeting.ranks) {
    return fmt::format("rank {} came, of {} ranks", hello.rank, meeting.ranks);
  }
  if (guests[static_cast<std::size_t>(hello.rank)].file() >= 0)
    return fmt::format("rank {} came twice", hello.rank);
  return {};
}

std::vector<int> absent_of(const std::vector<Socket>& guests) {
  std::vector<int> absent;
  for (std::size_t rank = 1; rank < guests.size(); ++rank) {
    if (guests[rank].file() < 0) absent.push_back(static_cast<int>(rank));
  }
  return absent;
}

std::shared_ptr<ShmArea> be_host(const Meeting& meeting) {
  auto area = shm::Area::make(meeting.ranks, ShmArea::Ranks::kProcesses);
  std::vector<Socket> guests;
  for (int rank = 0; rank < meeting.ranks; ++rank) guests.emplace_back(-1);
  const Socket listener = meeting.socket();
  const auto [address, length] = meeting.address();
  if (bind(listener.file(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    meeting.fail_system("the name is taken");
  }
  if (listen(listener.file(), meeting.ranks) != 0) meeting.fail_system("nobody can come");
  const auto dismiss = [&](const std::string& why) {
    Reply refusal;
    std::copy_n(why.begin(), std::min(why.size(), refusal.error.size() - 1), refusal.error.begin());
    for (const Socket& guest : guests) {
      if (guest.file() >= 0) send_reply(guest.file(), refusal, -1);
    }
    meeting.fail("{}", why);
  };
  while (!absent_of(guests).empty()) {
    if (!meeting.wait_readable(listener.file(), meeting.end)) {
      dismiss(fmt::format("{} did not come within {:.3g} s", shm::text_of(absent_of(guests)),
                          std::chrono::duration<double>(meeting.deadline).count()));
    }
    Socket guest(accept4(listener.file(), nullptr, nullptr, SOCK_CLOEXEC));
    if (guest.file() < 0 || !is_same_user(guest.file())) continue;
    Hello hello;
    const bool spoke =
        meeting.wait_readable(guest.file(), Clock::now() + std::chrono::seconds(1)) &&
        recv(guest.file(), &hello, sizeof(hello), MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(hello));
    if (!spoke) continue;
    const std::string objection = objection_to(hello, meeting, guests);
    if (!objection.empty()) {
      guests.push_back(std::move(guest));
      dismiss(objection);
    }
    guests[static_cast<std::size_t>(hello.rank)] = std::move(guest);
  }
  for (int rank = 1; rank < meeting.ranks; ++rank) {
    if (!send_reply(guests[static_cast<std::size_t>(rank)].file(), {}, area->file())) {
      area->abort(fmt::format("rank {} went away from the rendezvous", rank));
      meeting.fail("rank {} went away", rank);
    }
  }
  return area;
}

std::shared_ptr<ShmArea> be_guest(const Meeting& meeting) {
  const auto [address, length] = meeting.address();
  Socket connection = meeting.socket();
  while (connect(connection.file(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) meeting.fail_system("cannot come");
    if (Clock::now() >= meeting.end) {
      meeting.fail("rank 0 did not come within {:.3g} s",
                   std::chrono::duration<double>(meeting.deadline).count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    connection = meeting.socket();
  }
  if (!is_same_user(connection.file())) meeting.fail("another user has taken the name");
  const Hello hello{.rank = meeting.rank, .ranks = meeting.ranks};
  if (send(connection.file(), &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) {
    meeting.fail_system("rank 0 went away");
  }
  if (!meeting.wait_readable(connection.file(), meeting.end)) {
    meeting.fail("the other ranks did not come within {:.3g} s",
                 std::chrono::duration<double>(meeting.deadline).count());
  }
  Reply reply;
  const int shared = receive_reply(connection.file(), reply);
  if (shared < 0) meeting.fail("{}", reply.error[0] != '\0' ? reply.error.data() : "rank 0 went away");
  return shm::Area::attach(shared);
}

}  // namespace

std::shared_ptr<ShmArea> ShmArea::rendezvous(const std::string& name, int rank, int ranks,
                                             const WorldOptions& options) {
  const Meeting meeting{.name = name,
                        .rank = rank,
                        .ranks = ranks,
                        .deadline = options.deadline,
                        .end = Clock::now() + options.deadline};
  check(rank >= 0 && rank < ranks, "a rank outside its world");
  return rank == 0 ? be_host(meeting) : be_guest(meeting);
}

}  // namespace meshtrain

#include "launch/rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text_wrap.h"

namespace meshtrain {
namespace {

// What cannot be written is lost: a rank must not fail because nobody listens.
void write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

LineWriter::LineWriter(std::string prefix, int out) : prefix_(std::move(prefix)), out_(out) {}

void LineWriter::add(std::string_view bytes) {
  for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1)) {
    open_.append(bytes.substr(0, end));
    write_line(open_);
    open_.clear();
  }
  open_.append(bytes);
  if (open_.size() >= kLongest) finish();
}

void LineWriter::finish() {
  if (open_.empty()) return;
  write_line(open_);
  open_.clear();
}

void LineWriter::write_line(std::string_view line) {
  const std::size_t columns = terminal_columns(out_);
  std::string text = prefix_;
  text.append(line);
  if (columns > 0) {
    // The rank wrote a message as one line, for it has no terminal.
    if (line.starts_with(kMessagePrefix)) text = wrap(text, columns);
    text.insert(0, kClearLine);
  }
  write_all(out_, text.append("\n"));
}

RankOutput::RankOutput(std::string prefix, int out) : lines_(std::move(prefix), out) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw_user_error("no pipe for the output of a rank: {}. Fewer ranks, or a higher `ulimit -n`, will do.",
                     std::strerror(errno));
  }
  reading_ = ends[0];
  writing_ = ends[1];
  fcntl(reading_, F_SETFL, O_NONBLOCK);
}

RankOutput::~RankOutput() {
  close_end(reading_);
  close_end(writing_);
}

void RankOutput::become_standard_streams() {
  dup2(writing_, STDOUT_FILENO);
  dup2(writing_, STDERR_FILENO);
  close_end(writing_);
  close_end(reading_);
}

void RankOutput::close_writing_end() {
  close_end(writing_);
}

void RankOutput::forward() {
  read_once();
}

void RankOutput::finish() {
  // A pipe holds at most 1 MiB (pipe(7)); whoever goes on writing is not the rank.
  for (int i = 0; i < 16 && read_once(); ++i) {
  }
  lines_.finish();
  close_end(reading_);
}

bool RankOutput::read_once() {
  if (reading_ < 0) return false;
  std::array<char, 1 << 16> bytes;
  const ssize_t count = read(reading_, bytes.data(), bytes.size());
  if (count > 0) lines_.add({bytes.data(), static_cast<std::size_t>(count)});
  if (count == 0) {
    lines_.finish();
    close_end(reading_);
  }
  return count > 0 || (count < 0 && errno == EINTR);
}

void RankOutput::close_end(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

}  // namespace meshtrain

// What a rank writes, as lines "[rank 3] …" among those of others.
#pragma once

#include <string>
#include <string_view>

namespace meshtrain {

// Splits bytes into lines and writes each with its prefix at once, so that lines of several ranks never mix.
class LineWriter {
 public:
  // `out`: a descriptor, not owned. On a terminal, a line that somebody else rewrites there is cleared first,
  // and messages (base/log.h) are wrapped.
  LineWriter(std::string prefix, int out);

  void add(std::string_view bytes);
  // A last line that was left open is written too.
  void finish();

 private:
  void write_line(std::string_view line);

  // What never ends is cut into lines of this length.
  static constexpr std::size_t kLongest = 1 << 16;

  std::string prefix_;
  int out_;
  std::string open_;  // the line that has no end yet
};

// The pipe that a forked rank writes to in place of its standard output and error.
class RankOutput {
 public:
  // Throws UserError when the system has no descriptors left.
  RankOutput(std::string prefix, int out);
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;
  ~RankOutput();

  // In the rank: takes the pipe's end as standard output and error.
  void become_standard_streams();
  // In the supervisor, after the fork.
  void close_writing_end();

  // -1 once all writers have closed it.
  int descriptor() const { return reading_; }
  // Takes what is there, at most one pipe's worth; does not wait.
  void forward();
  // The same when the rank is gone: a last open line too. Processes that it left behind may still hold the
  // pipe.
  void finish();

 private:
  // False when there is nothing more now.
  bool read_once();
  void close_end(int& descriptor);

  LineWriter lines_;
  int reading_ = -1;
  int writing_ = -1;
};

}  // namespace meshtrain

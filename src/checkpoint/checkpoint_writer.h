// Writing checkpoints, all ranks together, so that a kill at any moment leaves the committed ones as they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/file_writer.h"
#include "checkpoint/piece.h"
#include "comm/communicator.h"
#include "device/tensor.h"

namespace meshtrain {

// What a rank writes of a tensor.
struct SavedPiece {
  std::string name;  // of the tensor
  DType dtype = DType::kF32;
  Shape shape;  // of the tensor
  PieceRange range;
  const void* data = nullptr;  // host memory: the elements of the range
  // Where the bytes come from elsewhere: called once, in the order of the lists below, model first; what it
  // gives lasts until the next call.
  std::function<const void*()> fetch = {};

  std::int64_t bytes() const { return range.count * size_of(dtype); }
  std::span<const std::byte> get() const {
    return {static_cast<const std::byte*>(fetch ? fetch() : data), static_cast<std::size_t>(bytes())};
  }
};

// Another file that belongs to a checkpoint.
struct SavedFile {
  std::string path;  // in the checkpoint
  std::string from;  // the file it is a copy of
};

// All ranks' pieces together hold every element of every tensor once. A rank has one piece of a tensor at most.
struct CheckpointContents {
  std::int64_t step = 0;
  std::vector<SavedPiece> model;      // masters of parameters
  std::vector<SavedPiece> optimizer;  // its state
  std::vector<SavedFile> files;       // of rank 0
  nlohmann::json state;               // of rank 0: what else the run needs to go on

  std::int64_t bytes() const;  // of this rank's tensors
};

// Writes the checkpoint `path` and commits it: a collective call of `ranks`; null: of one rank alone. Each rank
// writes files of its own, in parallel; rank 0 makes the folder before and commits it after. What an earlier
// attempt left there is removed first; a committed checkpoint is replaced, and until the new one is committed
// the earlier steps are the newest. A disk that is full or fails on any rank is a RunError on every one that
// names the earlier checkpoints, which are untouched; the directory of the failed attempt is removed.
void write_checkpoint(const std::string& path, const CheckpointContents& contents,
                      Communicator* ranks = nullptr, const WriteHook& hook = {});

// What a writer has written.
struct CheckpointStats {
  std::int64_t saves = 0;
  std::int64_t bytes = 0;      // of the last one, all ranks
  double write_seconds = 0.0;  // of all saves, from the first byte to the commit
  double mean_write_seconds() const { return saves > 0 ? write_seconds / static_cast<double>(saves) : 0.0; }
};

// Writes a run's checkpoints, in the background if asked, at most one at a time, and prunes after each.
// Every rank has one, and calls it in the same order; each is used by one thread.
class CheckpointWriter {
 public:
  struct Options {
    std::string directory;      // exists: prepare_checkpoint_directory()
    std::int64_t keep = 0;      // prune_checkpoints()
    bool async = false;         // write in the background
    std::span<std::byte> copy;  // async: memory for contents.bytes()
    WriteHook hook;             // called by the thread that writes
  };
  // `ranks` is used by no one else and outlives it; null: one rank alone.
  CheckpointWriter(Options options, Communicator* ranks);
  // Waits for a write in the background, whose error is then lost: call flush() before.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Synchronous: committed when it returns. Asynchronous: waits for the write before, takes a copy and
  // returns; the tensors may change at once. An error of the write before is thrown here.
  void write(CheckpointContents contents);
  // Throws what went wrong with a write in the background that has ended. Does not wait.
  void check_in_flight();
  // Everything is committed when it returns; throws what went wrong.
  void flush();
  // Of writes that were waited for.
  const CheckpointStats& stats() const { return stats_; }
  // Earlier checkpoints that could not be removed, each once, with the reason; of writes that were waited for,
  // on rank 0.
  std::vector<std::string> take_unremoved();

 private:
  struct Written {
    std::int64_t bytes = 0;
    double seconds = 0.0;
    std::vector<std::string> unremoved;
  };
  Written write_and_prune(const CheckpointContents& contents) const;
  void count(Written written);

  Options options_;
  Communicator* ranks_;
  CheckpointStats stats_;
  std::set<std::string> known_unremoved_;
  std::vector<std::string> unremoved_;
  std::future<Written> in_flight_;  // last: its destructor waits, while the rest still lives
};

}  // namespace meshtrain

// Writing checkpoints so that a kill at any moment leaves the committed ones as they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/file_writer.h"
#include "device/tensor.h"

namespace meshtrain {

struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  const void* data = nullptr;  // host memory, contiguous
  // Where the bytes come from elsewhere: called once, in the order of the lists below, model first; what it
  // gives lasts until the next call.
  std::function<const void*()> fetch = {};

  std::span<const std::byte> get() const {
    return {static_cast<const std::byte*>(fetch ? fetch() : data), static_cast<std::size_t>(bytes())};
  }
  std::int64_t bytes() const { return shape.numel() * size_of(dtype); }
};

struct CheckpointContents {
  std::int64_t step = 0;
  std::vector<NamedTensor> model;      // names must be unique
  std::vector<NamedTensor> optimizer;  // likewise
  nlohmann::json state;                // what else the run needs to go on
};

// Writes directory/step-NNNNNNNN and commits it. What an earlier attempt at this step left is removed
// first; a committed checkpoint of this step is replaced, and until the new one is committed the earlier
// steps are the newest. A disk that is full or fails is a RunError that names the earlier checkpoints,
// which are untouched; the directory of the failed attempt is removed.
void write_checkpoint(const std::string& directory, const CheckpointContents& contents,
                      const WriteHook& hook = {});

// Removes all committed checkpoints but the newest `keep` (0: keeps all), oldest first, and directories
// older than the newest checkpoint that were never committed.
void prune_checkpoints(const std::string& directory, std::int64_t keep, const WriteHook& hook = {});

// For a run that goes on from `step`, not from the newest: renames the later checkpoints to
// step-NNNNNNNN.superseded, so that they do not pass for this run's. Returns their new paths.
std::vector<std::string> set_aside_checkpoints_after(const std::string& directory, std::int64_t step);

// Writes a run's checkpoints, in the background if asked, at most one at a time, and prunes after each.
// Used by one thread. An error in the background is thrown by the next call.
class CheckpointWriter {
 public:
  // Creates the directory. Throws UserError when that fails or nothing can be written there.
  CheckpointWriter(std::string directory, std::int64_t keep, bool async, WriteHook hook = {});
  // Waits for a write in the background, whose error is then lost: call flush() before.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Synchronous: committed when it returns. Asynchronous: waits for the write before, takes a copy and
  // returns; the tensors may change at once.
  void write(const CheckpointContents& contents);
  // Everything is committed when it returns.
  void flush();

 private:
  void write_and_prune(const CheckpointContents& contents) const;

  std::string directory_;
  std::int64_t keep_ = 0;
  bool async_ = false;
  WriteHook hook_;
  std::vector<std::byte> storage_;  // the copy being written, its memory used again by the next
  std::future<void> in_flight_;     // last: its destructor waits, while the rest still lives
};

}  // namespace meshtrain

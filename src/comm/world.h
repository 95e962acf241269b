// All ranks of a run, and the engine that connects them.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"

namespace meshtrain {

struct WorldOptions {
  // How long an operation may wait for other ranks (comm/waiting_time.h).
  std::chrono::milliseconds deadline{300'000};
};

// One rank's view. The world outlives its communicators and devices. Threads may create groups and
// communicate at the same time.
class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;  // leaves: ranks that wait for this one afterwards get an error

  virtual std::string_view engine() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Ranks on this host, this one included: they share its memory and its cores.
  virtual int local_size() const = 0;

  // Called by all `ranks` (world ranks, in group order, without repetition) with the same name and list, in
  // the same order where groups share members. Waits for the others, under the deadline. Two groups of one
  // name and list are apart.
  virtual std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) = 0;

  // The group of all ranks: called by every rank.
  std::unique_ptr<Communicator> everyone(const std::string& name);

  // The device of this rank. Where the engine has shared memory, blocks of the categories parameters,
  // gradients and communication lie in it: collectives on them need no copies.
  virtual std::unique_ptr<Device> make_device() = 0;

  // Makes every rank that communicates, now or later, throw CommError with this reason. Any thread.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  // This rank's place in the list of a group, in which it must be.
  int place_in(const std::vector<int>& ranks) const;
};

}  // namespace meshtrain

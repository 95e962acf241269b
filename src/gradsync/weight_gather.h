// Whole weights after each rank updated its own part of them: one all-gather a unit, in the background, waited
// for when the unit is used next.
#pragma once

#include <vector>

#include "gradsync/grad_sync.h"
#include "gradsync/tied.h"

namespace meshtrain::gradsync {

class WeightGather {
 public:
  explicit WeightGather(const GradSyncParts& parts)
      : parts_(parts), copies_(parts), tickets_(parts.store.units().size(), 0) {}

  void publish(int unit, Traffic traffic) {
    copies_.pass_on(unit, traffic);
    ticket(unit) = parts_.queue.submit(
        [this, unit, traffic](Stream&) {
          parts_.ranks.all_gather(parts_.store.owned_weights(unit), parts_.store.unit_weights(unit), traffic);
        },
        "gather weights");
  }
  void wait(int unit) { parts_.queue.wait(ticket(unit)); }

 private:
  CommQueue::Ticket& ticket(int unit) { return tickets_[static_cast<std::size_t>(unit)]; }

  GradSyncParts parts_;
  TiedWeights copies_;
  std::vector<CommQueue::Ticket> tickets_;
};

}  // namespace meshtrain::gradsync

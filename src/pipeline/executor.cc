#include "pipeline/executor.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "pipeline/timeline.h"

namespace meshtrain {

class PipelineLink {
 public:
  enum class End : std::uint8_t { kSends, kReceives };

  // `peer`: the other end's place in the group.
  PipelineLink(std::unique_ptr<Communicator> ranks, int peer, End end, Device& device, DType dtype,
               const Shape& shape)
      : ranks_(std::move(ranks)), peer_(peer), queue_(device, /*background=*/true) {
    const int count = end == End::kSends ? kSendBuffers : kReceiveBuffers;
    const std::int64_t bytes = round_up(shape.numel() * size_of(dtype), Device::kAlignment);
    memory_ = device.allocate(count * bytes, MemoryCategory::kCommunication);
    for (int i = 0; i < count; ++i) slots_.push_back({.data = tensor_in(memory_, i * bytes, dtype, shape)});
  }

  // --- Sending. ---
  // Where the next message is to be written.
  Tensor buffer() {
    Slot& slot = slots_[next_ % slots_.size()];
    queue_.wait(slot.ticket);
    return slot.data;
  }
  void send(Traffic traffic) {
    Slot& slot = slots_[next_++ % slots_.size()];
    slot.ticket = queue_.submit(
        [this, data = slot.data, traffic](Stream&) { ranks_->send(data, peer_, traffic); }, "send");
  }

  // --- Receiving. ---
  // So many messages will come.
  void expect(std::int64_t messages) {
    next_ = asked_ = 0;
    left_ = messages;
    for (std::size_t i = 0; i < slots_.size(); ++i) ask();
  }
  // The next message, once it is there.
  Tensor receive() {
    Slot& slot = slots_[next_ % slots_.size()];
    queue_.wait(slot.ticket);
    return slot.data;
  }
  // It was used.
  void used() {
    ++next_;
    ask();
  }

  void settle() { queue_.wait_all(); }
  void set_trace(TraceTrack* own, TraceTrack* compute) {
    queue_.set_trace(own, compute);
    ranks_->set_trace(own);
  }
  const CommStats& sent() const { return ranks_->stats(); }

 private:
  struct Slot {
    Tensor data;
    CommQueue::Ticket ticket = 0;
  };

  void ask() {
    if (left_ == 0) return;
    --left_;
    Slot& slot = slots_[asked_++ % slots_.size()];
    slot.ticket =
        queue_.submit([this, data = slot.data](Stream&) { ranks_->receive(data, peer_, Traffic::kPipeline); },
                      "receive", TraceKind::kWait);
  }

  std::unique_ptr<Communicator> ranks_;
  int peer_;
  Buffer memory_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;   // message to be sent or used
  std::size_t asked_ = 0;  // messages asked for
  std::int64_t left_ = 0;  // and not asked for yet
  CommQueue queue_;        // ends first: its jobs use the others
};

PipelineExecutor::PipelineExecutor(const PipelineShape& pipeline, int stage, World& world,
                                   std::span<const int> ranks, Device& device, DType dtype, const Shape& shape)
    : pipeline_(pipeline), stage_(stage), world_(world) {
  const int stages = pipeline.stages;
  if (stages == 1) {
    check(pipeline.chunks == 1, "one stage has one chunk");
    return;
  }
  // All in the same order on every rank: from stage to stage, and back from the last to the first with chunks.
  for (int from = 0; from < stages; ++from) {
    const int to = (from + 1) % stages;
    if (to == 0 && pipeline.chunks == 1) continue;
    if (stage != from && stage != to) continue;
    const std::vector<int> pair = {ranks[static_cast<std::size_t>(from)], ranks[static_cast<std::size_t>(to)]};
    const auto link = [&](const char* what, PipelineLink::End end) {
      return std::make_unique<PipelineLink>(world.group(fmt::format("{} {}-{}", what, from, to), pair),
                                            stage == from ? 1 : 0, end, device, dtype, shape);
    };
    if (stage == from) {
      activations_out_ = link("pp activations", PipelineLink::End::kSends);
      gradients_in_ = link("pp gradients", PipelineLink::End::kReceives);
    } else {
      activations_in_ = link("pp activations", PipelineLink::End::kReceives);
      gradients_out_ = link("pp gradients", PipelineLink::End::kSends);
    }
  }
}

PipelineExecutor::~PipelineExecutor() = default;

void PipelineExecutor::run(std::span<const PipelineAction> order, PipelineWork& work, Traffic traffic) {
  const auto count = [&](PipelineStep step, auto needs) {
    return std::count_if(order.begin(), order.end(), [&](const PipelineAction& action) {
      return action.step == step && needs(action.chunk);
    });
  };
  const auto has_input = [&](int chunk) { return !is_first(chunk); };
  const auto has_output = [&](int chunk) { return !is_last(chunk); };
  if (activations_in_) activations_in_->expect(count(PipelineStep::kForward, has_input));
  if (gradients_in_) gradients_in_->expect(count(PipelineStep::kBackward, has_output));
  try {
    for (const PipelineAction& action : order) {
      run_action(action, work, traffic);
      if (watch_) watch_(action);
    }
  } catch (const std::exception& error) {
    world_.abort(fmt::format("rank {} failed: {}", world_.rank(), error.what()));
    throw;
  }
}

void PipelineExecutor::run_action(const PipelineAction& action, PipelineWork& work, Traffic traffic) {
  if (action.step == PipelineStep::kBackwardWeight) {
    work.backward_weight(action.chunk, action.micro_batch);
    return;
  }
  const bool forward = action.step == PipelineStep::kForward;
  const bool receives = forward ? !is_first(action.chunk) : !is_last(action.chunk);
  const bool sends = forward ? !is_last(action.chunk) : !is_first(action.chunk);
  PipelineLink* from = receives ? (forward ? activations_in_ : gradients_in_).get() : nullptr;
  PipelineLink* to = sends ? (forward ? activations_out_ : gradients_out_).get() : nullptr;
  const Tensor in = from != nullptr ? from->receive() : Tensor();
  const Tensor out = to != nullptr ? to->buffer() : Tensor();
  if (forward) {
    work.forward(action.chunk, action.micro_batch, in, out);
  } else {
    work.backward(action.chunk, action.micro_batch, in, out);
  }
  if (from != nullptr) from->used();
  if (to != nullptr) to->send(traffic);
}

void PipelineExecutor::settle() {
  for (PipelineLink* link :
       {activations_in_.get(), activations_out_.get(), gradients_in_.get(), gradients_out_.get()}) {
    if (link != nullptr) link->settle();
  }
}

void PipelineExecutor::set_trace(Trace* trace, TraceTrack* compute) {
  const auto show = [&](PipelineLink* link, const char* name) {
    if (link != nullptr) link->set_trace(trace == nullptr ? nullptr : &trace->track(name), compute);
  };
  show(activations_in_.get(), "pp activations in");
  show(activations_out_.get(), "pp activations out");
  show(gradients_in_.get(), "pp gradients in");
  show(gradients_out_.get(), "pp gradients out");
}

CommStats PipelineExecutor::sent_to_next() const {
  return activations_out_ ? activations_out_->sent() : CommStats{};
}

CommStats PipelineExecutor::sent_to_previous() const {
  return gradients_out_ ? gradients_out_->sent() : CommStats{};
}

}  // namespace meshtrain

// A head that shares the embedding's table, under every strategy, on one stage and on two: gradients and
// weights of a model of numbers against sums written down for clarity.
#include "gradsync/tied.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>

#include "base/philox.h"
#include "comm/device_mesh.h"
#include "comm_ranks.h"
#include "gradsync/copy_sum.h"
#include "gradsync/gradsync_testing.h"

namespace meshtrain::gradsync {
namespace {

constexpr int kSteps = 3;

struct Case {
  int zero = 0;
  Reduction reduction = Reduction::kFast;
  int dp = 1;
  int stages = 1;
  std::int64_t micro_steps = 1;
};

std::string to_string(const Case& c) {
  return fmt::format("zero {} {} dp {} stages {} micro-steps {}", c.zero,
                     c.reduction == Reduction::kTree ? "tree" : "fast", c.dp, c.stages, c.micro_steps);
}

// Of a parameter in one micro-batch, "head" being the second use of the table.
float leaf_value(const std::string& name, int step, std::int64_t micro_batch, std::int64_t i) {
  return testing::gradient_value(RandomStream(static_cast<std::uint64_t>(step * 100 + micro_batch), name), i);
}

float weight_value(const std::string& name, int step, std::int64_t i) {
  return leaf_value("weight of " + name, step, 0, i);
}

float sum_in_order(const std::vector<float>& values) {
  float sum = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) sum += values[i];
  return sum;
}

// What grad_sync.h and tied.h say a sum is.
float expected_gradient(const Case& c, const std::string& name, int step, std::int64_t i) {
  const bool tied = name == "table";
  const auto leaf = [&](const std::string& of, std::int64_t t, std::int64_t rank) {
    return leaf_value(of, step, t * c.dp + rank, i);
  };
  if (c.reduction == Reduction::kTree) {
    const auto whole_tree = [&](const std::string& of) {
      std::vector<float> leaves;
      for (std::int64_t t = 0; t < c.micro_steps; ++t) {
        for (int rank = 0; rank < c.dp; ++rank) leaves.push_back(leaf(of, t, rank));
      }
      return testing::tree_sum(leaves);
    };
    return tied ? whole_tree(name) + whole_tree("head") : whole_tree(name);
  }
  const auto of_rank = [&](const std::string& of, int rank) {
    std::vector<float> leaves;
    for (std::int64_t t = 0; t < c.micro_steps; ++t) leaves.push_back(leaf(of, t, rank));
    return sum_in_order(leaves);
  };
  std::vector<float> sums;
  if (c.zero < 2) {
    for (int rank = 0; rank < c.dp; ++rank) {
      sums.push_back(tied ? of_rank(name, rank) + of_rank("head", rank) : of_rank(name, rank));
    }
    return testing::tree_sum(sums);
  }
  for (std::int64_t t = 0; t < c.micro_steps; ++t) {
    std::vector<float> of_ranks;
    for (int rank = 0; rank < c.dp; ++rank) {
      const bool adds_head = tied && t + 1 == c.micro_steps;
      of_ranks.push_back(adds_head ? leaf(name, t, rank) + of_rank("head", rank) : leaf(name, t, rank));
    }
    sums.push_back(testing::tree_sum(of_ranks));
  }
  return sum_in_order(sums);
}

// One rank of a model with an embedding, two blocks and a head on one or two stages.
class Rank {
 public:
  Rank(const Case& c, World& world)
      : case_(c),
        mesh_({{"dp", c.dp}, {"pp", c.stages}}, world.rank(), world.size()),
        first_(mesh_.coordinate("pp") == 0),
        last_(mesh_.coordinate("pp") + 1 == c.stages),
        dp_(mesh_.group(world, {"dp"})),
        device_(world.make_device()),
        stream_(*device_, 1),
        store_(c.dp) {
    if (c.stages > 1) tied_ = world.group("tied", mesh_.ranks_along({"pp"}));
    declare();
    store_.allocate(*device_, {.sharding = sharding_of(c.zero, *dp_)});
    copies_.emplace(*device_, store_, std::vector<Communicator*>{});
    idle_.emplace(*device_, MemoryCategory::kCommunication, "idle", 1 << 12);
    queue_.emplace(*device_, true);
    sync_ = make_grad_sync({.store = store_,
                            .device = *device_,
                            .stream = stream_,
                            .ranks = *dp_,
                            .queue = *queue_,
                            .copies = *copies_,
                            .idle = *idle_,
                            .tied = link()},
                           {.zero = c.zero,
                            .reduction = c.reduction,
                            .micro_steps = c.micro_steps,
                            .bucket_bytes = 600,
                            .transient_bytes = 1 << 16});
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::vector<std::string> run() {
    publish(0);
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<int> acquires;
      for (std::int64_t t = 0; t < case_.micro_steps; ++t) {
        for (int unit = 0; unit < units(); ++unit) acquires.push_back(unit);
      }
      sync_->begin_step(acquires);
      for (std::int64_t t = 0; t < case_.micro_steps; ++t) {
        for (int unit = 0; unit < units(); ++unit) check_weights(unit, step - 1);
        write_gradients(step, t);
      }
      sync_->finish_gradients();
      check_gradients(step);
      publish(step);
    }
    queue_->wait_all();
    check_bytes();
    return failures_;
  }

 private:
  int units() const { return static_cast<int>(store_.units().size()); }

  void declare() {
    ParamRef table;
    const auto declare_embedding = [&](bool copy) {
      store_.begin_unit("embed", copy);
      table = store_.declare({.name = "table", .shape = {13, 5}});
      store_.declare({.name = "positions", .shape = {7}});
    };
    const auto declare_block = [&](const std::string& name) {
      store_.begin_unit(name);
      store_.declare({.name = name + ".w", .shape = {11, 9}});
      store_.declare({.name = name + ".b", .shape = {3}});
    };
    if (first_) declare_embedding(false), declare_block("first");
    if (!last_) return;
    declare_block("second");
    const int head_unit = units();
    store_.begin_unit("norm");
    store_.declare({.name = "norm.w", .shape = {5}});
    if (!first_) declare_embedding(true);
    head_ = store_.tie(table, head_unit);
  }

  TiedLink link() const {
    if (!tied_) return {};
    return {.stages = tied_.get(), .owner_unit = first_ ? 0 : -1, .copy_unit = first_ ? -1 : 2};
  }

  void check_weights(int unit, int step) {
    sync_->acquire(unit);
    for (const Param& param : store_.params()) {
      if (param.unit != unit) continue;
      const Tensor weight = store_.weight(param);
      for (std::int64_t i = 0; i < weight.numel(); ++i) {
        if (weight.data<float>()[i] == weight_value(param.decl.name, step, i)) continue;
        failures_.push_back(fmt::format("step {} weight {} of {}", step, i, param.decl.name));
        break;
      }
    }
    sync_->release(unit);
  }

  static void write(const Tensor& gradient, const std::string& name, int step, std::int64_t micro_batch,
                    bool add) {
    auto* values = gradient.data<float>();
    for (std::int64_t i = 0; i < gradient.numel(); ++i) {
      const float value = leaf_value(name, step, micro_batch, i);
      values[i] = add ? values[i] + value : value;
    }
  }

  // From the head to the embedding, as a backward pass does.
  void write_gradients(int step, std::int64_t t) {
    const std::int64_t micro_batch = t * case_.dp + dp_->rank();
    sync_->begin_backward();
    if (last_) {
      const bool add = sync_->begin_tied_gradients();
      write(head_.gradient(), "head", step, micro_batch, add);
      sync_->end_tied_gradients();
    }
    for (int unit = units() - 1; unit >= 0; --unit) {
      if (store_.units()[static_cast<std::size_t>(unit)].copy) continue;
      const bool add = sync_->begin_gradients(unit);
      for (const Param& param : store_.params()) {
        if (param.unit == unit) write(store_.gradient(param), param.decl.name, step, micro_batch, add);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50 * (mesh_.coordinate("pp") + unit)));
      sync_->end_gradients(unit);
    }
  }

  void check_gradients(int step) {
    for (int unit = 0; unit < units(); ++unit) {
      for (const OwnedSlice& slice : store_.owned_slices(unit)) {
        for (std::int64_t i = 0; i < slice.count; ++i) {
          const float expected = expected_gradient(case_, slice.param->decl.name, step, slice.first + i);
          if (slice.gradient.data<float>()[i] == expected) continue;
          failures_.push_back(fmt::format("step {} gradient {} of {}: {} in place of {}", step, slice.first + i,
                                          slice.param->decl.name, slice.gradient.data<float>()[i], expected));
          break;
        }
      }
    }
  }

  // New weights, of which each rank writes what it owns.
  void publish(int step) {
    for (int unit = 0; unit < units(); ++unit) {
      for (const OwnedSlice& slice : store_.owned_slices(unit)) {
        for (std::int64_t i = 0; i < slice.count; ++i) {
          slice.weight.data<float>()[i] = weight_value(slice.param->decl.name, step, slice.first + i);
        }
      }
      sync_->publish_weights(unit, Traffic::kParameters);
    }
  }

  // Of the embedding: gradients come from the last stage once a step, weights go back.
  void check_bytes() {
    if (!tied_) return;
    const std::int64_t elements = store_.units()[first_ ? 0 : 2].elements;
    const std::int64_t part = elements / case_.dp;
    const CommStats sent = tied_->stats();
    const std::int64_t gradients = case_.reduction == Reduction::kTree ? part : elements;
    const std::int64_t weights = case_.zero > 0 ? part : elements;
    const std::int64_t expected_gradients = first_ ? 0 : kSteps * gradients * 4;
    const std::int64_t expected_weights = first_ ? (kSteps + 1) * weights * 4 : 0;
    if (sent.sent_for(Traffic::kPipeline) != expected_gradients) failures_.emplace_back("bytes of gradients");
    if (sent.sent_for(Traffic::kParameters) != expected_weights) failures_.emplace_back("bytes of weights");
  }

  Case case_;
  DeviceMesh mesh_;
  bool first_;
  bool last_;
  std::unique_ptr<Communicator> dp_;
  std::unique_ptr<Communicator> tied_;
  std::unique_ptr<Device> device_;
  Stream stream_;
  ParamStore store_;
  ParamRef head_;
  std::optional<CopySum> copies_;
  std::optional<Arena> idle_;
  std::unique_ptr<GradSync> sync_;
  std::vector<std::string> failures_;
  std::optional<CommQueue> queue_;  // ends first: its jobs use the others
};

class Tied : public ::testing::TestWithParam<int> {};

TEST_P(Tied, GradientsAndCopiesAreThoseOfOneStage) {
  for (const Reduction reduction : {Reduction::kFast, Reduction::kTree}) {
    for (const int dp : {1, 2, 3}) {
      for (const int stages : {1, 2}) {
        for (const std::int64_t micro_steps : {1, 2, 3}) {
          const Case c = {GetParam(), reduction, dp, stages, micro_steps};
          const auto failures =
              testing::run_threads(dp * stages, {}, [&](World& world) { return Rank(c, world).run(); });
          for (const auto& of_rank : failures) {
            EXPECT_TRUE(of_rank.empty()) << to_string(c) << ": " << of_rank.front();
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, Tied, ::testing::Range(0, 4));

}  // namespace
}  // namespace meshtrain::gradsync

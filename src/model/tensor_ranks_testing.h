// Layers cut between ranks against the same layers whole: every rank is a thread, and what the ranks hold is
// put together by the slices that they declared. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "comm_ranks.h"
#include "model/context.h"
#include "model/rope_table.h"
#include "model/spec.h"
#include "ops/testing.h"
#include "params/param_store.h"

namespace meshtrain::testing {

// Sizes that divide by 2, 3 and 4 where they must, and a vocabulary that does not.
inline ModelSpec small_spec(Architecture arch, std::int64_t kv_heads) {
  return {.arch = arch,
          .layers = 2,
          .hidden = 20,
          .heads = 12,
          .kv_heads = kv_heads,
          .head_dim = 4,
          .ffn_hidden = 60,
          .vocab = 97,
          .context = 24};
}

using Values = std::vector<double>;

// What one rank computed.
struct RankRecord {
  TensorPart part;
  std::map<std::string, Values> rows;  // in the outer layout
  std::map<std::string, Values> same;  // must not differ between ranks
  std::vector<ParamDecl> decls;
  std::vector<Values> gradients;
  CommStats sent;
};

// One rank: its weights, arenas full of NaNs, and random inputs that are slices of the same wholes.
class LayerRank {
 public:
  LayerRank(TensorGroup group, DType compute)
      : tensor(group),
        dtype(compute),
        device(make_cpu_device()),
        stream(*device, 1),
        saved(arena("saved")),
        work(arena("work")),
        kept(arena("kept")) {
    store.begin_unit("unit");
  }

  const TensorPart& part() const { return tensor.part(); }

  // The rotary table of a spec; undefined where it has none.
  Tensor cos_sin(const ModelSpec& spec, std::int64_t positions) {
    if (spec.arch == Architecture::kGpt2) return {};
    const std::vector<float> table = rope_table(spec, positions);
    return hold(ops::testing::HostTensor::of(DType::kF32, {positions, spec.head_dim},
                                             Values(table.begin(), table.end())));
  }

  // After all declarations: memory, weights by name and place in the whole, gradients of NaNs.
  void allocate_parameters(double deviation = 0.2) {
    store.allocate(*device, {.compute = dtype, .gradients = DType::kF32, .sharding = {}});
    const Tensor gradients = store.unit_gradients(0);
    std::memset(gradients.raw(), 0xFF, static_cast<std::size_t>(gradients.bytes()));
    for (const Param& param : store.params()) {
      const RandomStream random(1, param.decl.name);
      const double mean = param.decl.init == Init::kOnes ? 1.0 : 0.0;
      auto* base = static_cast<std::byte*>(store.weight(param).raw());
      for_each_run(param.decl.shape, param.decl.slice, 0, param.numel(), [&](const SliceRun& run) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          const double value = mean + deviation * random.normal(static_cast<std::uint64_t>(run.global + i));
          ops::testing::write_element(base + (run.local + i) * size_of(dtype), dtype, value);
        }
      });
    }
  }

  Context context() { return context(work); }
  Context context(Arena& kept_arena) {
    return {.stream = stream,
            .saved = saved,
            .work = work,
            .kept = kept_arena,
            .recomputed = saved,
            .units = units,
            .tensor = tensor};
  }

  // This rank's rows of a random [tokens, n].
  Tensor rows(const std::string& name, std::int64_t tokens, std::int64_t n) {
    return tensor.own_rows(hold(ops::testing::HostTensor::random(dtype, {tokens, n}, name)));
  }
  Tensor ids(const Values& values) {
    return hold(ops::testing::HostTensor::of(DType::kI32, {static_cast<std::int64_t>(values.size())}, values));
  }
  // NaNs, to be written.
  Tensor result(DType type, const Shape& shape) {
    const Tensor t = hold(ops::testing::HostTensor(type, shape));
    std::memset(t.raw(), 0xFF, static_cast<std::size_t>(t.bytes()));
    return t;
  }
  Tensor result_rows(std::int64_t tokens, std::int64_t n) {
    return result(dtype, {tensor.outer_rows(tokens), n});
  }

  void record_rows(const std::string& name, const Tensor& t) { record.rows[name] = ops::testing::values_of(t); }
  void record_same(const std::string& name, const Tensor& t) { record.same[name] = ops::testing::values_of(t); }
  void record_gradients() {
    record.decls.clear();
    record.gradients.clear();
    for (const Param& param : store.params()) {
      record.decls.push_back(param.decl);
      record.gradients.push_back(ops::testing::values_of(store.gradient(param)));
    }
  }

  TensorGroup tensor;
  DType dtype;
  std::unique_ptr<Device> device;
  Stream stream;
  ParamStore store;
  Arena saved;
  Arena work;
  Arena kept;
  UnitHooks units;
  RankRecord record;

 private:
  Arena arena(const char* name) {
    constexpr std::int64_t kBytes = 8 << 20;
    Arena arena(*device, MemoryCategory::kWorkspace, name, kBytes);
    const Tensor all = arena.allocate(DType::kU8, {kBytes});
    std::memset(all.raw(), 0xFF, static_cast<std::size_t>(kBytes));
    arena.release(0);
    return arena;
  }
  Tensor hold(ops::testing::HostTensor t) { return held_.emplace_back(std::move(t)).tensor(); }

  std::deque<ops::testing::HostTensor> held_;
};

using LayerBody = std::function<void(LayerRank&)>;

// One record a rank. One rank runs alone, without a communicator.
inline std::vector<RankRecord> run_layer(int ranks, bool sequence_parallel, DType dtype,
                                         const LayerBody& body) {
  std::vector<RankRecord> records(static_cast<std::size_t>(ranks));
  if (ranks == 1) {
    LayerRank rank({}, dtype);
    body(rank);
    records[0] = rank.record;
    return records;
  }
  const auto failures = run_threads(ranks, {}, [&](World& world) {
    const std::unique_ptr<Communicator> group = world.everyone("tp");
    const std::unique_ptr<Communicator> background = world.everyone("tp background");
    const std::unique_ptr<Device> device = make_cpu_device();
    CommQueue queue(*device, true);
    LayerRank rank(TensorGroup(*group, *background, queue, sequence_parallel), dtype);
    body(rank);
    queue.wait_all();
    rank.record.part = rank.part();
    rank.record.sent = group->stats() + background->stats();
    records[static_cast<std::size_t>(world.rank())] = rank.record;
    return std::vector<std::string>{};
  });
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
  return records;
}

// The gradient of one parameter, put together. Copies must be declared as such, and where they are not parts of
// a sum have the same bits; padding must be zero; the slices must cover the whole once.
inline Values whole_gradient(const std::vector<RankRecord>& records, std::size_t param) {
  const Shape& whole = records[0].decls[param].whole();
  Values sum(static_cast<std::size_t>(whole.numel()), 0.0);
  std::vector<int> copies(sum.size(), 0);
  std::vector<int> firsts(sum.size(), 0);
  Values seen = sum;
  for (const RankRecord& record : records) {
    const ParamDecl& decl = record.decls[param];
    EXPECT_EQ(decl.whole(), whole) << decl.name;
    EXPECT_EQ(decl.copies.first, record.part.rank % decl.copies.ranks == 0) << decl.name;
    const Values& local = record.gradients[param];
    double inside = 0.0;
    for_each_run(decl.shape, decl.slice, 0, decl.shape.numel(), [&](const SliceRun& run) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        const double value = local[static_cast<std::size_t>(run.local + i)];
        const auto at = static_cast<std::size_t>(run.global + i);
        inside += std::abs(value);
        firsts[at] += decl.copies.first ? 1 : 0;
        if (copies[at]++ > 0 && !decl.copies.partial) {
          EXPECT_EQ(seen[at], value) << decl.name << ' ' << at;
        }
        seen[at] = value;
        if (decl.copies.partial || decl.copies.first) sum[at] += value;
      }
    });
    double all = 0.0;
    for (const double value : local) all += std::abs(value);
    EXPECT_NEAR(all, inside, 1e-9 * inside) << "padding of " << decl.name;
  }
  const int ranks = records[0].decls[param].copies.ranks;
  EXPECT_EQ(copies, std::vector<int>(sum.size(), ranks)) << records[0].decls[param].name;
  EXPECT_EQ(firsts, std::vector<int>(sum.size(), 1)) << records[0].decls[param].name;
  return sum;
}

// Everything that the ranks recorded, by name.
inline std::map<std::string, Values> wholes(const std::vector<RankRecord>& records) {
  std::map<std::string, Values> all = records[0].same;
  for (const auto& [name, values] : records[0].rows) all[name] = values;
  for (std::size_t rank = 1; rank < records.size(); ++rank) {
    EXPECT_TRUE(records[rank].same == records[0].same) << "ranks differ";
    for (const auto& [name, values] : records[rank].rows) {
      if (records[0].part.sequence_parallel) {
        all[name].insert(all[name].end(), values.begin(), values.end());
      } else {
        EXPECT_TRUE(values == all[name]) << "rank " << rank << " differs in " << name;
      }
    }
  }
  for (std::size_t i = 0; i < records[0].decls.size(); ++i) {
    all["gradient of " + records[0].decls[i].name] = whole_gradient(records, i);
  }
  return all;
}

inline double largest(const Values& values) {
  double result = 0.0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

// Relative to the largest value of each tensor. gpt2's key bias changes nothing, so that its gradient is
// rounding alone: it is held against that of the query bias.
inline void expect_equal(const std::map<std::string, Values>& actual,
                         const std::map<std::string, Values>& expected, double tolerance) {
  ASSERT_FALSE(expected.empty());
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    const Values& other = actual.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    std::string scale = name;
    if (name.ends_with("k.bias")) scale.replace(scale.size() - 6, 1, "q");
    double difference = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(values[i]) && std::isfinite(other[i])) << name << ' ' << i;
      difference = std::max(difference, std::abs(values[i] - other[i]));
    }
    EXPECT_LE(difference, tolerance * largest(expected.at(scale))) << name;
  }
}

}  // namespace meshtrain::testing

#include "plan/plan.h"

#include <algorithm>
#include <utility>

#include "model/flops.h"
#include "plan/simulated_rank.h"
#include "train/memory_plan.h"
#include "train/mesh_layout.h"
#include "train/stages.h"

namespace meshtrain {
namespace {

std::int64_t ranks_of_stage(const MeshConfig& mesh) {
  return ranks_of(mesh) / mesh.pp;
}

std::int64_t last_rank_of_stage(const Config& config, std::int64_t stage) {
  return (stage + 1) * ranks_of_stage(config.mesh) - 1;
}

// What a step sends is a part that is the same for every step, and one for each of its micro-batches.
class SentInStep {
 public:
  SentInStep(const Config& config, std::int64_t rank)
      : steps_(pipeline_of(config).micro_batches), one_(with_micro_steps(config, 1), rank) {
    sent_ = one_.assembly().sent();
    along_axes_ = axis_bytes_of(one_.assembly());
    if (steps_ == 1) return;
    const SimulatedRank two(with_micro_steps(config, 2), rank);
    const CommStats more = two.assembly().sent();
    for (std::size_t i = 0; i < kTrafficKinds; ++i) {
      sent_.calls[i] += (more.calls[i] - sent_.calls[i]) * (steps_ - 1);
      sent_.sent[i] += (more.sent[i] - sent_.sent[i]) * (steps_ - 1);
    }
    along_axes_ = along_axes_ + (axis_bytes_of(two.assembly()) - along_axes_) * (steps_ - 1);
  }

  const SimulatedRank& one_micro_step() const { return one_; }
  const CommStats& sent() const { return sent_; }
  const AxisBytes& along_axes() const { return along_axes_; }

 private:
  std::int64_t steps_;
  SimulatedRank one_;
  CommStats sent_;
  AxisBytes along_axes_;
};

// Stages in turn, and what they tell of the whole.
class Planner {
 public:
  explicit Planner(const Config& config) : config_(config), layers_(piece_count(config.mesh)) {}

  void add_stage(std::int64_t stage) {
    const std::int64_t rank = last_rank_of_stage(config_, stage);
    const MemoryPlan memory = memory_of_rank(config_, static_cast<int>(rank));
    const SentInStep step(config_, rank);
    const Assembly& one = step.one_micro_step().assembly();
    StagePlan& plan = plan_.stages.emplace_back();
    plan.rank = {.memory = memory.use, .sent = step.sent(), .along_axes = step.along_axes()};
    if (stage == 0) plan_.checkpoint_copy = memory.checkpoint_copy;
    plan.parameters = one.params.count();
    plan.flops = static_cast<StepFlops>(one.stream.total().flops) *
                 static_cast<StepFlops>(pipeline_of(config_).micro_batches);
    add_pieces(stage, memory, plan);
    for (const SimulatedRank::Action& done : step.one_micro_step().actions()) {
      PiecePlan& piece = plan.pieces[static_cast<std::size_t>(done.action.chunk)];
      piece.flops[static_cast<std::size_t>(done.action.step)] = done.cost.ops.flops;
    }
    add_layers(stage, one.model->profile());
  }

  Plan finish() {
    plan_.ranks_of_stage = ranks_of_stage(config_.mesh);
    for (const std::vector<LayerProfile>& piece : layers_) {
      plan_.layers.insert(plan_.layers.end(), piece.begin(), piece.end());
    }
    const MeshLayout layout(config_);
    for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
      LayerProfile& layer = plan_.layers[i];
      layer.parameters = layout.model().count_of_unit(static_cast<int>(i));
      layer.forward_flops *= config_.mesh.tp;
      layer.backward_flops *= config_.mesh.tp;
    }
    for (const StagePlan& stage : plan_.stages) {
      plan_.step_flops += stage.flops * static_cast<StepFlops>(plan_.ranks_of_stage);
    }
    return std::move(plan_);
  }

 private:
  void add_pieces(std::int64_t stage, const MemoryPlan& memory, StagePlan& plan) const {
    const std::vector<PipelineAction> order =
        schedule_of(config_.mesh).order(pipeline_of(config_), static_cast<int>(stage));
    const std::vector<ModelPiece> pieces = pieces_of_stage(config_, stage);
    const std::int64_t blocks_in_slot = slots_for(order, pieces).blocks_in_slot;
    const SlotBytes& slot = memory.arenas.activations;
    for (const ModelPiece& layers : pieces) {
      std::vector<std::int64_t> own(pieces.size(), 0);
      own[plan.pieces.size()] = 1;
      plan.pieces.push_back(
          {.layers = layers,
           .live = peak_live(order, own),
           .activation_bytes = layers.blocks / blocks_in_slot * slot.blocks + (layers.head ? slot.head : 0)});
    }
    plan.live = peak_live(order);
    plan.split = peak_split(order);
    plan.split_bytes = slot.split;
  }
  // `profile` has the units of the stage's pieces, one piece after the other, then perhaps a copy.
  void add_layers(std::int64_t stage, const std::vector<LayerProfile>& profile) {
    auto next = profile.begin();
    auto piece = static_cast<std::size_t>(stage);
    for (const ModelPiece& layers : pieces_of_stage(config_, stage)) {
      const auto end = next + layers.blocks + (layers.embedding ? 1 : 0) + (layers.head ? 1 : 0);
      layers_[piece].assign(next, end);
      next = end;
      piece += static_cast<std::size_t>(config_.mesh.pp);
    }
  }

  const Config& config_;
  Plan plan_;
  std::vector<std::vector<LayerProfile>> layers_;  // by piece of the model
};

std::int64_t states_of(const MemoryUse& use) {
  return use[MemoryCategory::kParameters] + use[MemoryCategory::kGradients] + use[MemoryCategory::kMaster] +
         use[MemoryCategory::kOptimizer];
}

ZeroPlan plan_zero(const Config& config, int zero) {
  Config other = config;
  other.mesh.zero = zero;
  std::int64_t most_loaded = 0;
  MemoryUse most;
  for (std::int64_t stage = 0; stage < config.mesh.pp; ++stage) {
    const std::int64_t rank = last_rank_of_stage(other, stage);
    const MemoryUse use = memory_of_rank(other, static_cast<int>(rank)).use;
    if (use.total() > most.total()) {
      most = use;
      most_loaded = rank;
    }
  }
  const CommStats sent = SentInStep(other, most_loaded).sent();
  Config narrow = other;
  narrow.precision.gradients = config.precision.compute;
  narrow.reduction = "fast";
  return {.zero = zero,
          .states = states_of(most),
          .states_16_bit_gradients = states_of(memory_of_rank(narrow, static_cast<int>(most_loaded)).use),
          .memory = most.total(),
          .sent = sent.sent_for(Traffic::kGradients) + sent.sent_for(Traffic::kParameters)};
}

}  // namespace

Plan make_plan(const Config& config) {
  Planner planner(config);
  for (std::int64_t stage = 0; stage < config.mesh.pp; ++stage) planner.add_stage(stage);
  Plan plan = planner.finish();
  for (int zero = 0; zero <= 3 && config.mesh.dp > 1; ++zero) {
    plan.zero_stages.push_back(plan_zero(config, zero));
  }
  plan.parameters = parameter_count(config.model);
  plan.model_flops_per_token = model_flops_per_token(config.model, config.data.seq_len);
  plan.tokens_per_step = config.train.global_batch * config.data.seq_len;
  return plan;
}

std::vector<StageLink> stage_links(const Plan& plan) {
  const auto bytes = [&](std::size_t stage, AxisTraffic traffic) {
    return plan.stages[stage].rank.along_axes[traffic];
  };
  std::vector<StageLink> links;
  for (std::size_t from = 0; from < plan.stages.size(); ++from) {
    const std::size_t to = (from + 1) % plan.stages.size();
    const StageLink link = {.from = static_cast<std::int64_t>(from),
                            .to = static_cast<std::int64_t>(to),
                            .activations = bytes(from, AxisTraffic::kNextStage),
                            .gradients = bytes(to, AxisTraffic::kPreviousStage)};
    if (link.activations > 0) links.push_back(link);
  }
  return links;
}

std::int64_t sum_of(const AxisBytes& bytes, std::initializer_list<AxisTraffic> traffic) {
  std::int64_t sum = 0;
  for (const AxisTraffic t : traffic) sum += bytes[t];
  return sum;
}

std::int64_t busiest_stage(const Plan& plan, std::initializer_list<AxisTraffic> traffic) {
  const auto busiest =
      std::max_element(plan.stages.begin(), plan.stages.end(), [&](const StagePlan& a, const StagePlan& b) {
        return sum_of(a.rank.along_axes, traffic) < sum_of(b.rank.along_axes, traffic);
      });
  return busiest - plan.stages.begin();
}

}  // namespace meshtrain

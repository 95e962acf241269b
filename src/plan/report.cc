#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text_table.h"
#include "base/text_wrap.h"
#include "model/flops.h"
#include "plan/plan.h"
#include "telemetry/units.h"

namespace meshtrain {
namespace {

bool same_costs(const LayerProfile& a, const LayerProfile& b) {
  return a.parameters == b.parameters && a.activation_bytes == b.activation_bytes &&
         a.forward_flops == b.forward_flops && a.backward_flops == b.backward_flops;
}

// Layers that cost the same are one row: "layers.0 .. layers.7", or with others between them
// "layers.0 .. layers.30 (28 of them)".
struct LayerRow {
  const LayerProfile* first = nullptr;
  const LayerProfile* last = nullptr;
  std::int64_t count = 0;
  std::string name() const {
    if (count == 1) return first->name;
    const std::string range = fmt::format("{} .. {}", first->name, last->name);
    return last - first + 1 == count ? range : fmt::format("{} ({} of them)", range, count);
  }
};

std::vector<LayerRow> rows_of(const std::vector<LayerProfile>& layers) {
  std::vector<LayerRow> rows;
  for (const LayerProfile& layer : layers) {
    const auto same = std::find_if(rows.begin(), rows.end(),
                                   [&](const LayerRow& row) { return same_costs(*row.first, layer); });
    LayerRow& row = same != rows.end() ? *same : rows.emplace_back(LayerRow{.first = &layer});
    row.last = &layer;
    ++row.count;
  }
  return rows;
}

std::string layer_table(const std::vector<LayerProfile>& layers) {
  TextTable table("layer (a micro-batch)",
                  {{"parameters"}, {"activations"}, {"forward FLOP"}, {"backward FLOP"}});
  for (const LayerRow& row : rows_of(layers)) {
    table.add(row.name(), {fmt::format("{}", row.first->parameters), format_bytes(row.first->activation_bytes),
                           format_flops(row.first->forward_flops), format_flops(row.first->backward_flops)});
  }
  return table.text();
}

// As the field's papers count bytes: GB are 1e9. Small models are told in MB, all of a table in one unit.
std::string decimal_bytes(std::int64_t bytes, bool small) {
  return fmt::format("{:.3f} {}", static_cast<double>(bytes) * (small ? 1e-6 : 1e-9), small ? "MB" : "GB");
}

std::string zero_table(const std::vector<ZeroPlan>& zero_stages, std::int64_t chosen) {
  TextTable table("zero", {{"states a rank"}, {"memory a rank"}, {"sent a step"}});
  std::string narrow;
  constexpr std::int64_t kSmall = 1'000'000'000;
  const bool small = std::all_of(zero_stages.begin(), zero_stages.end(), [](const ZeroPlan& plan) {
    return plan.memory < kSmall && plan.sent < kSmall;
  });
  const auto shown = [small](std::int64_t bytes) { return decimal_bytes(bytes, small); };
  for (const ZeroPlan& plan : zero_stages) {
    table.add(fmt::format("{}{}", plan.zero, plan.zero == chosen ? " *" : ""),
              {shown(plan.states), shown(plan.memory), shown(plan.sent)});
    narrow += fmt::format("{}{}", narrow.empty() ? "" : ", ", shown(plan.states_16_bit_gradients));
  }
  std::string text = table.text();
  text += "States are parameters, gradients, masters and optimizer state; * is what the config asks for.\n";
  if (zero_stages.front().states_16_bit_gradients != zero_stages.front().states) {
    text += fmt::format("With 16-bit gradients (precision.gradients) states would be {}.\n", narrow);
  }
  return text;
}

// --- Stages. ---

// "embed, layers.0 .. layers.7".
std::string layers_text(const ModelPiece& layers) {
  std::vector<std::string> parts;
  if (layers.embedding) parts.emplace_back("embed");
  if (layers.blocks > 0) parts.push_back(fmt::format("layers.{}", layers.first_block));
  if (layers.blocks > 1) parts.back() += fmt::format(" .. {}", layers.first_block + layers.blocks - 1);
  if (layers.head) parts.emplace_back("head");
  return fmt::format("{}", fmt::join(parts, ", "));
}

// "layers.0 .. 3; layers.8 .. 11"; of many pieces "16 layers in 4 pieces, with head".
std::string layers_text(const std::vector<PiecePlan>& pieces) {
  if (pieces.size() > 2) {
    std::int64_t blocks = 0;
    for (const PiecePlan& piece : pieces) blocks += piece.layers.blocks;
    return fmt::format("{} layers in {} pieces{}{}", blocks, pieces.size(),
                       pieces.front().layers.embedding ? ", with embed" : "",
                       pieces.back().layers.head ? ", with head" : "");
  }
  std::vector<std::string> parts;
  for (const PiecePlan& piece : pieces) parts.push_back(layers_text(piece.layers));
  return fmt::format("{}", fmt::join(parts, "; "));
}

bool alike(const StagePlan& a, const StagePlan& b) {
  return a.rank.memory == b.rank.memory && a.parameters == b.parameters && a.flops == b.flops &&
         a.live == b.live;
}

// Neighbours that are alike are one row: "3 .. 6", and their layers from the first to the last.
struct StageRow {
  std::string stages;
  std::string layers;
  const StagePlan* plan = nullptr;
};

std::vector<StageRow> rows_of(const std::vector<StagePlan>& stages) {
  std::vector<StageRow> rows;
  for (std::size_t first = 0; first < stages.size();) {
    std::size_t last = first;
    while (last + 1 < stages.size() && alike(stages[first], stages[last + 1])) ++last;
    StageRow& row = rows.emplace_back(StageRow{.stages = fmt::format("{}", first),
                                               .layers = layers_text(stages[first].pieces),
                                               .plan = &stages[first]});
    if (last > first) {
      row.stages += fmt::format(" .. {}", last);
      const std::string layers = layers_text(stages[last].pieces);
      if (layers != row.layers) row.layers += " to " + layers;
    }
    first = last + 1;
  }
  return rows;
}

// Bytes by category in one unit, so that all fit into a line.
std::string stage_memory(const std::vector<StageRow>& rows) {
  constexpr std::array kHeaders = {"params",      "grads",     "master", "optimizer",
                                   "activations", "workspace", "comm"};
  static_assert(kHeaders.size() == kMemoryCategories);
  std::int64_t most = 0;
  for (const StageRow& row : rows) {
    const auto& bytes = row.plan->rank.memory.bytes;
    most = std::max(most, *std::max_element(bytes.begin(), bytes.end()));
  }
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const std::int64_t unit = most < kGiB ? kGiB / 1024 : kGiB;
  std::vector<TextTable::Column> columns;
  for (const char* header : kHeaders) columns.push_back({header});
  TextTable table("stage", std::move(columns));
  for (const StageRow& row : rows) {
    std::vector<std::string> cells;
    for (const std::int64_t bytes : row.plan->rank.memory.bytes) {
      cells.push_back(fmt::format("{:.3f}", static_cast<double>(bytes) / static_cast<double>(unit)));
    }
    table.add(row.stages, std::move(cells));
  }
  return table.text() + fmt::format("Memory of one rank of the stage in {}; comm: buffers for communication.\n",
                                    unit == kGiB ? "GiB" : "MiB");
}

// Of the ranks of each stage.
std::string stage_tables(const Plan& plan) {
  const std::vector<StageRow> rows = rows_of(plan.stages);
  const auto total = [](const StagePlan& stage) { return stage.rank.memory.total(); };
  const std::int64_t most =
      total(*std::max_element(plan.stages.begin(), plan.stages.end(),
                              [&](const StagePlan& a, const StagePlan& b) { return total(a) < total(b); }));
  TextTable costs("stage",
                  {{"parameters"}, {"live"}, {"FLOP a step"}, {"memory"}, {"layers", TextTable::Align::kLeft}});
  for (const StageRow& row : rows) {
    costs.add(row.stages,
              {fmt::format("{}", row.plan->parameters), fmt::format("{}", row.plan->live),
               format_flops(row.plan->flops),
               format_bytes(total(*row.plan)) + (total(*row.plan) == most ? " *" : "  "), row.layers});
  }
  return costs.text() + "Of one rank; live: micro-batches alive at once, in all its pieces; * needs most.\n\n" +
         stage_memory(rows) + '\n';
}

// --- Bytes sent. ---

struct AxisRow {
  const char* axis;
  const char* what;
  AxisTraffic traffic;
};
constexpr AxisRow kAxisRows[] = {
    {"tp", "sums and gathers within layers", AxisTraffic::kTensorLayers},
    {"tp", "gradients of copied weights", AxisTraffic::kTensorCopies},
    {"pp", "activations to the next stage", AxisTraffic::kNextStage},
    {"pp", "gradients to the stage before", AxisTraffic::kPreviousStage},
    {"pp", "tied table, first and last stage", AxisTraffic::kTiedTable},
    {"dp", "gradients", AxisTraffic::kDataGradients},
    {"dp", "weights", AxisTraffic::kDataParameters},
};

// Whose memory the first table shows.
std::string first_ranks(const Plan& plan) {
  if (plan.stages.size() > 1) return "each rank of stage 0\n";
  return plan.ranks() > 1 ? fmt::format("each of {} ranks\n", plan.ranks()) : "";
}

// A ring's link carries what a rank sends, and the link between two stages what either sends.
std::string sent_table(const Plan& plan) {
  const bool staged = plan.stages.size() > 1;
  std::vector<TextTable::Column> columns = {{"a rank"}, {"on a link"}};
  if (staged) columns.push_back({"most on stage"});
  TextTable table("bytes sent a step", std::move(columns));
  const auto add = [&](const std::string& what, std::int64_t bytes, const std::string& on_link,
                       const std::string& stage) {
    std::vector<std::string> cells = {fmt::format("{}", bytes), on_link};
    if (staged) cells.push_back(stage);
    table.add(what, std::move(cells));
  };
  for (const AxisRow& row : kAxisRows) {
    const std::int64_t stage = busiest_stage(plan, {row.traffic});
    const std::int64_t bytes = plan.stages[static_cast<std::size_t>(stage)].rank.along_axes[row.traffic];
    if (bytes > 0) {
      add(fmt::format("{}  {}", row.axis, row.what), bytes, fmt::format("{}", bytes), fmt::format("{}", stage));
    }
  }
  const std::int64_t control = plan.rank(0).sent.sent_for(Traffic::kControl);
  add("all control values", control, "", "");
  return table.text() + '\n';
}

}  // namespace

std::string to_text(const Plan& plan, const Config& config) {
  std::string text = fmt::format("{} parameters, {} compute, micro-batch {} x {} tokens, recompute {}\n\n",
                                 plan.parameters, name_of(config.precision.compute), config.train.micro_batch,
                                 config.data.seq_len, name_of(config.recompute));
  text += first_ranks(plan) + memory_table(plan.stages.front().rank.memory) + "\n";
  if (plan.checkpoint_copy > 0) {
    text += fmt::format("workspace has {} ({} bytes) for the copy that checkpoints are written from\n",
                        format_bytes(plan.checkpoint_copy), plan.checkpoint_copy);
  }
  text += "\n";
  if (plan.stages.size() > 1) text += stage_tables(plan);
  if (plan.ranks() > 1) text += sent_table(plan);
  if (!plan.zero_stages.empty()) text += zero_table(plan.zero_stages, config.mesh.zero) + "\n";
  text += layer_table(plan.layers);
  text += "The head's forward pass is part of its backward pass, but for the final norm.\n";
  if (config.mesh.tp > 1) {
    text += fmt::format("Parameters and FLOPs are those of all {} tensor-parallel ranks, activations of one.\n",
                        config.mesh.tp);
  }
  text += fmt::format("\none step: {} tokens, {} executed; MFU counts {} a token ({})\n", plan.tokens_per_step,
                      format_flops(plan.step_flops), format_flops(plan.model_flops_per_token), kFlopConvention);
  return wrap(text, TextTable::kWidth);
}

}  // namespace meshtrain

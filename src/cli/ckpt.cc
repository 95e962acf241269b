#include "cli/ckpt.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/digest.h"
#include "cli/commands.h"
#include "telemetry/units.h"
#include "train/checkpointing.h"
#include "train/mesh.h"
#include "train/run_folder.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::json;

struct Arguments {
  std::string path;
  bool json = false;
  bool all = false;  // inspect, digest
};

std::shared_ptr<Arguments> add_checkpoint_argument(CLI::App& command) {
  auto arguments = std::make_shared<Arguments>();
  command
      .add_option("CKPT", arguments->path,
                  "A checkpoint; or a run folder or a folder of checkpoints: the newest")
      ->required();
  command.add_flag("--json", arguments->json, "Print JSON");
  return arguments;
}

// A path need not be UTF-8, and JSON must.
void print(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

// --- inspect ---

Json tensors_of(const Checkpoint& checkpoint) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : checkpoint.manifest().contents.tensors) {
    Json dims = Json::array();
    for (int d = 0; d < tensor.shape.rank(); ++d) dims.push_back(tensor.shape[d]);
    tensors.push_back({{"name", name},
                       {"dtype", safetensors_name(tensor.dtype)},
                       {"shape", std::move(dims)},
                       {"pieces", tensor.pieces.size()}});
  }
  return tensors;
}

std::uint64_t bytes_of(const Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const auto* files : {&checkpoint.manifest().contents.shards, &checkpoint.manifest().files}) {
    for (const auto& [name, file] : *files) bytes += file.bytes;
  }
  return bytes;
}

// The mesh of the run that wrote it; null where no run did.
Json mesh_of(const Config& config) {
  if (config.mesh.dp == 0) return nullptr;
  const MeshConfig& mesh = config.mesh;
  return {{"ranks", ranks_of(mesh)},
          {"dp", mesh.dp},
          {"zero", mesh.zero},
          {"tp", mesh.tp},
          {"sequence_parallel", mesh.sequence_parallel},
          {"pp", mesh.pp},
          {"schedule", mesh.schedule},
          {"virtual_stages", mesh.virtual_stages}};
}

Json inspection(const Checkpoint& checkpoint) {
  Json json = {
      {"checkpoint", checkpoint.path()},        {"step", checkpoint.step()},
      {"bytes", bytes_of(checkpoint)},          {"parameters", parameter_count(config_of(checkpoint).model)},
      {"mesh", mesh_of(config_of(checkpoint))}, {"files", Json::array()},
      {"tensors", tensors_of(checkpoint)},      {"state", checkpoint.state()}};
  json["state"].erase("config");
  if (json["state"].contains("huggingface")) {  // of the folder that it was made of, the files are enough
    Json names = Json::array();
    for (const Json& file : json["state"]["huggingface"]["files"]) names.push_back(file["name"]);
    json["state"]["huggingface"] = std::move(names);
  }
  for (const auto* files : {&checkpoint.manifest().contents.shards, &checkpoint.manifest().files}) {
    for (const auto& [name, file] : *files) json["files"].push_back({{"name", name}, {"bytes", file.bytes}});
  }
  return json;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// The same with spaces between elements, where a line can end.
std::string words_of(const Json& value) {
  if (!value.is_structured()) return text_of(value);
  std::string words;
  for (const auto& [key, element] : value.items()) {
    words += (words.empty() ? "" : ", ") + (value.is_object() ? key + " " : "") + words_of(element);
  }
  return words.empty() ? value.dump() : words;
}

// "model", "optimizer" or "other files", by the name of the file.
std::string part_of(const std::string& file) {
  for (const char* part : {"model", "optimizer"}) {
    if (file.starts_with(part)) return part;
  }
  return "other files";
}

// How much there is of each part.
std::string summary_of(const Checkpoint& checkpoint) {
  struct Part {
    std::int64_t tensors = 0;
    std::int64_t files = 0;
    std::int64_t bytes = 0;
  };
  std::map<std::string, Part> parts;
  for (const auto& [name, tensor] : checkpoint.manifest().contents.tensors) {
    ++parts[part_of(tensor.pieces.front().file)].tensors;
  }
  for (const auto* files : {&checkpoint.manifest().contents.shards, &checkpoint.manifest().files}) {
    for (const auto& [name, file] : *files) {
      Part& part = parts[part_of(name)];
      ++part.files;
      part.bytes += static_cast<std::int64_t>(file.bytes);
    }
  }
  TextTable table("part", {{"tensors"}, {"files"}, {"bytes"}});
  for (const auto& [name, part] : parts) {
    table.add(name, {part.tensors > 0 ? fmt::format("{}", part.tensors) : "", fmt::format("{}", part.files),
                     format_bytes(part.bytes)});
  }
  return table.text();
}

// Every tensor and every file.
std::string list_of(const Json& json) {
  TextTable tensors("tensor",
                    {{"dtype", TextTable::Align::kLeft}, {"pieces"}, {"shape", TextTable::Align::kLeft}});
  for (const Json& tensor : json["tensors"]) {
    tensors.add(text_of(tensor["name"]),
                {text_of(tensor["dtype"]), tensor["pieces"].dump(), tensor["shape"].dump()});
  }
  TextTable files("file", {{"bytes"}});
  for (const Json& file : json["files"]) files.add(text_of(file["name"]), {file["bytes"].dump()});
  return tensors.text() + "\n" + files.text();
}

void print_inspection(const Checkpoint& checkpoint, const Json& json, bool all) {
  print_line(stdout, fmt::format("{}: step {}, {} parameters, {} in {}", text_of(json["checkpoint"]),
                                 json["step"].dump(), json["parameters"].dump(),
                                 format_bytes(json["bytes"].get<std::int64_t>()),
                                 format_count(static_cast<std::int64_t>(json["files"].size()), "file")));
  if (json["mesh"].is_null()) {
    print_line(stdout, "not written by a run");
  } else {
    std::string mesh;
    for (const char* key : {"dp", "zero", "tp", "sequence_parallel", "pp", "schedule", "virtual_stages"}) {
      mesh += fmt::format(" {}={}", key, text_of(json["mesh"][key]));
    }
    print_line(stdout, fmt::format("written by {}:{}",
                                   format_count(json["mesh"]["ranks"].get<std::int64_t>(), "rank"), mesh));
  }
  for (const auto& [key, value] : json["state"].items()) {
    print_line(stdout, fmt::format("{}: {}", key, words_of(value)));
  }
  fmt::print("\n{}", summary_of(checkpoint));
  all ? fmt::print("\n{}", list_of(json)) : print_line(stdout, "--all lists every tensor and every file.");
}

// --- digest ---

Json to_json(const CheckpointDigest& digest) {
  Json json = {{"total", digest.total}, {"state", Json::parse(digest.state)}, {"tensors", Json::object()}};
  for (const TensorDigest& tensor : digest.tensors) json["tensors"][tensor.name] = tensor.hash;
  return json;
}

// --- verify ---

// What is wrong with the checkpoint, all that can be said.
std::vector<std::string> damages_of(const std::string& path) {
  try {
    return Checkpoint(path, Verify::kManifest).damages();
  } catch (const UserError& error) {
    return {error.what()};
  }
}

void verify(const Arguments& arguments) {
  const std::string path = find_checkpoint(arguments.path);
  const std::vector<std::string> damages = damages_of(path);
  if (arguments.json) {
    print({{"checkpoint", path}, {"whole", damages.empty()}, {"damages", damages}});
  } else {
    for (const std::string& damage : damages) print_line(stdout, damage);
  }
  if (!damages.empty()) {
    throw_run_error("{} is damaged, as said above; `train --resume` passes over it to the one before", path);
  }
  if (arguments.json) return;
  const Checkpoint checkpoint(path, Verify::kManifest);
  const std::size_t files = checkpoint.manifest().contents.shards.size() + checkpoint.manifest().files.size();
  print_line(stdout, fmt::format("{} is whole: {} tensors, {} in {}", path,
                                 checkpoint.manifest().contents.tensors.size(),
                                 format_bytes(static_cast<std::int64_t>(bytes_of(checkpoint))),
                                 format_count(static_cast<std::int64_t>(files), "file")));
}

}  // namespace

WriteHook stopping_hook(const std::string& out) {
  return [out](std::string_view /*step*/, std::string_view /*path*/) {
    if (stop_requested()) throw_run_error("interrupted: --out {} has not been written.", out);
  };
}

void add_ckpt_inspect(CLI::App& ckpt) {
  CLI::App* command = ckpt.add_subcommand("inspect", "What a checkpoint holds, and which mesh wrote it");
  const auto arguments = add_checkpoint_argument(*command);
  command->add_flag("--all", arguments->all, "Also list every tensor and every file");
  command->callback([arguments] {
    const Checkpoint checkpoint(find_checkpoint(arguments->path), Verify::kSizes);
    const Json json = inspection(checkpoint);
    arguments->json ? print(json) : print_inspection(checkpoint, json, arguments->all);
  });
}

void add_ckpt_digest(CLI::App& ckpt) {
  CLI::App* command = ckpt.add_subcommand(
      "digest", "One hash of all tensors, the same for every mesh that writes them; of each with --all");
  const auto arguments = add_checkpoint_argument(*command);
  command->add_flag("--all", arguments->all, "Also a line for each tensor, and for the state of the run");
  command->callback([arguments] {
    const CheckpointDigest digest = digest_of(Checkpoint(find_checkpoint(arguments->path), Verify::kSizes));
    if (arguments->json) return print(to_json(digest));
    const std::vector<std::string> lines = to_lines(digest);
    if (!arguments->all) return fmt::print("{}\n", lines.back());
    for (const std::string& line : lines) fmt::print("{}\n", line);
  });
}

void add_ckpt_verify(CLI::App& ckpt) {
  CLI::App* command = ckpt.add_subcommand("verify", "Whether every byte is as it was written");
  const auto arguments = add_checkpoint_argument(*command);
  command->callback([arguments] { verify(*arguments); });
}

void add_ckpt(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("ckpt", "Looks into checkpoints, and carries them to and from Hugging Face");
  command->require_subcommand(1);
  add_ckpt_inspect(*command);
  add_ckpt_digest(*command);
  add_ckpt_verify(*command);
  add_ckpt_import(*command);
  add_ckpt_export(*command);
}

}  // namespace meshtrain::cli

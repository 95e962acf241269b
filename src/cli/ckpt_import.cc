#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/huggingface/exporter.h"
#include "checkpoint/huggingface/folder.h"
#include "checkpoint/partial_folder.h"
#include "cli/ckpt.h"
#include "cli/commands.h"
#include "telemetry/units.h"
#include "train/model_source.h"

namespace meshtrain::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string folder;
  std::string out;
};

// The parameters under our names; each is read when it is written.
std::vector<SavedPiece> tensors_of(const HuggingFaceFolder& folder, std::vector<float>& values) {
  std::vector<SavedPiece> result;
  for (const HfTensor& tensor : hf_tensors(folder.spec(), "")) {
    if (tensor.optional) continue;
    for (const HfTensor::Part& part : tensor.parts) {
      result.push_back({.name = part.name,
                        .shape = part.shape,
                        .range = whole_range(part.shape),
                        .fetch = [&folder, &values, part] {
                          values.resize(static_cast<std::size_t>(part.shape.numel()));
                          folder.read(part.name, part.shape, 0, values);
                          folder.let_go();
                          return static_cast<const void*>(values.data());
                        }});
    }
  }
  return result;
}

// That of a run that would train the model, with the tokenizer that the checkpoint carries.
Config config_in_checkpoint(const std::string& folder) {
  Config config = config_of_folder(folder, {});
  config.from.clear();
  config.data.tokenizer = carried_tokenizer(folder, config.model);
  return config;
}

void run(const Arguments& arguments) {
  if (!is_hf_folder(arguments.folder)) {
    throw_user_error("{} is not a Hugging Face model folder: it has no config.json.", arguments.folder);
  }
  check_new_folder(arguments.out);
  const HuggingFaceFolder folder(arguments.folder);
  (void)hf_token_ids_of_folder(arguments.folder);  // that they can be read
  folder.check_tied_head();
  if (folder.buffers() > 0) {
    notice("omitting {}, which the model does not train: the first is {}",
           format_count(folder.buffers(), "constant"), folder.first_buffer());
  }
  std::vector<float> values;
  CheckpointContents contents;
  contents.step = 0;
  contents.model = tensors_of(folder, values);
  for (const std::string& name : hf_tokenizer_files(arguments.folder)) {
    contents.files.push_back({.path = fmt::format("{}/{}", kTokenizerFolder, name),
                              .from = (fs::path(arguments.folder) / name).string()});
  }
  // No optimizer: a run that goes on from here has a fresh one.
  contents.state = {{"updates", 0},
                    {"position", 0},
                    {"config", to_toml(config_in_checkpoint(arguments.folder))},
                    {"huggingface", to_json(record_of(folder))}};
  PartialFolder out(arguments.out);
  install_stop_handler();
  const WriteHook hook = stopping_hook(arguments.out);
  try {
    write_checkpoint(out.contents().string(), contents, nullptr, hook);
  } catch (const RunError&) {
    hook("", "");  // that it was interrupted says more than where
    throw;
  }
  out.commit();
  print_line(stdout, fmt::format("{}: {} parameters; checkpoint {}", arguments.folder,
                                 parameter_count(folder.spec()), arguments.out));
}

}  // namespace

void add_ckpt_import(CLI::App& ckpt) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = ckpt.add_subcommand("import", "Makes a checkpoint of a Hugging Face model folder");
  command->add_option("FOLDER", arguments->folder, "Hugging Face folder: config.json and safetensors")
      ->required();
  command->add_option("--out", arguments->out, "Checkpoint folder to write")->required();
  command->callback([arguments] { run(*arguments); });
}

}  // namespace meshtrain::cli

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "data/token_source.h"
#include "data/tokenizer.h"
#include "train/evaluation.h"
#include "train/inference.h"
#include "train/threads.h"
#include "train/vocabulary.h"

namespace meshtrain::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string data;
  std::optional<std::int64_t> tokens;
  bool json = false;
};

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nullptr;
}

void run(const Arguments& arguments) {
  const TrainedModel trained = open_model(arguments.model);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(trained.config.data.tokenizer);
  const Config config = with_vocabulary(trained.config, *tokenizer);
  const std::string path = arguments.data.empty() ? config.data.valid : arguments.data;
  if (path.empty()) {
    throw_user_error("eval has no data: the config sets no data.valid; pass --data PATH");
  }
  const std::unique_ptr<TokenSource> source = open_token_source(path, tokenizer.get());
  check_vocabulary(*source, config.model.vocab);
  const BatchSampler sampler(*source,
                             {.seq_len = config.data.seq_len, .shuffle = false, .vocab = config.model.vocab});

  const EvaluationData data = {.sampler = sampler,
                               .tokenizer = *tokenizer,
                               .micro_batch = config.train.micro_batch,
                               .tokens = arguments.tokens.value_or(config.train.eval_tokens)};
  InferenceModel model(config.model, config.precision.compute,
                       {.largest = {.batch = data.micro_batch, .seq = config.data.seq_len}},
                       resolve_threads(config.machine.threads));
  load_weights_of(trained, config.model, model);
  install_stop_handler();
  const Evaluation result = evaluate(
      data, [&](const HostBatch& batch) { return model.evaluate(batch); }, stop_requested);
  if (result.interrupted) throw_run_error("interrupted before the evaluation was complete");

  const std::int64_t tokens_in_data = sampler.samples_per_epoch() * sampler.seq_len();
  if (arguments.json) {
    const nlohmann::json json = {{"checkpoint", trained.weights->path()},
                                 {"step", trained.step()},
                                 {"data", path},
                                 {"tokens", result.tokens},
                                 {"tokens_in_data", tokens_in_data},
                                 {"bytes", result.bytes},
                                 {"nats_per_token", number_or_null(result.nats_per_token)},
                                 {"bits_per_byte", number_or_null(result.bits_per_byte)}};
    fmt::print("{}\n", json.dump(2));
    return;
  }
  const std::string part = result.tokens < tokens_in_data
                               ? fmt::format("the first {} of {}", result.tokens, tokens_in_data)
                               : fmt::format("{}", result.tokens);
  fmt::print("{} (step {}) on {}: {} tokens, {:.4f} nats/token, {}\n", trained.weights->path(), trained.step(),
             path, part, result.nats_per_token,
             std::isfinite(result.bits_per_byte) ? fmt::format("{:.4f} bits/byte", result.bits_per_byte)
                                                 : "bits/byte n/a");
}

}  // namespace

void add_eval(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("eval", "Loss of a trained model over a validation set");
  add_model_arguments(*command, arguments->model);
  command->add_option("--data", arguments->data, "Instead of the config's data.valid");
  command
      ->add_option("--tokens", arguments->tokens,
                   "Tokens to evaluate, from the start of the data, instead of the config's train.eval_tokens; "
                   "0: all")
      ->check(whole_number(0));
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace meshtrain::cli

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "data/tokenizer.h"
#include "train/generation.h"
#include "train/threads.h"
#include "train/vocabulary.h"

namespace meshtrain::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string prompt;
  std::int64_t tokens = 200;
  SamplingOptions sampling;
};

// Prints tokens as soon as their bytes are whole characters.
class TextPrinter {
 public:
  explicit TextPrinter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(std::int32_t token) {
    pending_.push_back(token);
    const std::string text = tokenizer_.decode(pending_);
    // Four tokens without a whole character: these bytes are no text, print them as they are.
    if (!ends_in_whole_character(text) && pending_.size() < 4) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    pending_.clear();
  }

 private:
  static bool ends_in_whole_character(const std::string& text) {
    for (std::size_t back = 1; back <= 4 && back <= text.size(); ++back) {
      const auto byte = static_cast<unsigned char>(text[text.size() - back]);
      if (byte < 0x80U) return true;
      if (byte >= 0xC0U) return back == (byte >= 0xF0U ? 4U : byte >= 0xE0U ? 3U : 2U);
    }
    return text.empty();
  }

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> pending_;
};

void run(const Arguments& arguments) {
  validate(arguments.sampling);
  const TrainedModel trained = open_model(arguments.model);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(trained.config.data.tokenizer);
  const Config config = with_vocabulary(trained.config, *tokenizer);
  std::vector<std::int32_t> prompt = tokenizer->encode(arguments.prompt);
  // Nothing said: start a document.
  if (prompt.empty()) prompt.push_back(tokenizer->require_end_of_document());

  // A sequence as long as in training: beyond it the model has seen no position.
  const std::int64_t window = config.data.seq_len;
  InferenceModel model(config.model, config.precision.compute,
                       {.largest = {.batch = 1, .seq = window}, .cache_positions = window},
                       resolve_threads(config.machine.threads));
  load_weights_of(trained, config.model, model);

  SamplingOptions sampling = arguments.sampling;
  sampling.vocab = tokenizer->vocab_size();

  install_stop_handler();
  std::fwrite(arguments.prompt.data(), 1, arguments.prompt.size(), stdout);
  TextPrinter printer(*tokenizer);
  const std::optional<std::int32_t> end = tokenizer->end_of_document();
  generate(model, prompt, arguments.tokens, sampling, [&](std::int32_t token) {
    if (token == end || stop_requested()) return false;
    printer.add(token);
    return true;
  });
  std::fputc('\n', stdout);
}

}  // namespace

void add_generate(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "Continues a text with a trained model");
  add_model_arguments(*command, arguments->model);
  command->add_option("--prompt", arguments->prompt, "Text to continue");
  command->add_option("--tokens", arguments->tokens, "Generate at most this many tokens")
      ->check(whole_number(0))
      ->capture_default_str();
  command->add_option("--temperature", arguments->sampling.temperature, "0: always the likeliest token")
      ->capture_default_str();
  command->add_option("--top-k", arguments->sampling.top_k, "Among the k likeliest tokens; 0: all")
      ->check(whole_number(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", arguments->sampling.top_p,
                   "Sample among the most likely tokens whose probabilities add up to this")
      ->capture_default_str();
  command->add_option("--seed", arguments->sampling.seed, "Same seed, same text")
      ->check(whole_number(0))
      ->capture_default_str();
  command->callback([arguments] { run(*arguments); });
}

}  // namespace meshtrain::cli

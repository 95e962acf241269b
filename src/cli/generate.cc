#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "data/text_stream.h"
#include "data/tokenizer.h"
#include "data/unicode.h"
#include "train/generation.h"
#include "train/threads.h"
#include "train/vocabulary.h"

namespace meshtrain::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::optional<std::string> prompt;
  std::int64_t tokens = 200;
  SamplingOptions sampling;
};

constexpr std::size_t kLongestPrompt = std::size_t{64} << 20U;  // a device may have no end

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// All that standard input holds, without the line feed at its end.
std::string read_standard_input() {
  std::string text;
  std::array<char, 1U << 16U> block{};
  for (ssize_t count = 0; (count = read(STDIN_FILENO, block.data(), block.size())) != 0;) {
    if (text.size() > kLongestPrompt) {
      throw_user_error("the prompt on standard input is longer than {} bytes; give a shorter one",
                       kLongestPrompt);
    }
    if (count > 0) {
      text.append(block.data(), static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw_user_error("the prompt cannot be read from standard input: {}",
                       std::generic_category().message(errno));
    }
  }
  if (text.ends_with("\r\n")) {
    text.resize(text.size() - 2);
  } else if (text.ends_with('\n')) {
    text.pop_back();
  }
  return text;
}

std::string prompt_of(const Arguments& arguments) {
  const bool piped = !arguments.prompt && isatty(STDIN_FILENO) == 0;
  std::string prompt =
      piped || arguments.prompt == "-" ? read_standard_input() : arguments.prompt.value_or(std::string());
  const std::size_t whole = well_formed_until(prompt);
  if (whole < prompt.size()) {
    throw_user_error("the prompt is not valid UTF-8: byte 0x{:02X} at position {} belongs to no character",
                     static_cast<unsigned char>(prompt[whole]), whole);
  }
  return prompt;
}

void report(const GenerationTimes& times) {
  if (times.tokens == 0) return;
  const auto rate = [](std::int64_t tokens, double seconds) {
    const double speed = static_cast<double>(tokens) / std::max(seconds, 1e-9);
    return speed < 100.0 ? fmt::format("{:.3g} tokens/s", speed) : fmt::format("{:.0f} tokens/s", speed);
  };
  notice("prompt: {} tokens, {}; generation: {} tokens{}", times.prompt_tokens,
         rate(times.prompt_tokens, times.prompt_seconds), times.tokens,
         times.tokens > 1 ? ", " + rate(times.tokens - 1, times.seconds) : "");
}

void run(const Arguments& arguments) {
  validate(arguments.sampling);
  const std::string text = prompt_of(arguments);
  const TrainedModel trained = open_model(arguments.model);
  const std::vector<std::int64_t> stop_ids = trained.stop_ids();
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(trained.config.data.tokenizer);
  const Config config = with_vocabulary(trained.config, *tokenizer);
  std::vector<std::int32_t> prompt = tokenizer->encode(text);
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
  print(text);
  TextStream stream(*tokenizer, prompt);
  const std::optional<std::int32_t> end = tokenizer->end_of_document();
  const GenerationTimes times = generate(model, prompt, arguments.tokens, sampling, [&](std::int32_t token) {
    if (stop_requested()) return false;
    // One that is a mark has no text; the library shows any other.
    const bool stops = std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end();
    if (stops || token != end) print(stream.add(token));
    return !stops && token != end;
  });
  print(stream.finish() + "\n");
  report(times);
}

}  // namespace

void add_generate(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "generate",
      "Continues a text with a trained model, up to an end-of-text token; special tokens are not shown");
  add_model_arguments(*command, arguments->model);
  command->add_option("--prompt", arguments->prompt,
                      "Text to continue. \"-\", or none and no terminal: standard input");
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

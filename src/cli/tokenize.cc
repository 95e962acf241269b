#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/paths.h"
#include "data/corpus.h"
#include "data/output_file.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tokenize_corpus.h"
#include "data/tokenizer.h"
#include "data/tokenizer_name.h"
#include "telemetry/units.h"

namespace meshtrain::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct TokenizeArguments {
  std::vector<std::string> inputs;
  std::string out;
  std::string tokenizer;
  std::string eod;
  bool has_out = false;
  bool train = false;
  std::string train_prefix;  // may be left out
  std::string train_type = "bpe";
  std::int64_t vocab = 0;
  int threads = 0;
  std::string text_field = "text";
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One line on stderr that is written over on a terminal, or a new one now and then.
class Progress {
 public:
  void operator()(const CorpusStats& stats, std::int64_t total_bytes) {
    const double now = seconds_since(start_);
    if (now < next_) return;
    next_ = now + (columns_ > 0 ? 0.2 : 10.0);
    const double megabytes = static_cast<double>(stats.input_bytes) / 1e6;
    const std::string of =
        total_bytes > 0 ? fmt::format(" of {:.0f}", static_cast<double>(total_bytes) / 1e6) : "";
    std::string line = fmt::format("{:.0f}{} MB, {}, {} tokens, {:.1f} MB/s", megabytes, of,
                                   format_count(stats.documents, "document"), stats.tokens, megabytes / now);
    // A line that wraps is not written over; the last column stays free.
    if (columns_ > 0) line.resize(std::min(line.size(), std::max<std::size_t>(columns_, 2) - 1));
    line = columns_ > 0 ? std::string(kClearLine) + line : line + "\n";
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
    shown_ = true;
  }
  void clear() {
    if (columns_ > 0 && shown_) std::fwrite(kClearLine.data(), 1, kClearLine.size(), stderr);
  }
  double seconds() const { return seconds_since(start_); }

 private:
  Clock::time_point start_ = Clock::now();
  std::size_t columns_ = terminal_columns(STDERR_FILENO);
  bool shown_ = false;
  double next_ = columns_ > 0 ? 0.5 : 5.0;
};

// The model file to be trained: the one that --tokenizer names, or MODEL_PREFIX.model, or OUT.model.
std::string model_to_train(const TokenizeArguments& a) {
  if (a.tokenizer.empty()) return (a.train_prefix.empty() ? a.out : a.train_prefix) + ".model";
  const std::optional<TokenizerName> name = parse_tokenizer_name(a.tokenizer);
  const std::string path = name ? name->path : "";
  if (!name || name->kind != TokenizerKind::kSentencePiece || path.empty() ||
      (!a.train_prefix.empty() && a.train_prefix + ".model" != path)) {
    throw_user_error(
        "tokenize: --tokenizer {} is not the model that --train-sentencepiece trains; leave one of "
        "them out, "
        "or train FILE with --tokenizer sentencepiece:FILE --train-sentencepiece --vocab N.",
        a.tokenizer);
  }
  return path;
}

void check_arguments(const TokenizeArguments& a) {
  if (a.has_out) check_output_prefix("--out", a.out);
  if (!a.train_prefix.empty())
    check_names_file("--train-sentencepiece", a.train_prefix, "name the prefix of the model's file",
                     "tokenizer");
  if (a.out.empty() && (!a.train || (a.train_prefix.empty() && a.tokenizer.empty()))) {
    throw_user_error(
        "tokenize: nothing to do. Give --out PREFIX for the tokens, or --train-sentencepiece "
        "MODEL_PREFIX.");
  }
  if (a.out.ends_with(".bin") || a.out.ends_with(".idx")) {
    throw_user_error(
        "tokenize --out {0}: --out takes the prefix of the two files; write --out {1} for "
        "{1}.bin and {1}.idx.",
        a.out, a.out.substr(0, a.out.size() - 4));
  }
  if (!a.train && a.tokenizer.empty()) {
    throw_user_error(
        "tokenize: no tokenizer. Give --tokenizer bytes, sentencepiece:FILE or a Hugging Face "
        "tokenizer.json, or train one with --train-sentencepiece MODEL_PREFIX --vocab N.");
  }
  if (a.train != (a.vocab != 0)) {
    throw_user_error("tokenize: --train-sentencepiece and --vocab N go together.");
  }
  // 3 special pieces and 256 bytes come before the first learned one.
  if (a.train && a.vocab < 260) {
    throw_user_error("tokenize --vocab {}: a vocabulary with all bytes takes at least 260.", a.vocab);
  }
}

// Returns the specification of the trained tokenizer.
std::string train(const TokenizeArguments& a) {
  const std::string path = model_to_train(a);
  OutputFile file(path);
  for (const std::string& input : a.inputs) {
    if (std::filesystem::exists(input) && !std::filesystem::is_regular_file(input)) {
      throw_user_error(
          "tokenize --train-sentencepiece: the input \"{}\" is not a file but a pipe or folder; "
          "training reads its input more than once.",
          input);
    }
  }
  SentencePieceTraining options;
  options.vocab = a.vocab;
  options.type = a.train_type;
  options.threads = a.threads > 0 ? a.threads : static_cast<int>(available_cores().size());
  const auto open_lines = [&]() -> LineSource {
    auto lines = std::make_shared<CorpusLines>(a.inputs, a.text_field);
    return [lines](std::string& line) { return lines->next(line); };
  };
  const std::string model = train_sentencepiece(open_lines, options, fmt::format("\"{}\"", a.inputs.front()));
  file.write(std::as_bytes(std::span(model)));
  file.finish();
  file.commit();
  print_line(stdout, fmt::format("{}: SentencePiece {}, vocabulary {}", path, a.train_type, a.vocab));
  return to_string({TokenizerKind::kSentencePiece, path});
}

void run(TokenizeArguments a) {
  check_arguments(a);
  if (a.train) a.tokenizer = train(a);
  if (a.out.empty()) return;
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(a.tokenizer, a.eod);
  CorpusOptions options;
  options.text_field = a.text_field;
  options.threads = a.threads;
  Progress progress;
  const CorpusStats stats =
      tokenize_to_files(a.inputs, *tokenizer, options, a.out,
                        [&](const CorpusStats& s, std::int64_t total_bytes) { progress(s, total_bytes); });
  progress.clear();
  const double seconds = progress.seconds();
  if (stats.malformed_lines > 0) notice("{}", malformed_report(stats));
  if (stats.empty_documents > 0) {
    notice("{} skipped", format_count(stats.empty_documents, "empty document"));
  }
  const std::string line =
      fmt::format("{}: {}, {} tokens, {:.3f} bytes/token, vocabulary {}, {}, {:.1f} MB/s", a.out,
                  format_count(stats.documents, "document"), stats.tokens,
                  static_cast<double>(stats.text_bytes) / static_cast<double>(stats.tokens),
                  tokenizer->vocab_size(), name_of(token_type_for(tokenizer->vocab_size())),
                  static_cast<double>(stats.input_bytes) / 1e6 / std::max(seconds, 1e-9));
  print_line(stdout, line);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = app.add_subcommand("tokenize", "Turns text into token files (Megatron's .bin and .idx)");
  command->footer(
      "A text file is one document, and so is each line of a .jsonl file. One end-of-document token follows "
      "each "
      "document.");
  command->add_option("IN", arguments->inputs, "Text or .jsonl files")->required();
  const CLI::Option* out =
      command->add_option("--out", arguments->out, "Write PREFIX.bin and PREFIX.idx")->type_name("PREFIX");
  command->add_option("--tokenizer", arguments->tokenizer,
                      "bytes, sentencepiece:FILE, or a Hugging Face tokenizer.json");
  command->add_option("--eod", arguments->eod,
                      "The token that ends a document, where the tokenizer has none of the usual ones");
  CLI::Option* train =
      command
          ->add_option("--train-sentencepiece", arguments->train_prefix,
                       "Train MODEL_PREFIX.model on the input first, and use it; without a value, the FILE of "
                       "--tokenizer sentencepiece:FILE, or OUT.model")
          ->type_name("[MODEL_PREFIX]")
          ->expected(0, 1);
  command->add_option("--vocab", arguments->vocab, "Vocabulary size of the trained model")
      ->check(whole_number(1));
  command->add_option("--model-type", arguments->train_type, "Algorithm of the trained model")
      ->check(CLI::IsMember({"bpe", "unigram"}))
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "Default: all cores")->check(whole_number(1));
  command->add_option("--text-field", arguments->text_field, "Field of a .jsonl line that holds the text")
      ->capture_default_str();
  command->callback([arguments, out, train] {
    arguments->has_out = out->count() > 0;
    arguments->train = train->count() > 0;
    run(*arguments);
  });
}

}  // namespace meshtrain::cli

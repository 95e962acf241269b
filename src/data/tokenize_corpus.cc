#include "data/tokenize_corpus.h"

#include <algorithm>
#include <memory>

#include "base/cores.h"
#include "base/error.h"
#include "data/corpus.h"
#include "data/indexed_dataset_writer.h"
#include "data/ordered_parallel.h"

namespace meshtrain {
namespace {

constexpr std::size_t kReported = 5;

struct Malformed {
  std::int64_t line;  // from the start of the chunk, from 1
  std::string reason;
};

struct Encoded {
  const std::string* path = nullptr;
  CorpusKind kind = CorpusKind::kText;
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> ends;
  CorpusStats stats;
  std::int64_t lines = 0;  // of the chunk, blank ones too
  std::vector<Malformed> malformed;
};

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// One thread's.
class ChunkEncoder {
 public:
  ChunkEncoder(const Tokenizer& tokenizer, const CorpusOptions& options)
      : encoder_(tokenizer.encoder()), end_(tokenizer.require_end_of_document()), options_(options) {}

  Encoded operator()(const CorpusChunk& chunk) {
    Encoded out;
    out.path = chunk.path;
    out.kind = chunk.kind;
    out.stats.input_bytes = static_cast<std::int64_t>(chunk.text.size());
    if (chunk.kind == CorpusKind::kJsonLines) {
      json_lines(chunk.text, out);
    } else {
      encoder_->encode(chunk.text, out.ids);
      out.stats.text_bytes = out.stats.input_bytes;
      // The collector, which sees all chunks, knows whether the document is empty.
      if (chunk.ends_document) out.ends.push_back(std::ssize(out.ids));
    }
    return out;
  }

 private:
  void json_lines(std::string_view text, Encoded& out) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t feed = std::min(text.find('\n', at), text.size() - 1);
      const std::string_view line = text.substr(at, feed + 1 - at);
      at = feed + 1;
      ++out.lines;
      if (is_blank(line)) continue;
      ++out.stats.json_lines;
      std::string reason;
      const auto document = json_line_text(line, options_.text_field, reason);
      if (!document) {
        ++out.stats.malformed_lines;
        if (out.malformed.size() < kReported) out.malformed.push_back({out.lines, reason});
      } else if (document->empty()) {
        ++out.stats.empty_documents;
      } else {
        encoder_->encode(*document, out.ids);
        out.stats.text_bytes += static_cast<std::int64_t>(document->size());
        out.ids.push_back(end_);
        out.ends.push_back(std::ssize(out.ids));
      }
    }
  }

  std::unique_ptr<Encoder> encoder_;
  std::int32_t end_;
  const CorpusOptions& options_;
};

// Sees the chunks in order.
class Collector {
 public:
  Collector(const IdSink& sink, std::int32_t end) : sink_(sink), end_(end) {}

  void add(Encoded chunk) {
    if (chunk.path != path_) {
      path_ = chunk.path;
      line_ = 0;
    }
    for (const Malformed& m : chunk.malformed) {
      if (stats_.malformed.size() < kReported) {
        stats_.malformed.push_back(fmt::format("{}:{}: {}", *chunk.path, line_ + m.line, m.reason));
      }
    }
    line_ += chunk.lines;
    if (chunk.kind == CorpusKind::kText) text_chunk(chunk);
    stats_.documents += std::ssize(chunk.ends);
    stats_.empty_documents += chunk.stats.empty_documents;
    stats_.tokens += std::ssize(chunk.ids);
    stats_.text_bytes += chunk.stats.text_bytes;
    stats_.input_bytes += chunk.stats.input_bytes;
    stats_.json_lines += chunk.stats.json_lines;
    stats_.malformed_lines += chunk.stats.malformed_lines;
    if (!chunk.ids.empty()) sink_(chunk.ids, chunk.ends);
  }

  const CorpusStats& stats() const { return stats_; }

 private:
  // A text file's document ends with its last chunk, unless it is empty.
  void text_chunk(Encoded& chunk) {
    open_ = open_ || chunk.stats.text_bytes > 0;
    if (chunk.ends.empty()) return;
    if (open_) {
      chunk.ids.push_back(end_);
      chunk.ends = {std::ssize(chunk.ids)};
    } else {
      chunk.ends.clear();
      ++stats_.empty_documents;
    }
    open_ = false;
  }

  const IdSink& sink_;
  std::int32_t end_;
  const std::string* path_ = nullptr;
  std::int64_t line_ = 0;
  bool open_ = false;  // the text file being read has given something
  CorpusStats stats_;
};

}  // namespace

CorpusStats tokenize_corpus(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                            const CorpusOptions& options, const IdSink& sink, const CorpusProgress& progress) {
  const std::int32_t end = tokenizer.require_end_of_document();
  CorpusReader reader(inputs, options.chunk_bytes);
  Collector collector(sink, end);
  ordered_parallel<Encoded>(
      options.threads > 0 ? options.threads : static_cast<int>(available_cores().size()),
      [&] { return reader.next(tokenizer); }, [&] { return ChunkEncoder(tokenizer, options); },
      [&](Encoded chunk) {
        collector.add(std::move(chunk));
        if (progress) progress(collector.stats(), reader.total_bytes());
      });
  return collector.stats();
}

CorpusStats tokenize_to_files(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                              const CorpusOptions& options, const std::string& prefix,
                              const CorpusProgress& progress) {
  (void)tokenizer.require_end_of_document();
  IndexedDatasetWriter writer(prefix, tokenizer.vocab_size());
  CorpusStats stats = tokenize_corpus(
      inputs, tokenizer, options,
      [&](std::span<const std::int32_t> ids, std::span<const std::int64_t> ends) {
        std::int64_t done = 0;
        for (const std::int64_t end : ends) {
          writer.add(ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(end - done)));
          writer.end_document();
          done = end;
        }
        writer.add(ids.subspan(static_cast<std::size_t>(done)));
      },
      progress);
  if (stats.documents == 0 && stats.malformed_lines > 0) {
    throw_run_error("every one of the {} lines was malformed, so nothing was written.\n{}",
                    stats.malformed_lines, malformed_report(stats));
  }
  if (stats.documents == 0) {
    throw_user_error("there is no text in the input \"{}\"{}, so nothing was written.", inputs.front(),
                     inputs.size() > 1 ? fmt::format(" and {} more", inputs.size() - 1) : "");
  }
  writer.commit();
  return stats;
}

std::string malformed_report(const CorpusStats& stats) {
  if (stats.malformed_lines == 0) return "";
  std::string report = fmt::format("{} of {} lines of JSON were malformed and left out:", stats.malformed_lines,
                                   stats.json_lines);
  for (const std::string& line : stats.malformed) report += "\n  " + line;
  const std::int64_t more = stats.malformed_lines - std::ssize(stats.malformed);
  if (more > 0) report += fmt::format("\n  and {} more", more);
  return report;
}

}  // namespace meshtrain

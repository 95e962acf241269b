#include "data/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "data/hf_json.h"

namespace meshtrain {
namespace {

constexpr std::array<std::string_view, 6> kEndTokens = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                                        "<eos>",         "<|eot_id|>",      "<|im_end|>"};

// Sequences of pre-tokenizers for which HfTokenizer::split_point has been shown to hold (see there): the
// patterns published with GPT-2, Llama-3 (also as cl100k) and Qwen2.
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool can_be_cut(const HfSpec& spec) {
  for (const Normalization form : spec.normalizers) {
    if (form != Normalization::kNfc && form != Normalization::kNfd) return false;
  }
  for (const PretokenizerStep& step : spec.pretokenizers) {
    if (step.add_prefix_space || step.behavior != SplitBehavior::kIsolated) return false;
  }
  for (const AddedToken& token : spec.added_tokens) {
    if (token.lstrip || token.rstrip) return false;
    for (std::size_t at = 0; at < token.content.size();) {
      const CodePoint point = code_point_at(token.content, at);
      if (is_space(point.value)) return false;
      at += point.length;
    }
  }
  std::vector<std::string> patterns = spec.patterns;
  if (!patterns.empty() && patterns.front() == "<digits>") patterns.erase(patterns.begin());
  return patterns.size() == 1 &&
         (patterns[0] == kGpt2Pattern || patterns[0] == kLlama3Pattern || patterns[0] == kQwen2Pattern);
}

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(HfSpec spec, const std::string& file, const std::string& eod)
      : file_(file),
        can_be_cut_(can_be_cut(spec)),
        normalizers_(std::move(spec.normalizers)),
        pretokenizers_(std::move(spec.pretokenizers)),
        token_text_(std::move(spec.token_text)),
        special_(token_text_.size()),
        bpe_(std::move(spec.merges), std::move(spec.byte_ids), std::move(spec.byte_tokens), spec.bpe) {
    for (const AddedToken& token : spec.added_tokens)
      special_[static_cast<std::size_t>(token.id)] = token.special;
    find_end(spec.added_tokens, eod);
    build_finders(spec.added_tokens);
  }

  std::string name() const override { return "hf:" + file_; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(token_text_.size()); }
  std::optional<std::int32_t> end_of_document() const override { return end_; }
  std::unique_ptr<Encoder> encoder() const override;

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocab_size()) {
        throw_run_error("token id {} cannot be decoded: tokenizer \"{}\" has ids 0 to {}", id, name(),
                        vocab_size() - 1);
      }
      text += token_text_[static_cast<std::size_t>(id)];
    }
    return text;
  }

  bool is_special(std::int32_t id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<std::size_t>(id)];
  }

  // Two places are safe for the patterns above. (a) Behind a line feed that has a character other than white
  // space on either side: no alternative takes a line feed and what follows it, and the only look-ahead,
  // \s+(?!\S), gives the same for a run of one whether text follows or not. (b) Before a space that has an
  // ASCII letter on either side: a letter ends the piece before (only letters go on with letters), and the
  // space starts a piece with the letter behind it. Neither place is inside an added token (they have no
  // white space here), and no normalization acts across a line feed or a space.
  std::size_t split_point(std::string_view text, std::size_t from) const override {
    if (!can_be_cut_) return text.size();
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    for (std::size_t at = std::max<std::size_t>(from, 2); at + 1 < text.size(); ++at) {
      if (text[at] == ' ' && letter(text[at - 1]) && letter(text[at + 1])) return at;
      if (text[at - 1] == '\n' && solid_before(text, at - 1) && solid_at(text, at)) return at;
    }
    return text.size();
  }

 private:
  friend class HfEncoder;

  // Whether a whole character that is not white space lies there; ill-formed bytes do not count.
  static bool solid_at(std::string_view text, std::size_t at) {
    const std::string_view part = text.substr(at, 4);
    if (static_cast<unsigned char>(part[0]) < 0x80) return !is_space(static_cast<unsigned char>(part[0]));
    for (std::size_t length = 2; length <= part.size(); ++length) {
      std::string replaced;
      if (valid_utf8(part.substr(0, length), replaced).data() == part.data()) {
        return is_letter(code_point_at(part, 0).value);
      }
    }
    return false;
  }
  static bool solid_before(std::string_view text, std::size_t end) {
    std::size_t at = end - 1;
    while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) --at;
    return solid_at(text.substr(0, end), at);
  }

  void find_end(const std::vector<AddedToken>& added, const std::string& eod) {
    const auto find = [&](std::string_view content) {
      const auto found =
          std::find_if(added.begin(), added.end(), [&](const AddedToken& t) { return t.content == content; });
      if (found != added.end()) end_ = found->id;
      return found != added.end();
    };
    if (eod.empty()) {
      (void)std::find_if(kEndTokens.begin(), kEndTokens.end(), find);
      return;
    }
    if (find(eod)) return;
    const auto found = std::find(token_text_.begin(), token_text_.end(), eod);
    if (found == token_text_.end()) {
      throw_user_error("tokenizer file {}: it has no token \"{}\", which was to end each document", file_, eod);
    }
    end_ = static_cast<std::int32_t>(found - token_text_.begin());
  }

  void build_finders(const std::vector<AddedToken>& added) {
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    std::vector<std::string> raw_contents;
    std::vector<std::string> normalized_contents;
    for (const AddedToken& token : added) {
      (token.normalized ? normalized : raw).push_back(token);
      if (token.normalized) {
        std::string storage[2];
        normalized_contents.emplace_back(normalized_text(token.content, storage));
      } else {
        raw_contents.push_back(token.content);
      }
    }
    raw_ = AddedTokenFinder(std::move(raw), raw_contents);
    normalized_ = AddedTokenFinder(std::move(normalized), normalized_contents);
  }

  std::string_view normalized_text(std::string_view text, std::string (&storage)[2]) const {
    std::size_t turn = 0;
    for (const Normalization form : normalizers_) {
      const std::string_view result = normalize(text, form, storage[turn]);
      if (result.data() != text.data()) turn = 1 - turn;
      text = result;
    }
    return text;
  }

  std::string file_;
  bool can_be_cut_;
  std::vector<Normalization> normalizers_;
  std::vector<PretokenizerStep> pretokenizers_;
  std::vector<std::string> token_text_;
  std::vector<bool> special_;  // by id
  BpeModel bpe_;
  std::optional<std::int32_t> end_;
  AddedTokenFinder raw_;         // looked for in the text as it is
  AddedTokenFinder normalized_;  // looked for in what is left, normalized
};

class HfEncoder final : public Encoder {
 public:
  explicit HfEncoder(const HfTokenizer& tokenizer)
      : tokenizer_(tokenizer), pretokenizer_(tokenizer.pretokenizers_), bpe_(tokenizer.bpe_) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const auto add_token = [&](std::int32_t id) { ids.push_back(id); };
    tokenizer_.raw_.split(
        valid_utf8(text, valid_),
        [&](std::string_view part) {
          tokenizer_.normalized_.split(
              tokenizer_.normalized_text(part, normal_),
              [&](std::string_view plain) {
                pretokenizer_.split(plain, [&](std::string_view piece) { bpe_.encode(piece, ids); });
              },
              add_token);
        },
        add_token);
  }

 private:
  const HfTokenizer& tokenizer_;
  Pretokenizer pretokenizer_;
  BpeEncoder bpe_;
  std::string valid_;
  std::string normal_[2];
};

std::unique_ptr<Encoder> HfTokenizer::encoder() const {
  return std::make_unique<HfEncoder>(*this);
}

}  // namespace

std::unique_ptr<Tokenizer> parse_hf_tokenizer(std::string_view json, const std::string& file,
                                              const std::string& eod) {
  HfSpec spec = parse_tokenizer_json(json, file);
  const auto missing = std::count(spec.byte_ids.begin(), spec.byte_ids.end(), -1);
  if (missing > 0 && !spec.bpe.unk) {
    notice(
        "tokenizer file {}: {} of the 256 bytes have no token; they are left out of the ids, as the Hugging "
        "Face "
        "library does",
        file, missing);
  }
  return std::make_unique<HfTokenizer>(std::move(spec), file, eod);
}

std::unique_ptr<Tokenizer> load_hf_tokenizer(const std::string& path, const std::string& eod) {
  std::error_code ignored;
  const std::string file = std::filesystem::is_directory(path, ignored) ? path + "/tokenizer.json" : path;
  const MappedFile content = MappedFile::open(file, "the tokenizer");
  return parse_hf_tokenizer(content.text(), file, eod);
}

}  // namespace meshtrain

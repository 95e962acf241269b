#include "data/hf_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/json_reason.h"
#include "data/byte_level.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

// A value as a message shows it.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// A JSON value and the way to it, for messages.
struct Field {
  const Json& value;
  std::string path;
  const std::string& file;

  [[noreturn]] void refuse(std::string_view why) const {
    throw_user_error("tokenizer file {}: {} is {}, {}", file, path, shown(value), why);
  }
  Field at(const char* key) const {
    static const Json kNull;
    if (!value.is_object()) refuse("but an object is needed");
    const auto found = value.find(key);
    return {found == value.end() ? kNull : *found, path.empty() ? key : path + "." + key, file};
  }
  Field element(std::size_t i) const { return {value[i], fmt::format("{}[{}]", path, i), file}; }
  bool is_null() const { return value.is_null(); }
  const std::string& string() const {
    if (!value.is_string()) refuse("but a string is needed");
    return value.get_ref<const std::string&>();
  }
  bool boolean(bool otherwise) const {
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) refuse("but true or false is needed");
    return value.get<bool>();
  }
  std::size_t array_size() const {
    if (!value.is_array()) refuse("but an array is needed");
    return value.size();
  }
  void only(std::initializer_list<std::string_view> known) const {
    if (!value.is_object()) refuse("but an object is needed");
    for (const auto& [key, ignored] : value.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        at(key.c_str()).refuse("and this field is not known, so the tokens might come out wrong");
      }
    }
  }
};

// Ids may have holes, but not so many that a file of a few bytes asks for gigabytes.
std::int32_t id_of(const Field& field, std::size_t entries) {
  const std::size_t limit = 2 * entries + 100'000;
  if (!field.value.is_number_unsigned() || field.value.get<std::uint64_t>() >= limit) {
    field.refuse(fmt::format("but an id from 0 to {} is needed", limit - 1));
  }
  return field.value.get<std::int32_t>();
}

class Parser {
 public:
  Parser(const Json& root, const std::string& file) : root_{root, "", file} {}

  HfSpec run() {
    root_.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                "post_processor", "decoder", "model"});
    for (const char* key : {"truncation", "padding"}) {
      if (!root_.at(key).is_null()) root_.at(key).refuse("which is not supported; set it to null");
    }
    normalizer(root_.at("normalizer"));
    pretokenizer(root_.at("pre_tokenizer"));
    if (!byte_level_seen_) root_.at("pre_tokenizer").refuse("but a ByteLevel pre-tokenizer is needed");
    post_processor(root_.at("post_processor"));
    decoder(root_.at("decoder"));
    model(root_.at("model"));
    added_tokens(root_.at("added_tokens"));
    return std::move(spec_);
  }

 private:
  void normalizer(const Field& field) {
    if (field.is_null()) return;
    const std::string& type = field.at("type").string();
    if (type == "Sequence") {
      field.only({"type", "normalizers"});
      const Field list = field.at("normalizers");
      for (std::size_t i = 0; i < list.array_size(); ++i) normalizer(list.element(i));
      return;
    }
    static const std::unordered_map<std::string, Normalization> kForms = {{"NFC", Normalization::kNfc},
                                                                          {"NFD", Normalization::kNfd},
                                                                          {"NFKC", Normalization::kNfkc},
                                                                          {"NFKD", Normalization::kNfkd}};
    const auto form = kForms.find(type);
    if (form == kForms.end())
      field.refuse("but only NFC, NFD, NFKC, NFKD and a Sequence of them are supported");
    field.only({"type"});
    spec_.normalizers.push_back(form->second);
  }

  void pretokenizer(const Field& field) {
    if (field.is_null()) return;
    if (byte_level_seen_) field.refuse("but nothing may follow ByteLevel");
    const std::string& type = field.at("type").string();
    if (type == "Sequence") {
      field.only({"type", "pretokenizers"});
      const Field list = field.at("pretokenizers");
      for (std::size_t i = 0; i < list.array_size(); ++i) pretokenizer(list.element(i));
    } else if (type == "ByteLevel") {
      byte_level(field);
    } else if (type == "Split") {
      split(field);
    } else if (type == "Digits") {
      field.only({"type", "individual_digits"});
      PretokenizerStep step;
      step.kind = PretokenizerStep::Kind::kDigits;
      if (!field.at("individual_digits").boolean(false)) step.behavior = SplitBehavior::kContiguous;
      add(std::move(step), "<digits>");
    } else {
      field.refuse("but only ByteLevel, Split, Digits and a Sequence of them are supported");
    }
  }

  void add(PretokenizerStep step, std::string pattern) {
    spec_.pretokenizers.push_back(std::move(step));
    spec_.patterns.push_back(std::move(pattern));
  }

  void byte_level(const Field& field) {
    field.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    byte_level_seen_ = true;
    PretokenizerStep step;
    step.add_prefix_space = field.at("add_prefix_space").boolean(true);
    if (field.at("use_regex").boolean(true)) {
      step.pattern = std::make_shared<Regex>(Regex::from_oniguruma(kGpt2Pattern, field.file));
      add(std::move(step), std::string(kGpt2Pattern));
    } else if (step.add_prefix_space) {
      add(std::move(step), "");
    }
  }

  void split(const Field& field) {
    field.only({"type", "pattern", "behavior", "invert"});
    const Field pattern = field.at("pattern");
    pattern.only({"Regex", "String"});
    const std::string where = fmt::format("tokenizer file {}: {}", field.file, pattern.path);
    PretokenizerStep step;
    std::string text;
    if (!pattern.at("Regex").is_null()) {
      text = pattern.at("Regex").string();
      step.pattern = std::make_shared<Regex>(Regex::from_oniguruma(text, where));
    } else {
      text = pattern.at("String").string();
      // An empty one is found nowhere.
      if (!text.empty()) step.pattern = std::make_shared<Regex>(Regex::literal(text, where));
    }
    static const std::unordered_map<std::string, SplitBehavior> kBehaviors = {
        {"Removed", SplitBehavior::kRemoved},
        {"Isolated", SplitBehavior::kIsolated},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext},
        {"Contiguous", SplitBehavior::kContiguous}};
    const Field behavior = field.at("behavior");
    const auto found = kBehaviors.find(behavior.string());
    if (found == kBehaviors.end()) {
      behavior.refuse("but Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous is needed");
    }
    step.behavior = found->second;
    step.invert = field.at("invert").boolean(false);
    // Isolating the matches and isolating what lies between them is the same.
    if (step.behavior == SplitBehavior::kIsolated) step.invert = false;
    if (!step.pattern && step.invert && step.behavior == SplitBehavior::kRemoved)
      pattern.refuse("which, inverted and removed, leaves no text");
    add(std::move(step), std::move(text));
  }

  // These only add special tokens around a text or correct offsets; we do neither.
  void post_processor(const Field& field) {
    if (field.is_null()) return;
    const std::string& type = field.at("type").string();
    if (type == "Sequence") {
      const Field list = field.at("processors");
      for (std::size_t i = 0; i < list.array_size(); ++i) post_processor(list.element(i));
    } else if (type != "ByteLevel" && type != "TemplateProcessing" && type != "RobertaProcessing" &&
               type != "BertProcessing") {
      field.refuse(
          "but only ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing and a Sequence of them "
          "are "
          "supported");
    }
  }

  void decoder(const Field& field) {
    if (field.is_null()) return;
    const std::string& type = field.at("type").string();
    if (type == "Sequence") {
      const Field list = field.at("decoders");
      for (std::size_t i = 0; i < list.array_size(); ++i) decoder(list.element(i));
    } else if (type != "ByteLevel") {
      field.refuse("but only ByteLevel is supported");
    }
  }

  void model(const Field& field) {
    field.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    const Field type = field.at("type");
    if (!type.is_null() && type.string() != "BPE") type.refuse("but only BPE is supported");
    const Field dropout = field.at("dropout");
    if (!dropout.is_null() && dropout.value != 0) {
      dropout.refuse("but merges that are dropped at random are not supported; set it to null");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Field affix = field.at(key);
      if (!affix.is_null() && !affix.string().empty())
        affix.refuse("but byte-level BPE has none; only \"\" is supported");
    }
    vocabulary(field.at("vocab"));
    merges(field.at("merges"));
    spec_.bpe.ignore_merges = field.at("ignore_merges").boolean(false);
    spec_.bpe.fuse_unk = field.at("fuse_unk").boolean(false);
    const Field unk = field.at("unk_token");
    if (!unk.is_null() && !unk.string().empty()) {
      const auto found = vocabulary_.find(unk.string());
      if (found == vocabulary_.end()) unk.refuse("which is not in model.vocab");
      spec_.bpe.unk = found->second;
    }
    const bool complete = std::count(spec_.byte_ids.begin(), spec_.byte_ids.end(), -1) == 0;
    if (field.at("byte_fallback").boolean(false) && !complete) {
      field.at("byte_fallback").refuse("but model.vocab lacks bytes, and falling back is not supported");
    }
  }

  void put(std::int32_t id, std::string text, const Field& field) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= spec_.token_text.size()) {
      spec_.token_text.resize(index + 1);
      used_.resize(index + 1);
    }
    if (used_[index]) field.refuse(fmt::format("but id {} is taken by another token", id));
    used_[index] = true;
    spec_.token_text[index] = std::move(text);
  }

  void vocabulary(const Field& field) {
    if (!field.value.is_object() || field.value.empty()) field.refuse("but an object of token: id is needed");
    spec_.byte_ids.assign(256, -1);
    vocabulary_.reserve(field.value.size());
    for (const auto& [token, value] : field.value.items()) {
      const Field entry = field.at(token.c_str());
      if (token.find('\0') != std::string::npos || token.empty()) {
        throw_user_error("tokenizer file {}: {} has the token {}, which is not byte-level text", field.file,
                         field.path, shown(token));
      }
      const std::int32_t id = id_of(entry, field.value.size());
      const std::optional<std::string> bytes = byte_level_to_bytes(token);
      put(id, bytes.value_or(token), entry);
      vocabulary_.emplace(token, id);
      if (!bytes) continue;
      if (bytes->size() == 1) spec_.byte_ids[static_cast<unsigned char>((*bytes)[0])] = id;
      spec_.byte_tokens.emplace_back(*bytes, id);
    }
  }

  void merges(const Field& field) {
    const std::size_t count = field.array_size();
    if (count >= MergeTable::kNone) field.refuse("which is too many");
    for (std::size_t i = 0; i < count; ++i) {
      const Field merge = field.element(i);
      std::string left;
      std::string right;
      if (merge.value.is_array()) {
        if (merge.value.size() != 2) merge.refuse("but two tokens are needed");
        left = merge.element(0).string();
        right = merge.element(1).string();
      } else {
        const std::string& text = merge.string();
        if (text.starts_with("#version")) continue;
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          merge.refuse("but two tokens with one space between them are needed");
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
      spec_.merges.push_back({known(left, merge), known(right, merge), known(left + right, merge)});
    }
  }

  std::int32_t known(const std::string& token, const Field& merge) const {
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end()) merge.refuse(fmt::format("but \"{}\" is not in model.vocab", token));
    return found->second;
  }

  void added_tokens(const Field& field) {
    if (field.is_null()) return;
    std::unordered_set<std::string> seen;
    const std::size_t count = field.array_size();
    for (std::size_t i = 0; i < count; ++i) {
      const Field entry = field.element(i);
      entry.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      token.content = entry.at("content").string();
      token.id = id_of(entry.at("id"), vocabulary_.size() + count);
      token.single_word = entry.at("single_word").boolean(false);
      token.lstrip = entry.at("lstrip").boolean(false);
      token.rstrip = entry.at("rstrip").boolean(false);
      token.special = entry.at("special").boolean(false);
      token.normalized = entry.at("normalized").boolean(!token.special);
      if (token.content.empty()) continue;
      if (!seen.insert(token.content).second)
        entry.at("content").refuse("but there is an added token of that text already");
      const auto in_model = vocabulary_.find(token.content);
      if (in_model == vocabulary_.end()) {
        put(token.id, token.content, entry.at("id"));
      } else if (in_model->second != token.id) {
        entry.at("id").refuse(
            fmt::format("but model.vocab gives \"{}\" the id {}", token.content, in_model->second));
      } else {
        spec_.token_text[static_cast<std::size_t>(token.id)] = token.content;
      }
      spec_.added_tokens.push_back(std::move(token));
    }
  }

  Field root_;
  HfSpec spec_;
  bool byte_level_seen_ = false;
  std::vector<bool> used_;
  std::unordered_map<std::string, std::int32_t> vocabulary_;
};

}  // namespace

HfSpec parse_tokenizer_json(std::string_view json, const std::string& file) {
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::exception& error) {
    throw_user_error("tokenizer file {}: not valid JSON: {}", file, json_reason(error));
  }
  return Parser(root, file).run();
}

}  // namespace meshtrain

#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/strict_json.h"
#include "checkpoint/xxh3.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct TypeName {
  std::string_view name;
  std::int64_t bytes;
  std::optional<DType> dtype;
};

constexpr std::array<TypeName, 15> kTypes = {{
    {"F32", 4, DType::kF32},
    {"BF16", 2, DType::kBF16},
    {"F16", 2, DType::kF16},
    {"F64", 8, DType::kF64},
    {"I32", 4, DType::kI32},
    {"I64", 8, DType::kI64},
    {"U8", 1, DType::kU8},
    {"BOOL", 1, std::nullopt},
    {"I8", 1, std::nullopt},
    {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},
    {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},
    {"F8_E4M3", 1, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},
}};

const TypeName* find_type(std::string_view name) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& t) { return t.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

std::uint64_t read_length(std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return length;
}

Json parse_header(std::string_view text, const std::string& file) {
  try {
    Json header = parse_strictly(text);
    if (!header.is_object()) throw_user_error("{}: the safetensors header is not a JSON object.", file);
    return header;
  } catch (const StrictJsonError& error) {
    throw_user_error("{} is not a safetensors file, or a damaged one: its header is no proper JSON ({}).", file,
                     error.what());
  }
}

// An entry without its data, and where its data lies.
struct Located {
  SafetensorsEntry entry;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class HeaderReader {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  Located read(const std::string& name, const Json& json) const {
    Located result;
    result.entry.name = name;
    if (!json.is_object() || json.size() != 3) fail(name, "has not exactly dtype, shape and data_offsets");
    const Json& dtype = member(name, json, "dtype");
    const TypeName* type = dtype.is_string() ? find_type(dtype.get_ref<const std::string&>()) : nullptr;
    if (type == nullptr) fail(name, "has the unknown dtype " + dtype.dump(-1, ' ', true, kReplace));
    result.entry.dtype_name = type->name;
    result.entry.dtype = type->dtype;

    std::int64_t bytes = type->bytes;
    const Json& shape = member(name, json, "shape");
    if (!shape.is_array()) fail(name, "has a shape that is not an array");
    for (const Json& dim : shape) {
      const std::optional<std::int64_t> size = size_from(dim);
      if (!size) fail(name, "has a shape with a dimension that is not a size");
      if (__builtin_mul_overflow(bytes, *size, &bytes)) fail(name, "has more bytes than 64 bits count");
      result.entry.dims.push_back(*size);
    }

    const Json& offsets = member(name, json, "data_offsets");
    const bool pair = offsets.is_array() && offsets.size() == 2;
    const auto begin = pair ? size_from(offsets[0]) : std::nullopt;
    const auto end = pair ? size_from(offsets[1]) : std::nullopt;
    if (!begin || !end || *begin > *end) fail(name, "has data_offsets that are not [begin, end]");
    if (*end - *begin != bytes) {
      fail(name, fmt::format("has {} bytes, but its shape and dtype ask for {}", *end - *begin, bytes));
    }
    result.begin = *begin;
    result.end = *end;
    return result;
  }

  SafetensorsMetadata read_metadata(const Json& json) const {
    SafetensorsMetadata metadata;
    if (!json.is_object()) throw_user_error("{}: __metadata__ is not a JSON object.", file_);
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) throw_user_error("{}: __metadata__ has a value that is not a string.", file_);
      metadata[key] = value.get<std::string>();
    }
    return metadata;
  }

  [[noreturn]] void fail(const std::string& tensor, std::string_view what) const {
    throw_user_error("{}: tensor \"{}\" {}. The file is damaged or not written by the rules of safetensors.",
                     file_, tensor, what);
  }

 private:
  static constexpr auto kReplace = Json::error_handler_t::replace;

  const Json& member(const std::string& tensor, const Json& json, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end()) fail(tensor, fmt::format("has no {}", key));
    return *found;
  }

  const std::string& file_;
};

}  // namespace

std::string shard_name(std::string_view kind, std::size_t index, std::size_t count) {
  return count == 1 ? fmt::format("{}.safetensors", kind)
                    : fmt::format("{}-{:05}-of-{:05}.safetensors", kind, index + 1, count);
}

std::string_view safetensors_name(DType dtype) {
  for (const TypeName& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  check(false, "a dtype without a safetensors name");
  return "";
}

std::optional<DType> dtype_of_safetensors_name(std::string_view name) {
  const TypeName* type = find_type(name);
  return type == nullptr ? std::nullopt : type->dtype;
}

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(MappedFile::open_regular(path, "the safetensors file")), name_(path) {
  parse(file_->bytes());
}

SafetensorsReader::SafetensorsReader(std::span<const std::byte> bytes, std::string name)
    : name_(std::move(name)) {
  parse(bytes);
}

void SafetensorsReader::parse(std::span<const std::byte> bytes) {
  if (bytes.size() < 8) {
    throw_user_error("{} is not a safetensors file, or cut off: it has {} bytes.", name_, bytes.size());
  }
  constexpr std::string_view kPointer = "version https://git-lfs.";
  if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).starts_with(kPointer)) {
    throw_user_error("{} is a pointer of Git LFS, not the file itself: run `git lfs pull` in its folder.",
                     name_);
  }
  const std::uint64_t length = read_length(bytes);
  if (length > kMostHeaderBytes || length > bytes.size() - 8) {
    throw_user_error(
        "{} is not a safetensors file, or cut off: it asks for a header of {} bytes and has {} in all.", name_,
        length, bytes.size());
  }
  const std::span<const std::byte> text = bytes.subspan(8, length);
  const std::span<const std::byte> buffer = bytes.subspan(8 + length);
  header_ = bytes.first(8 + length);
  const Json header = parse_header({reinterpret_cast<const char*>(text.data()), text.size()}, name_);

  const HeaderReader reader(name_);
  std::vector<Located> located;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = reader.read_metadata(json);
    } else {
      located.push_back(reader.read(name, json));
    }
  }
  std::sort(located.begin(), located.end(), [](const Located& a, const Located& b) {
    return std::tie(a.begin, a.end, a.entry.name) < std::tie(b.begin, b.end, b.entry.name);
  });
  std::int64_t position = 0;
  for (Located& item : located) {
    if (item.begin != position) {
      reader.fail(item.entry.name,
                  fmt::format("begins at byte {}, but the tensor before it ends at {}", item.begin, position));
    }
    if (static_cast<std::uint64_t>(item.end) > buffer.size()) {
      reader.fail(item.entry.name,
                  fmt::format("ends at byte {}, but the file has only {}", item.end, buffer.size()));
    }
    item.entry.data =
        buffer.subspan(static_cast<std::size_t>(item.begin), static_cast<std::size_t>(item.end - item.begin));
    position = item.end;
    index_[item.entry.name] = entries_.size();
    entries_.push_back(std::move(item.entry));
  }
  if (static_cast<std::uint64_t>(position) != buffer.size()) {
    throw_user_error("{}: {} bytes after the last tensor belong to none.", name_,
                     buffer.size() - static_cast<std::uint64_t>(position));
  }
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &entries_[found->second];
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const SafetensorsDecl> decls,
                                     const SafetensorsMetadata& metadata, WriteHook hook)
    : file_(path, std::move(hook)) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  for (const SafetensorsDecl& decl : decls) {
    check(decl.name != kMetadataKey && !header.contains(decl.name), "a tensor's name is taken");
    const auto bytes = static_cast<std::uint64_t>(decl.shape.numel() * size_of(decl.dtype));
    std::vector<std::int64_t> dims;
    dims.reserve(Shape::kMaxRank);
    for (int i = 0; i < decl.shape.rank(); ++i) dims.push_back(decl.shape[i]);
    header[decl.name] = {
        {"dtype", safetensors_name(decl.dtype)}, {"shape", dims}, {"data_offsets", {left_, left_ + bytes}}};
    left_ += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the tensors begin aligned
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  text.insert(0, length);
  header_hash_ = hash_of(std::string_view(text));
  file_.reserve(text.size() + left_);
  file_.write(text);
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  check(bytes.size() <= left_, "more bytes than the tensors declared");
  left_ -= bytes.size();
  file_.write(bytes);
}

void SafetensorsWriter::finish() {
  check(left_ == 0, "fewer bytes than the tensors declared");
  file_.sync_and_close();
}

}  // namespace meshtrain

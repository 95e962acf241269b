#include "checkpoint/manifest.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json_reason.h"
#include "base/mapped_file.h"
#include "base/strict_json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/xxh3.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "meshtrain-checkpoint";
constexpr std::int64_t kVersion = 2;

std::string hash_of_json(const Json& json) {
  return hash_of(std::string_view(json.dump()));
}

// As it lies in the file. A manifest that was read is compared with it, so that it has one text alone: the hash
// does not see blanks.
std::string text_of(const Json& manifest) {
  return manifest.dump(1) + "\n";
}

std::int64_t number_at(const Json& json, const char* key) {
  const std::optional<std::int64_t> number = size_from(json.at(key));
  if (!number) throw StrictJsonError(fmt::format("its \"{}\" is no possible number", key));
  return *number;
}

Json to_json(const PieceRange& range, const Shape& whole) {
  Json json = Json::object();
  if (range.begin != 0 || range.end != whole[range.dim]) {
    json["slice"] = {{"dim", range.dim}, {"begin", range.begin}, {"end", range.end}};
  }
  if (!is_whole_slice(range, whole)) json["elements"] = {range.first, range.first + range.count};
  return json;
}

// -1, which no place is, for what is no number of elements.
std::int64_t place_from(const Json& value) {
  return size_from(value).value_or(-1);
}

PieceRange range_from(const Json& json, const Shape& whole) {
  PieceRange range = whole_range(whole);
  if (const auto slice = json.find("slice"); slice != json.end()) {
    range.dim = static_cast<int>(std::min<std::int64_t>(place_from(slice->at("dim")), Shape::kMaxRank));
    range.begin = place_from(slice->at("begin"));
    range.end = place_from(slice->at("end"));
    // Its elements are counted only where there is such a slice.
    range.count = 0;
    if (is_valid(range, whole)) range.count = slice_shape(range, whole).numel();
  }
  if (const auto elements = json.find("elements"); elements != json.end()) {
    range.first = place_from(elements->at(0));
    const std::int64_t end = place_from(elements->at(1));
    range.count = range.first < 0 || end < range.first ? -1 : end - range.first;
  }
  return range;
}

Shape shape_from(const Json& json, const std::string& path, const std::string& tensor) {
  std::vector<std::int64_t> dims;
  std::int64_t elements = 1;
  bool good = !json.empty() && json.size() <= Shape::kMaxRank;
  for (const Json& dim : json) {
    dims.push_back(size_from(dim).value_or(0));
    good = good && dims.back() > 0 && !__builtin_mul_overflow(elements, dims.back(), &elements);
  }
  // Bytes and sums of elements must be countable too.
  good = good && elements < (std::int64_t{1} << 59);
  if (!good) throw_user_error("{} is damaged: tensor \"{}\" has no possible shape.", path, tensor);
  switch (dims.size()) {
    case 1:
      return {dims[0]};
    case 2:
      return {dims[0], dims[1]};
    case 3:
      return {dims[0], dims[1], dims[2]};
    default:
      return {dims[0], dims[1], dims[2], dims[3]};
  }
}

DType dtype_from(const Json& json, const std::string& path, const std::string& tensor) {
  const std::optional<DType> dtype = dtype_of_safetensors_name(json.get<std::string>());
  if (!dtype) throw_user_error("{} is damaged: tensor \"{}\" has an unknown dtype.", path, tensor);
  return *dtype;
}

ManifestTensor tensor_from(const Json& json, const std::string& path, const std::string& name) {
  ManifestTensor tensor;
  tensor.dtype = dtype_from(json.at("dtype"), path, name);
  tensor.shape = shape_from(json.at("shape"), path, name);
  for (const Json& piece : json.at("pieces")) {
    ManifestPiece& added = tensor.pieces.emplace_back();
    added.file = piece.at("file").get<std::string>();
    added.hash = piece.at("xxh3").get<std::string>();
    added.range = range_from(piece, tensor.shape);
    if (!is_valid(added.range, tensor.shape)) {
      throw_user_error("{} is damaged: a piece of tensor \"{}\" reaches beyond it.", path, name);
    }
  }
  return tensor;
}

Json to_json(const std::map<std::string, ManifestFile>& files, const char* hash_key) {
  Json json = Json::object();
  for (const auto& [name, file] : files) json[name] = {{"bytes", file.bytes}, {hash_key, file.hash}};
  return json;
}

std::map<std::string, ManifestFile> files_from(const Json& json, const char* hash_key) {
  std::map<std::string, ManifestFile> files;
  for (const auto& [name, file] : json.items()) {
    files[name] = {static_cast<std::uint64_t>(number_at(file, "bytes")), file.at(hash_key).get<std::string>()};
  }
  return files;
}

// A manifest from elsewhere must not lead outside of its directory, nor to a shard it does not list.
void check_names(const Manifest& manifest, const std::string& path) {
  const auto check_name = [&](const std::string& name) {
    const std::filesystem::path file(name);
    bool inside = !name.empty() && file.is_relative() && file.lexically_normal() == file;
    for (const auto& part : file) inside = inside && part != "..";
    if (!inside) throw_user_error("{}: \"{}\" is not a file of the checkpoint.", path, name);
  };
  for (const auto& [name, file] : manifest.contents.shards) check_name(name);
  for (const auto& [name, file] : manifest.files) check_name(name);
  for (const auto& [name, tensor] : manifest.contents.tensors) {
    std::int64_t elements = 0;
    for (const ManifestPiece& piece : tensor.pieces) {
      // Pieces of too many elements do not make them wrap around to the right number.
      elements = std::min(elements, tensor.shape.numel() + 1) + piece.range.count;
      if (!manifest.contents.shards.contains(piece.file)) {
        throw_user_error("{} is damaged: it does not list {}, where a piece of tensor \"{}\" lies.", path,
                         piece.file, name);
      }
    }
    if (elements != tensor.shape.numel()) {
      throw_user_error("{} is damaged: the pieces of tensor \"{}\" have {} elements of {}.", path, name,
                       elements, tensor.shape.numel());
    }
  }
}

}  // namespace

Json to_json(const ManifestPart& part) {
  Json json = {{"shards", to_json(part.shards, "header_xxh3")}, {"tensors", Json::object()}};
  for (const auto& [name, tensor] : part.tensors) {
    Json dims = Json::array();
    for (int d = 0; d < tensor.shape.rank(); ++d) dims.push_back(tensor.shape[d]);
    Json pieces = Json::array();
    for (const ManifestPiece& piece : tensor.pieces) {
      Json entry = to_json(piece.range, tensor.shape);
      entry["file"] = piece.file;
      entry["xxh3"] = piece.hash;
      pieces.push_back(std::move(entry));
    }
    json["tensors"][name] = {
        {"dtype", safetensors_name(tensor.dtype)}, {"shape", std::move(dims)}, {"pieces", std::move(pieces)}};
  }
  return json;
}

ManifestPart part_from_json(const Json& json, const std::string& path) {
  ManifestPart part;
  part.shards = files_from(json.at("shards"), "header_xxh3");
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    part.tensors.emplace(name, tensor_from(tensor, path, name));
  }
  return part;
}

void merge(ManifestPart& into, ManifestPart&& part) {
  into.shards.merge(part.shards);
  for (auto& [name, tensor] : part.tensors) {
    const auto [place, added] = into.tensors.try_emplace(name, std::move(tensor));
    if (added) continue;
    std::vector<ManifestPiece>& pieces = place->second.pieces;
    pieces.insert(pieces.end(), std::make_move_iterator(tensor.pieces.begin()),
                  std::make_move_iterator(tensor.pieces.end()));
  }
}

std::string to_text(const Manifest& manifest) {
  Json json = to_json(manifest.contents);
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["step"] = manifest.step;
  json["state"] = manifest.state;
  json["files"] = to_json(manifest.files, "xxh3");
  json["hash"] = hash_of_json(json);
  return text_of(json);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  try {
    Json json = parse_strictly(text);
    if (json.at("format") != kFormat) throw_user_error("{} is not the manifest of a checkpoint.", path);
    if (json.at("version") != kVersion) {
      throw OtherVersionError(
          fmt::format("{} is of version {}, but this meshtrain reads version {}: use the one that wrote it.",
                      path, json.at("version").dump(), kVersion));
    }
    if (text != text_of(json)) throw_user_error("{} is damaged: it is not laid out as it was written.", path);
    const Json hash = json.at("hash");
    json.erase("hash");
    if (hash != hash_of_json(json)) throw_user_error("{} is damaged: its contents do not give its hash.", path);
    Manifest manifest;
    manifest.step = number_at(json, "step");
    manifest.contents = part_from_json(json, path);
    manifest.files = files_from(json.at("files"), "xxh3");
    manifest.state = json.at("state");
    check_names(manifest, path);
    return manifest;
  } catch (const Json::exception& error) {
    throw_user_error("{} is damaged: {}.", path, json_reason(error));
  } catch (const StrictJsonError& error) {
    throw_user_error("{} is damaged: {}.", path, error.what());
  }
}

Manifest read_manifest(const std::string& path) {
  return parse_manifest(MappedFile::open_regular(path, "the manifest").text(), path);
}

}  // namespace meshtrain

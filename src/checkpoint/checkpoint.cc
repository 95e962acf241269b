#include "checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/xxh3.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHint =
    "It is a checkpoint of another model or optimizer: use the config of its run.";

// The newest checkpoint beside `path` and before it that is whole; "" for none.
std::string earlier_whole_checkpoint(const std::string& path) {
  for (const CheckpointPlace& other : checkpoints_before(path)) {
    try {
      const Checkpoint checkpoint(other.path, Verify::kSizes);
      checkpoint.verify();
      return other.path;
    } catch (const UserError&) {  // damaged too
    }
  }
  return "";
}

// Of a file that is damaged as a whole: which tensors have a piece in it.
std::string what_goes_with_it(const std::vector<std::string>& tensors) {
  if (tensors.empty()) return "";
  constexpr std::size_t kNamed = 8;
  const auto end = tensors.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, tensors.size()));
  const std::string rest = tensors.size() > kNamed ? fmt::format(" and {} more", tensors.size() - kNamed) : "";
  return fmt::format(" It has pieces of tensors {}{}.", fmt::join(tensors.begin(), end, ", "), rest);
}

}  // namespace

Checkpoint::Checkpoint(const std::string& path, Verify verify) : path_(path), verify_(verify) {
  std::error_code ignored;
  if (!fs::exists(in_folder(std::string(kManifestName)), ignored)) {
    throw_user_error("{} is not a checkpoint: it has no {}, so it was not written to the end.", path,
                     kManifestName);
  }
  try {
    manifest_ = read_manifest(in_folder(std::string(kManifestName)));
    if (verify == Verify::kManifest) return;
    if (const auto wrong = wrong_sizes(); !wrong.empty()) throw UserError(wrong.begin()->second);
    if (verify == Verify::kBytes) this->verify();
  } catch (const UserError& error) {
    if (verify != Verify::kBytes) throw;
    const std::string earlier = earlier_whole_checkpoint(path);
    if (earlier.empty()) throw_user_error("{} No earlier checkpoint beside it is whole.", error.what());
    throw_user_error("{} The newest earlier checkpoint that is whole is {}: name it to go on from there.",
                     error.what(), earlier);
  }
}

std::map<std::string, std::string> Checkpoint::wrong_sizes() const {
  std::map<std::string, std::string> wrong;
  for (const auto* files : {&manifest_.contents.shards, &manifest_.files}) {
    for (const auto& [name, file] : *files) {
      std::error_code error;
      const std::uintmax_t bytes = fs::file_size(in_folder(name), error);
      if (error) {
        wrong[name] = fmt::format("{} cannot be read: {}.", in_folder(name), error.message());
      } else if (bytes != file.bytes) {
        wrong[name] = fmt::format("{} is damaged: it has {} bytes, but the manifest says {}.", in_folder(name),
                                  bytes, file.bytes);
      }
    }
  }
  return wrong;
}

const SafetensorsReader& Checkpoint::shard(const std::string& file) const {
  std::unique_ptr<SafetensorsReader>& reader = shards_[file];
  if (reader) return *reader;
  auto opened = std::make_unique<SafetensorsReader>(in_folder(file));
  if (hash_of(opened->header()) != manifest_.contents.shards.at(file).hash) {
    throw_user_error("{} is damaged: its header does not give the hash in the manifest.", in_folder(file));
  }
  reader = std::move(opened);
  return *reader;
}

std::span<const std::byte> Checkpoint::bytes_of(const std::string& tensor, const ManifestTensor& declared,
                                                const ManifestPiece& piece) const {
  const SafetensorsEntry* entry = shard(piece.file).find(tensor);
  const std::int64_t bytes = piece.range.count * size_of(declared.dtype);
  if (entry == nullptr || entry->dtype != declared.dtype ||
      static_cast<std::int64_t>(entry->data.size()) != bytes) {
    throw_user_error(
        "{} is damaged: it has no {} bytes of tensor \"{}\" in {}, which the manifest says it has.",
        in_folder(piece.file), bytes, tensor, safetensors_name(declared.dtype));
  }
  return entry->data;
}

void Checkpoint::read(const std::string& name, const Shape& whole, std::int64_t first,
                      std::span<float> to) const {
  const auto found = manifest_.contents.tensors.find(name);
  if (found == manifest_.contents.tensors.end()) {
    throw_user_error("{} has no tensor \"{}\" {}. {}", path_, name, whole.to_string(), kHint);
  }
  const ManifestTensor& tensor = found->second;
  if (tensor.shape != whole) {
    throw_user_error("{} has the tensor \"{}\" as {}, but it should be {}. {}", path_, name,
                     tensor.shape.to_string(), whole.to_string(), kHint);
  }
  if (tensor.dtype != DType::kF32) {
    throw_user_error("{} has the tensor \"{}\" in {}, but it should be {}. {}", path_, name,
                     safetensors_name(tensor.dtype), safetensors_name(DType::kF32), kHint);
  }
  read_bytes(name, first, std::as_writable_bytes(to));
}

void Checkpoint::read_bytes(const std::string& name, std::int64_t first, std::span<std::byte> to) const {
  const ManifestTensor& tensor = manifest_.contents.tensors.at(name);
  const std::int64_t size = size_of(tensor.dtype);
  const std::int64_t count = static_cast<std::int64_t>(to.size()) / size;
  check(first >= 0 && first + count <= tensor.shape.numel(), "elements beyond a tensor");
  std::int64_t copied = 0;
  for (const ManifestPiece& piece : tensor.pieces) {
    if (!overlaps(piece.range, tensor.shape, first, count)) continue;
    if (verify_ == Verify::kReads && !whole_.contains(&piece)) {
      if (const std::string damage = damage_of(name, piece); !damage.empty()) throw UserError(damage);
      whole_.insert(&piece);
    }
    copied += copy_overlap(piece.range, tensor.shape, bytes_of(name, tensor, piece), size, first, to);
  }
  if (copied != count) {
    throw_user_error("{}/{} is damaged: the pieces of tensor \"{}\" do not cover it.", path_, kManifestName,
                     name);
  }
}

void Checkpoint::check_has_no_others_than(const std::set<std::string>& names) const {
  for (const auto& [name, tensor] : manifest_.contents.tensors) {
    if (!names.contains(name)) {
      throw_user_error("{} has a tensor \"{}\" {} that has no place here. {}", path_, name,
                       tensor.shape.to_string(), kHint);
    }
  }
}

void Checkpoint::let_go() const {
  for (const auto& [file, reader] : shards_) {
    if (reader) reader->let_go();
  }
}

std::vector<Checkpoint::Span> Checkpoint::pieces_in_order(std::int64_t& total) const {
  std::vector<Span> spans;
  for (const auto& [name, tensor] : manifest_.contents.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) spans.push_back({&name, &piece, 0});
  }
  // File by file; within one the order hardly matters.
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.piece->file < b.piece->file; });
  total = 0;
  for (Span& span : spans) {
    span.begin = total;
    total += span.piece->range.count * size_of(manifest_.contents.tensors.at(*span.tensor).dtype);
  }
  return spans;
}

std::string Checkpoint::damage_of(const std::string& tensor, const ManifestPiece& piece) const {
  try {
    const std::span<const std::byte> bytes = bytes_of(tensor, manifest_.contents.tensors.at(tensor), piece);
    if (hash_of(bytes, *shard(piece.file).file()) == piece.hash) return "";
    return fmt::format(
        "{} is damaged: the {} bytes of tensor \"{}\" in it do not give the hash in the manifest.",
        in_folder(piece.file), bytes.size(), tensor);
  } catch (const UserError& error) {
    return error.what();
  }
}

std::string Checkpoint::damage_of_other(const std::string& file) const {
  try {
    const MappedFile mapped = MappedFile::open_regular(in_folder(file), "the checkpoint's file");
    if (hash_of(mapped.bytes(), mapped) == manifest_.files.at(file).hash) return "";
    return fmt::format("{} is damaged: its {} bytes do not give the hash in the manifest.", in_folder(file),
                       mapped.size());
  } catch (const UserError& error) {
    return error.what();
  }
}

void Checkpoint::verify(int part, int parts) const {
  std::int64_t total = 0;
  const std::vector<Span> spans = pieces_in_order(total);
  const std::int64_t begin = total / parts * part;
  const std::int64_t end = part + 1 == parts ? total + 1 : total / parts * (part + 1);
  for (const Span& span : spans) {
    if (span.begin < begin || span.begin >= end) continue;
    const std::string damage = damage_of(*span.tensor, *span.piece);
    if (!damage.empty()) throw UserError(damage);
  }
  if (part == 0) verify_files();
}

void Checkpoint::verify_files() const {
  for (const auto& [name, file] : manifest_.files) {
    if (const std::string damage = damage_of_other(name); !damage.empty()) throw UserError(damage);
  }
}

std::vector<std::string> Checkpoint::damages() const {
  std::map<std::string, std::string> wrong = wrong_sizes();
  for (const auto& [name, file] : manifest_.contents.shards) {
    try {
      if (!wrong.contains(name)) shard(name);
    } catch (const UserError& error) {
      wrong[name] = error.what();
    }
  }
  std::map<std::string, std::vector<std::string>> lost;  // tensors of files that are wrong as a whole
  std::vector<std::string> damages;
  const auto add = [&](const std::string& damage) {
    if (!damage.empty()) damages.push_back(damage);
  };
  std::int64_t total = 0;
  for (const Span& span : pieces_in_order(total)) {
    if (wrong.contains(span.piece->file)) {
      lost[span.piece->file].push_back(*span.tensor);
    } else {
      add(damage_of(*span.tensor, *span.piece));
    }
  }
  for (const auto& [file, damage] : wrong) add(damage + what_goes_with_it(lost[file]));
  for (const auto& [name, file] : manifest_.files) {
    if (!wrong.contains(name)) add(damage_of_other(name));
  }
  return damages;
}

}  // namespace meshtrain

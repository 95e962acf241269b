// The safetensors format: an eight-byte little-endian header length N, N bytes of JSON
// {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {string: string}}, then the
// tensors' bytes, without holes or overlaps. Offsets count from the end of the header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/mapped_file.h"
#include "checkpoint/file_writer.h"
#include "device/tensor.h"

namespace meshtrain {

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as in the file: "F32", "BOOL" …
  std::optional<DType> dtype;  // absent for types that meshtrain does not compute with
  std::vector<std::int64_t> dims;
  std::span<const std::byte> data;  // may be unaligned
};

// A file, checked in full on opening: whatever passes has every tensor in range and of the size that its
// shape and type give. Throws UserError naming the file, the tensor and what is wrong.
class SafetensorsReader {
 public:
  // Maps the file; entries point into the mapping.
  explicit SafetensorsReader(const std::string& path);
  // Bytes that outlive the reader; `name` stands for the file in messages.
  SafetensorsReader(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  // In order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;  // null: not there
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // The bytes before the tensors.
  std::span<const std::byte> header() const { return header_; }
  // Null where the bytes are another's.
  const MappedFile* file() const { return file_ ? &*file_ : nullptr; }
  // See MappedFile.
  void let_go() const {
    if (file_) file_->let_go();
  }

 private:
  void parse(std::span<const std::byte> bytes);

  std::optional<MappedFile> file_;
  std::string name_;
  std::span<const std::byte> header_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
  SafetensorsMetadata metadata_;
};

struct SafetensorsDecl {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Writes a file in one pass: the tensors' bytes are appended in the order of `decls`, in pieces of any
// size. Errors of the disk are RunErrors.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::span<const SafetensorsDecl> decls,
                    const SafetensorsMetadata& metadata = {}, WriteHook hook = {});

  void append(std::span<const std::byte> bytes);
  // Everything is on the disk when this returns; all declared bytes must have been appended.
  void finish();

  std::uint64_t size() const { return file_.size(); }
  // XXH3-64 of the bytes before the tensors.
  const std::string& header_hash() const { return header_hash_; }

 private:
  FileWriter file_;
  std::string header_hash_;
  std::uint64_t left_ = 0;
};

// The name that Hugging Face gives to file `index` of the `count` that tensors are spread over:
// "model-00001-of-00004.safetensors", or "model.safetensors" where there is one.
std::string shard_name(std::string_view kind, std::size_t index, std::size_t count);

// "F32" …; every DType has one.
std::string_view safetensors_name(DType dtype);
// Nothing for types that meshtrain does not compute with, and for those that do not exist.
std::optional<DType> dtype_of_safetensors_name(std::string_view name);

}  // namespace meshtrain

// Reads the files that the scripts in tests/reference wrote to tests/data: safetensors (u64 length of a
// JSON header, the header, the data; all little-endian) and plain JSON. For tests only: it trusts its input
// more than checkpoint/ does, and throws std::runtime_error where it does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/tensor.h"

namespace meshtrain {

inline nlohmann::json reference_json(const std::string& file) {
  std::ifstream in(std::string(MESHTRAIN_TEST_DATA "/") + file);
  if (!in) throw std::runtime_error("cannot open tests/data/" + file);
  return nlohmann::json::parse(in);
}

class ReferenceData {
 public:
  // `file` lies in tests/data.
  explicit ReferenceData(const std::string& file) : file_(file) {
    std::ifstream in(std::string(MESHTRAIN_TEST_DATA "/") + file, std::ios::binary | std::ios::ate);
    if (!in) throw std::runtime_error("cannot open tests/data/" + file);
    const auto bytes = static_cast<std::uint64_t>(in.tellg());
    in.seekg(0);
    std::uint64_t header_bytes = 0;
    in.read(reinterpret_cast<char*>(&header_bytes), 8);
    if (!in || header_bytes + 8 > bytes) throw std::runtime_error(file + " is not a safetensors file");
    std::string header(header_bytes, '\0');
    in.read(header.data(), static_cast<std::streamsize>(header_bytes));
    data_.resize(bytes - 8 - header_bytes);
    in.read(reinterpret_cast<char*>(data_.data()), static_cast<std::streamsize>(data_.size()));
    if (!in) throw std::runtime_error(file + " ends early");
    const nlohmann::json entries = nlohmann::json::parse(header);
    for (const auto& [name, entry] : entries.items()) {
      if (name != "__metadata__") tensors_.emplace(name, parse(entry));
    }
  }

  bool contains(const std::string& name) const { return tensors_.contains(name); }

  // Those that start with `prefix`, sorted.
  std::vector<std::string> names(const std::string& prefix = "") const {
    std::vector<std::string> found;
    for (const auto& [name, entry] : tensors_) {
      if (name.starts_with(prefix)) found.push_back(name);
    }
    return found;
  }

  Shape shape(const std::string& name) const { return at(name).shape; }

  // Valid as long as this object. The element type must be the file's.
  std::span<const float> floats(const std::string& name) const { return read<float>(name, "F32"); }
  std::span<const std::int32_t> ints(const std::string& name) const { return read<std::int32_t>(name, "I32"); }

 private:
  struct Entry {
    std::string dtype;
    Shape shape;
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  Entry parse(const nlohmann::json& json) const {
    Entry entry;
    entry.dtype = json.at("dtype").get<std::string>();
    const auto dims = json.at("shape").get<std::vector<std::int64_t>>();
    switch (dims.size()) {
      case 0:
        entry.shape = Shape({1});
        break;
      case 1:
        entry.shape = Shape({dims[0]});
        break;
      case 2:
        entry.shape = Shape({dims[0], dims[1]});
        break;
      case 3:
        entry.shape = Shape({dims[0], dims[1], dims[2]});
        break;
      case 4:
        entry.shape = Shape({dims[0], dims[1], dims[2], dims[3]});
        break;
      default:
        throw std::runtime_error(file_ + ": a tensor of more than four dimensions");
    }
    entry.begin = json.at("data_offsets").at(0).get<std::size_t>();
    entry.end = json.at("data_offsets").at(1).get<std::size_t>();
    if (entry.begin > entry.end || entry.end > data_.size()) throw std::runtime_error(file_ + ": bad offsets");
    return entry;
  }

  const Entry& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error(file_ + " has no tensor " + name);
    return found->second;
  }

  template <class T>
  std::span<const T> read(const std::string& name, const std::string& dtype) const {
    const Entry& entry = at(name);
    const auto count = static_cast<std::size_t>(entry.shape.numel());
    if (entry.dtype != dtype || entry.end - entry.begin != count * sizeof(T) || entry.begin % sizeof(T) != 0) {
      throw std::runtime_error(file_ + ": " + name + " is " + entry.dtype + ", wanted " + dtype);
    }
    return {reinterpret_cast<const T*>(data_.data() + entry.begin), count};
  }

  std::string file_;
  std::vector<std::byte> data_;
  std::map<std::string, Entry> tensors_;
};

}  // namespace meshtrain

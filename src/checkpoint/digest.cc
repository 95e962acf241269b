#include "checkpoint/digest.h"

#include <algorithm>
#include <span>

#include "checkpoint/safetensors.h"
#include "checkpoint/xxh3.h"

namespace meshtrain {
namespace {

std::string hash_of_tensor(const Checkpoint& checkpoint, const std::string& name,
                           const ManifestTensor& tensor) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 20;
  const std::int64_t size = size_of(tensor.dtype);
  const std::int64_t elements = tensor.shape.numel();
  std::vector<std::byte> bytes;
  Xxh3 hash;
  for (std::int64_t first = 0; first < elements; first += kBytes / size) {
    bytes.resize(static_cast<std::size_t>(std::min(kBytes / size, elements - first) * size));
    checkpoint.read_bytes(name, first, bytes);
    hash.update(bytes);
  }
  checkpoint.let_go();
  return hash.digest();
}

// What the run goes on with, but for its config, which names folders and a mesh.
std::string state_text(const Checkpoint& checkpoint) {
  nlohmann::json state = {{"step", checkpoint.step()}};
  for (const char* key : {"updates", "position", "loss_scaler"}) {
    if (checkpoint.state().contains(key)) state[key] = checkpoint.state().at(key);
  }
  return state.dump();
}

std::string hash_of_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return hash_of(std::string_view(text));
}

std::vector<std::string> lines_before_total(const CheckpointDigest& digest) {
  std::vector<std::string> lines;
  for (const TensorDigest& tensor : digest.tensors) {
    lines.push_back(fmt::format("{} {} {} {}", tensor.name, safetensors_name(tensor.dtype),
                                tensor.shape.to_string(), tensor.hash));
  }
  lines.push_back(fmt::format("state {} {}", digest.state, hash_of(std::string_view(digest.state))));
  return lines;
}

}  // namespace

CheckpointDigest digest_of(const Checkpoint& checkpoint) {
  CheckpointDigest digest;
  for (const auto& [name, tensor] : checkpoint.manifest().contents.tensors) {
    digest.tensors.push_back({.name = name,
                              .dtype = tensor.dtype,
                              .shape = tensor.shape,
                              .hash = hash_of_tensor(checkpoint, name, tensor)});
  }
  digest.state = state_text(checkpoint);
  digest.total = hash_of_lines(lines_before_total(digest));
  return digest;
}

std::vector<std::string> to_lines(const CheckpointDigest& digest) {
  std::vector<std::string> lines = lines_before_total(digest);
  lines.push_back(fmt::format("total {}", digest.total));
  return lines;
}

}  // namespace meshtrain

#include "checkpoint/checkpoint_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/stopwatch.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/xxh3.h"
#include "comm/agreement.h"
#include "comm/naming_step.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

// Bytes that are hashed and written while they are in the cache.
constexpr std::size_t kChunk = std::size_t{1} << 20U;

// A part of a slice has no shape of its own: it is stored flat.
Shape stored_shape(const SavedPiece& piece) {
  return is_whole_slice(piece.range, piece.shape) ? slice_shape(piece.range, piece.shape)
                                                  : Shape{piece.range.count};
}

// Writes one rank's pieces into a file, in order, and adds them to `part`.
void write_shard(const fs::path& folder, const std::string& name, std::span<const SavedPiece> pieces,
                 ManifestPart& part, const WriteHook& hook) {
  if (pieces.empty()) return;
  std::vector<SafetensorsDecl> decls;
  for (const SavedPiece& piece : pieces) decls.push_back({piece.name, piece.dtype, stored_shape(piece)});
  SafetensorsWriter writer((folder / name).string(), decls, {{"format", "pt"}}, hook);
  for (const SavedPiece& piece : pieces) {
    Xxh3 hash;
    for (std::span<const std::byte> rest = piece.get(); !rest.empty();) {
      const std::span<const std::byte> chunk = rest.first(std::min(rest.size(), kChunk));
      hash.update(chunk);
      writer.append(chunk);
      rest = rest.subspan(chunk.size());
    }
    ManifestTensor& tensor = part.tensors[piece.name];
    tensor.dtype = piece.dtype;
    tensor.shape = piece.shape;
    tensor.pieces.push_back({.file = name, .range = piece.range, .hash = hash.digest()});
  }
  writer.finish();
  part.shards[name] = {writer.size(), writer.header_hash()};
}

ManifestFile copy_file(const fs::path& folder, const SavedFile& file, const WriteHook& hook) {
  const fs::path to = folder / file.path;
  const MappedFile from = MappedFile::open(file.from, "the file");
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  if (error) throw_run_error("cannot create {}: {}.", to.parent_path().string(), error.message());
  write_and_sync(to.string(), from.text(), hook);
  if (to.parent_path() != folder) sync_directory(to.parent_path().string(), hook);
  return {from.bytes().size(), hash_of(from.bytes())};
}

void make_folder(const fs::path& path, const WriteHook& hook) {
  std::error_code error;
  // What cannot be removed gives way.
  if (fs::exists(path, error) && remove_checkpoint(path.string(), hook)) {
    set_aside_checkpoint(path.string(), kSuperseded);
  }
  fs::create_directories(path, error);
  if (error) throw_run_error("cannot create the directory {}: {}.", path.string(), error.message());
  report(hook, "create", path.string());
  sync_directory(fs::absolute(path).parent_path().string(), hook);
}

void commit(const fs::path& path, const Manifest& manifest, const WriteHook& hook) {
  const std::string name = (path / kManifestName).string();
  const std::string partial = name + ".tmp";
  write_and_sync(partial, to_text(manifest), hook);
  sync_directory(path.string(), hook);  // the data files' names, before the name that vouches for them
  rename_and_sync(path.string(), partial, name, hook);
}

std::string names_of_committed(const std::string& directory) {
  std::vector<std::string> names;
  for (const CheckpointPlace& place : committed_checkpoints(directory))
    names.push_back(checkpoint_name(place.step));
  if (names.empty()) return fmt::format("There is no earlier checkpoint in {}.", directory);
  return fmt::format("The earlier checkpoints in {} are intact: {}.", directory, fmt::join(names, ", "));
}

// One checkpoint on its way to the disk, as one rank sees it.
class Writing {
 public:
  Writing(const std::string& path, const CheckpointContents& contents, Communicator* ranks,
          const WriteHook& hook)
      : path_(path), contents_(contents), ranks_(ranks), hook_(hook) {}

  void run() {
    agree(leads() ? failure_of([&] { make_folder(path_, hook_); }) : "");
    ManifestPart part;
    const std::string failure = failure_of([&] { write_own(part); });
    const std::vector<std::string> others = gather(failure, part);
    const bool commits = leads() && failure.empty();
    agree(commits ? failure_of([&] { finish(others, std::move(part)); }) : failure);
  }

 private:
  bool leads() const { return rank() == 0; }
  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const { return ranks_ == nullptr ? 1 : ranks_->size(); }

  // What went wrong with the disk, or "".
  template <class Action>
  std::string failure_of(const Action& action) const {
    try {
      action();
      return "";
    } catch (const CommError&) {
      throw;
    } catch (const RunError& error) {
      return error.what();
    } catch (const UserError& error) {
      return error.what();
    }
  }

  void write_own(ManifestPart& part) {
    const auto name = [&](std::string_view kind) {
      return shard_name(kind, static_cast<std::size_t>(rank()), static_cast<std::size_t>(size()));
    };
    write_shard(path_, name("model"), contents_.model, part, hook_);
    write_shard(path_, name("optimizer"), contents_.optimizer, part, hook_);
    if (!leads()) sync_directory(path_.string(), hook_);
  }

  // Of every rank, for rank 0, which has its own: its failure, or what it wrote.
  std::vector<std::string> gather(const std::string& failure, const ManifestPart& part) {
    if (size() == 1) return {};
    if (leads()) return texts_at_first(*ranks_, "");
    nlohmann::json answer = to_json(part);
    answer["failure"] = failure;
    return texts_at_first(*ranks_, answer.dump());
  }

  void finish(const std::vector<std::string>& answers, ManifestPart&& own) {
    Manifest manifest{
        .step = contents_.step, .contents = std::move(own), .files = {}, .state = contents_.state};
    for (std::size_t i = 1; i < answers.size(); ++i) {
      const nlohmann::json answer = nlohmann::json::parse(answers[i]);
      const auto failure = answer.at("failure").get<std::string>();
      if (!failure.empty()) throw_run_error("rank {}: {}", i, failure);
      merge(manifest.contents, part_from_json(answer, path_.string()));
    }
    for (const SavedFile& file : contents_.files) manifest.files[file.path] = copy_file(path_, file, hook_);
    commit(path_, manifest, hook_);
  }

  // Throws on every rank where rank 0 has a failure, after what was written has been removed.
  void agree(std::string failure) {
    if (leads() && !failure.empty()) failure = clean_up(failure);
    if (size() > 1) failure = text_of_first(*ranks_, failure);
    if (!failure.empty()) throw AgreedError(failure);
  }

  std::string clean_up(const std::string& failure) const {
    std::error_code error;
    fs::remove(path_ / kManifestName, error);
    fs::remove_all(path_, error);
    return fmt::format("writing the checkpoint of step {} to {} failed: {} What was written of it {}. {}",
                       contents_.step, path_.string(), failure,
                       error ? "could not be removed and does not count" : "has been removed",
                       names_of_committed(fs::absolute(path_).parent_path().string()));
  }

  const fs::path path_;
  const CheckpointContents& contents_;
  Communicator* ranks_;
  const WriteHook& hook_;
};

// Copies the pieces' bytes into `storage` and points them there.
void move_to(CheckpointContents& contents, std::span<std::byte> storage) {
  for (auto* pieces : {&contents.model, &contents.optimizer}) {
    for (SavedPiece& piece : *pieces) {
      const std::span<const std::byte> bytes = piece.get();
      check(bytes.size() <= storage.size(), "more to save than there is memory planned for");
      if (!bytes.empty()) std::memcpy(storage.data(), bytes.data(), bytes.size());
      piece.data = storage.data();
      piece.fetch = {};
      storage = storage.subspan(bytes.size());
    }
  }
}

}  // namespace

std::int64_t CheckpointContents::bytes() const {
  std::int64_t total = 0;
  for (const auto* pieces : {&model, &optimizer}) {
    for (const SavedPiece& piece : *pieces) total += piece.bytes();
  }
  return total;
}

void write_checkpoint(const std::string& path, const CheckpointContents& contents, Communicator* ranks,
                      const WriteHook& hook) {
  check(contents.step >= 0, "a checkpoint of a negative step");
  Writing(path, contents, ranks, hook).run();
}

CheckpointWriter::CheckpointWriter(Options options, Communicator* ranks)
    : options_(std::move(options)), ranks_(ranks) {
  // The system gives memory at its first use, which would hold training at the first save.
  constexpr std::size_t kPage = 4096;
  for (std::size_t i = 0; i < options_.copy.size(); i += kPage) options_.copy[i] = std::byte{0};
}

void CheckpointWriter::write(CheckpointContents contents) {
  flush();
  if (!options_.async) {
    return count(write_and_prune(contents));
  }
  report(options_.hook, "copy", options_.directory + "/" + checkpoint_name(contents.step));
  move_to(contents, options_.copy);
  in_flight_ = std::async(std::launch::async,
                          [this, contents = std::move(contents)] { return write_and_prune(contents); });
}

void CheckpointWriter::check_in_flight() {
  if (in_flight_.valid() && in_flight_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) flush();
}

void CheckpointWriter::flush() {
  if (!in_flight_.valid()) return;
  count(in_flight_.get());
}

void CheckpointWriter::count(Written written) {
  stats_ = {stats_.saves + 1, written.bytes, stats_.write_seconds + written.seconds};
  for (std::string& path : written.unremoved) {
    if (known_unremoved_.insert(path).second) unremoved_.push_back(std::move(path));
  }
}

std::vector<std::string> CheckpointWriter::take_unremoved() {
  return std::exchange(unremoved_, {});
}

CheckpointWriter::Written CheckpointWriter::write_and_prune(const CheckpointContents& contents) const {
  const Stopwatch watch;
  const std::string path = (fs::path(options_.directory) / checkpoint_name(contents.step)).string();
  std::int64_t bytes = contents.bytes();
  double seconds = 0.0;
  naming_step(contents.step, [&] {
    write_checkpoint(path, contents, ranks_, options_.hook);
    seconds = watch.seconds();
    if (ranks_ != nullptr) bytes = sum_of_ranks(*ranks_, bytes, Traffic::kOther);
  });
  Written written = {.bytes = bytes, .seconds = seconds, .unremoved = {}};
  if (ranks_ == nullptr || ranks_->rank() == 0) {
    written.unremoved = prune_checkpoints(options_.directory, options_.keep, options_.hook);
  }
  return written;
}

}  // namespace meshtrain

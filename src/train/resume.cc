#include "train/resume.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_folder.h"
#include "comm/agreement.h"
#include "train/checkpointing.h"
#include "train/run_folder.h"

namespace meshtrain {
namespace {

// The first failure of any rank, for all of them; "" for none.
std::string first_failure(Communicator& ranks, const std::string& own) {
  const std::vector<std::string> all = texts_at_first(ranks, own);
  const auto failed =
      std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  return text_of_first(ranks, failed == all.end() ? "" : *failed);
}

struct Opening {
  std::string failure;         // what is wrong with it, or ""
  bool other_version = false;  // that is no damage
};

// Opens and checks it.
Opening open_together(const std::string& path, Communicator& ranks, std::unique_ptr<Checkpoint>& opened) {
  Opening own;
  try {
    opened = std::make_unique<Checkpoint>(path, Verify::kSizes);
    opened->verify(ranks.rank(), ranks.size());
  } catch (const OtherVersionError& error) {
    own = {.failure = error.what(), .other_version = true};
  } catch (const UserError& error) {
    own.failure = error.what();
  }
  const Opening all = {.failure = first_failure(ranks, own.failure),
                       .other_version = any_rank(ranks, own.other_version)};
  if (!all.failure.empty()) opened.reset();
  return all;
}

// Rank 0's paths, on every rank.
std::vector<std::string> paths_of_first(const std::vector<CheckpointPlace>& places, Communicator& ranks) {
  std::string text;
  for (const CheckpointPlace& place : places) text += place.path + '\0';
  text = text_of_first(ranks, text);
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin < text.size(); begin += paths.back().size() + 1) {
    paths.push_back(text.substr(begin, text.find('\0', begin) - begin));
  }
  return paths;
}

std::vector<CheckpointPlace> newest_first(const std::string& directory) {
  std::vector<CheckpointPlace> places = committed_checkpoints(directory);
  std::reverse(places.begin(), places.end());
  return places;
}

}  // namespace

ResumeSource newest_whole_checkpoint(const std::string& directory, Communicator& ranks) {
  ResumeSource source;
  const bool leads = ranks.rank() == 0;
  const std::vector<std::string> paths =
      paths_of_first(leads ? newest_first(directory) : std::vector<CheckpointPlace>{}, ranks);
  std::string first;
  for (const std::string& path : paths) {
    const auto [failure, other_version] = open_together(path, ranks, source.checkpoint);
    if (failure.empty()) return source;
    // Passed over it would count as damaged, and be removed in time.
    if (other_version) throw_user_error("{} --resume-from names an earlier checkpoint to go on from.", failure);
    if (first.empty()) first = failure;
    source.damaged.push_back(path);
    if (leads && path != paths.back())
      notice("{} It is passed over: the checkpoint before it is tried.", failure);
  }
  if (paths.empty()) return source;
  throw_user_error(
      "{} No checkpoint in {} is whole ({}), so there is nothing to go on from. Mend one, or move them away to "
      "start at step 1.",
      first, directory, fmt::join(paths, ", "));
}

ResumeSource whole_checkpoint(const std::string& path, Communicator& ranks) {
  ResumeSource source;
  std::string resolved = path;
  std::string failure;
  try {
    if (ranks.rank() == 0) resolved = find_checkpoint(path);
  } catch (const UserError& error) {
    failure = error.what();
  }
  failure = first_failure(ranks, failure);
  if (!failure.empty()) throw UserError(failure);
  resolved = text_of_first(ranks, resolved);
  failure = open_together(resolved, ranks, source.checkpoint).failure;
  if (failure.empty()) return source;
  for (const std::string& earlier : paths_of_first(checkpoints_before(resolved), ranks)) {
    if (!open_together(earlier, ranks, source.checkpoint).failure.empty()) continue;
    throw_user_error("{} The newest earlier checkpoint that is whole is {}: name it to go on from there.",
                     failure, earlier);
  }
  throw_user_error("{} No earlier checkpoint beside it is whole.", failure);
}

std::string other_samples(const Config& config, const Checkpoint& checkpoint) {
  const Config before = config_of(checkpoint);
  std::vector<std::string> changes;
  if (before.train.seed != config.train.seed) {
    changes.push_back(fmt::format("train.seed was {} and is {}", before.train.seed, config.train.seed));
  }
  if (before.data.seq_len != config.data.seq_len) {
    changes.push_back(fmt::format("data.seq_len was {} and is {}", before.data.seq_len, config.data.seq_len));
  }
  if (changes.empty()) return "";
  return fmt::format(
      "{} in the run that wrote {}: the samples after it are not those that followed there, so that some "
      "may come twice and others not at all",
      fmt::join(changes, ", "), checkpoint.path());
}

}  // namespace meshtrain

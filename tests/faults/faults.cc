#include "faults/faults.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "program.h"

namespace meshtrain::faults {

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::kKillRank:
      return "KillRank";
    case Fault::kKillSupervisor:
      return "KillSupervisor";
    case Fault::kStopRank:
      return "StopRank";
    case Fault::kFillDisk:
      return "FillDisk";
    case Fault::kReadOnly:
      return "ReadOnly";
    case Fault::kTruncate:
      return "Truncate";
    case Fault::kFlipBit:
      return "FlipBit";
  }
  return "?";
}

const std::vector<Phase>& phases() {
  static const std::vector<Phase> all = {
      {.name = "micro-step", .of_save = false},
      {.name = "collective", .of_save = false},
      {.name = "copy", .async_only = true},
      {.name = "create"},
      {.name = "write"},
      {.name = "before sync"},
      {.name = "sync"},
      {.name = "before rename", .leader_only = true},
      {.name = "rename", .leader_only = true},
      {.name = "uncommit", .leader_only = true, .cleans = true},
      {.name = "remove", .leader_only = true, .cleans = true},
  };
  return all;
}

const Phase& phase_called(std::string_view name) {
  const auto found =
      std::find_if(phases().begin(), phases().end(), [&](const Phase& phase) { return phase.name == name; });
  if (found == phases().end()) throw std::out_of_range("no phase " + std::string(name));
  return *found;
}

fs::path damage(const fs::path& checkpoint, Fault fault, Random& random) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
    files.push_back(entry.path());
  }
  if (files.empty()) throw std::runtime_error("no files in " + checkpoint.string());
  std::sort(files.begin(), files.end());
  const fs::path& file = random.of(files);
  std::string bytes = read_file(file);
  std::int64_t at = random.below(static_cast<std::int64_t>(bytes.size()));
  if (file.extension() == ".json")
    at = static_cast<std::int64_t>(bytes.find_last_not_of(" \n", at));  // no matter
  if (fault == Fault::kTruncate) {
    fs::resize_file(file, static_cast<std::uintmax_t>(at));
  } else {
    char& byte = bytes[static_cast<std::size_t>(at)];
    byte = static_cast<char>(byte ^ (1 << random.below(8)));
    write_file(file, bytes);
  }
  return file;
}

void set_writable(const fs::path& folder, bool writable, bool below) {
  constexpr fs::perms kWrite = fs::perms::owner_write | fs::perms::group_write | fs::perms::others_write;
  const auto change = [&](const fs::path& path) {
    if (writable) {
      fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
    } else {
      fs::permissions(path, kWrite, fs::perm_options::remove);
    }
  };
  change(folder);
  if (!below) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) change(entry.path());
  }
}

}  // namespace meshtrain::faults

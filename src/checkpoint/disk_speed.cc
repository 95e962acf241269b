#include "checkpoint/disk_speed.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "base/stopwatch.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kWriteBytes = 8 * kMiB;

// A file without a name, so that nothing stays whatever happens.
class NamelessFile {
 public:
  explicit NamelessFile(const std::string& folder) : folder_(folder) {
    descriptor_ = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor_ >= 0) return;
    // Some file systems have no files without a name from the start.
    std::string path = (fs::path(folder) / "meshtrain_bench_XXXXXX").string();
    descriptor_ = mkostemp(path.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail("make");
    unlink(path.c_str());
  }
  ~NamelessFile() { close(descriptor_); }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("write");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void sync() {
    if (fsync(descriptor_) != 0) fail("sync");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw_run_error("cannot {} a file in {} to measure its speed ({})", what, folder_, std::strerror(errno));
  }

  const std::string& folder_;
  int descriptor_ = -1;
};

std::string nearest_existing(const std::string& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  std::error_code ignored;
  while (!fs::is_directory(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

}  // namespace

std::vector<std::byte> incompressible(std::int64_t bytes) {
  std::vector<std::byte> result(static_cast<std::size_t>(bytes));
  const RandomStream random(1, "bench/disk");
  for (std::size_t i = 0; i < result.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random.bits(i);
    std::memcpy(result.data() + i, &bits, std::min(sizeof(bits), result.size() - i));
  }
  return result;
}

DiskSpeed write_plain_file(const std::string& folder, std::int64_t bytes) {
  check(bytes > 0, "a disk is measured with some bytes");
  const std::vector<std::byte> block = incompressible(std::min(bytes, kWriteBytes));
  NamelessFile file(folder);
  const Stopwatch watch;
  for (std::int64_t left = bytes; left > 0; left -= kWriteBytes) {
    file.write(std::span(block).first(static_cast<std::size_t>(std::min(left, kWriteBytes))));
  }
  file.sync();
  return {.folder = folder, .bytes = bytes, .seconds = watch.seconds()};
}

DiskSpeed measure_disk(const std::string& folder) {
  constexpr double kLongEnough = 0.5;  // of a file; one of twice the size, the next, would take a second
  constexpr std::int64_t kLargest = 1024 * kMiB;
  const std::string place = nearest_existing(folder);
  std::error_code error;
  const auto free = static_cast<std::int64_t>(
      std::min<std::uintmax_t>(fs::space(place, error).available, std::numeric_limits<std::int64_t>::max()));
  const std::int64_t largest = error ? kLargest : std::clamp(free / 2, kMiB, kLargest);
  DiskSpeed speed;
  for (std::int64_t bytes = std::min(16 * kMiB, largest);; bytes = std::min(2 * bytes, largest)) {
    speed = write_plain_file(place, bytes);
    if (speed.seconds > kLongEnough || bytes == largest) return speed;
  }
}

double measure_memory_copy() {
  constexpr std::int64_t kBytes = 128 * kMiB;  // more than caches hold
  constexpr int kRounds = 3;
  const std::vector<std::byte> from(static_cast<std::size_t>(kBytes), std::byte{1});
  std::vector<std::byte> to(from.size());
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRounds; ++i) {
    const Stopwatch watch;
    std::memcpy(to.data(), from.data(), from.size());
    best = std::min(best, watch.seconds());
  }
  check(to == from, "a copy differs");
  return static_cast<double>(kBytes) / best;
}

}  // namespace meshtrain

#include "base/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace meshtrain {

ScratchFile::ScratchFile() {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  descriptor_ = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor_ >= 0) return;
  // Some file systems have no files without a name from the start.
  std::string path = (folder / "meshtrain_scratch_XXXXXX").string();
  descriptor_ = mkostemp(path.data(), O_CLOEXEC);
  if (descriptor_ < 0) {
    throw_run_error("cannot make a temporary file {} ({}); set TMPDIR to a folder that can be written", path,
                    std::strerror(errno));
  }
  unlink(path.c_str());
}

ScratchFile::~ScratchFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void ScratchFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw_run_error("cannot write a temporary file in {} ({}); free some space there, or set TMPDIR",
                      std::filesystem::temp_directory_path().string(), std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void ScratchFile::read(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw_run_error("cannot read a temporary file back ({})", std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

}  // namespace meshtrain

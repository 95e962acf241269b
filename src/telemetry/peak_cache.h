// Peaks of matrix products that were measured on this kind of machine before, so that a run does not have to
// wait for a measurement: a small JSON file in the user's cache folder (docs/formats.md).
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"

namespace meshtrain {

// What a peak depends on, apart from the version of the program.
struct PeakKey {
  std::string processor;
  DType dtype = DType::kBF16;
  int threads = 1;
};

struct KnownPeak {
  double tflops = 0.0;
  bool undisturbed = false;  // else it was measured while the cores were busy with something else, too
};

// Name, family, model, stepping and a hash of the instruction sets, from a file such as /proc/cpuinfo;
// "unknown" where it says none of them.
std::string processor_name(const std::string& cpuinfo = "/proc/cpuinfo");

class PeakCache {
 public:
  // `path`: the file, which need not exist; empty: nothing is found and nothing is kept.
  explicit PeakCache(std::string path = default_path());
  // $XDG_CACHE_HOME/meshtrain/peaks.json, or .cache/meshtrain/peaks.json in $HOME; empty without either.
  static std::string default_path();

  // A file that cannot be read or is not ours holds nothing.
  std::optional<KnownPeak> find(const PeakKey& key) const;
  // Keeps the faster one of `peak` and what is there, which counts as undisturbed if either is. Whole or not at
  // all; returns whether it could be written. Of two processes that keep something at once one may lose its
  // own.
  bool keep(const PeakKey& key, KnownPeak peak) const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace meshtrain

#include "train/run_peak.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "base/cores.h"
#include "comm/agreement.h"
#include "telemetry/peak.h"

namespace meshtrain {
namespace {

// Where a rank computes; plain bytes, which ranks exchange. Cores from 8192 on are not counted.
struct Place {
  std::uint64_t host = 0;
  std::int64_t threads = 0;
  std::array<std::uint8_t, 1024> cores{};
};

// The same for all processes that run under one kernel, containers included.
std::uint64_t host_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, id);
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  if (id.empty()) id = name.data();
  return XXH3_64bits(id.data(), id.size());
}

Place place_of_this_rank(int threads) {
  Place place{.host = host_id(), .threads = threads, .cores = {}};
  for (const int core : available_cores()) {
    const auto byte = static_cast<std::size_t>(core / 8);
    if (byte < place.cores.size()) place.cores[byte] = static_cast<std::uint8_t>(place.cores[byte] | 1U << (core % 8));
  }
  return place;
}

std::vector<int> cores_in(const Place& place) {
  std::vector<int> cores;
  for (int core = 0; core < static_cast<int>(8 * place.cores.size()); ++core) {
    if ((place.cores[static_cast<std::size_t>(core / 8)] >> (core % 8) & 1U) != 0) cores.push_back(core);
  }
  return cores;
}

// The sum over hosts; 0 where one of them does not know.
double sum_of_hosts(Communicator& ranks, bool speaks, double tflops) {
  const bool missing = any_rank(ranks, speaks && tflops <= 0.0);
  const double sum = sum_of_ranks(ranks, speaks ? tflops : 0.0, Traffic::kOther);
  return missing ? 0.0 : sum;
}

}  // namespace

RunPeak::RunPeak(const Config& config, Communicator& control, int threads, PeakCache cache)
    : control_(control),
      cache_(std::move(cache)),
      measured_(config.machine.peak_tflops < 0.0),
      tflops_(std::max(config.machine.peak_tflops, 0.0)) {
  key_.dtype = config.precision.compute;
  if (!measured_) return;
  const Place own = place_of_this_rank(threads);
  Place host{.host = own.host, .threads = 0, .cores = {}};  // all ranks of this host
  const std::vector<Place> all = gather_from_ranks<Place>(control, {&own, 1}, Traffic::kOther);
  measures_ = true;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    all_threads_ += all[rank].threads;
    if (all[rank].host != own.host) continue;
    if (static_cast<int>(rank) < control.rank()) measures_ = false;
    host.threads += all[rank].threads;
    for (std::size_t i = 0; i < host.cores.size(); ++i) host.cores[i] |= all[rank].cores[i];
  }
  cores_ = cores_in(host);
  key_.processor = processor_name();
  key_.threads = static_cast<int>(std::clamp<std::int64_t>(static_cast<std::int64_t>(cores_.size()), 1, host.threads));
  tflops_ = sum_of_hosts(control_, measures_, measures_ ? cache_.find(key_).value_or(0.0) : 0.0);
}

void RunPeak::measure() {
  double own = 0.0;
  if (measures_) {
    const BoundToCores bound(cores_);
    const QuickPeak peak = quick_peak(key_.dtype, key_.threads);
    own = peak.tflops;
    if (peak.undisturbed) cache_.keep(key_, own);
  }
  tflops_ = std::max(tflops_, sum_of_hosts(control_, measures_, own));
}

std::string RunPeak::text() const {
  return fmt::format("{:.3g} TFLOP/s ({}, {} thread{})", tflops_, name_of(key_.dtype), all_threads_,
                     all_threads_ == 1 ? "" : "s");
}

}  // namespace meshtrain

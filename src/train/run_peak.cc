#include "train/run_peak.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <map>
#include <span>
#include <utility>

#include "base/cores.h"
#include "comm/agreement.h"
#include "telemetry/peak.h"
#include "telemetry/units.h"

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
    if (byte < place.cores.size())
      place.cores[byte] = static_cast<std::uint8_t>(place.cores[byte] | 1U << (core % 8));
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

// Of the ranks of one host together.
struct Host {
  Place place;
  std::size_t first_rank = 0;
  int threads() const {
    const auto cores = static_cast<std::int64_t>(cores_in(place).size());
    return static_cast<int>(std::clamp<std::int64_t>(cores, 1, place.threads));
  }
};

std::map<std::uint64_t, Host> hosts_of(std::span<const Place> ranks) {
  std::map<std::uint64_t, Host> hosts;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Place& place =
        hosts.try_emplace(ranks[rank].host, Host{.place = {}, .first_rank = rank}).first->second.place;
    place.threads += ranks[rank].threads;
    for (std::size_t i = 0; i < place.cores.size(); ++i) place.cores[i] |= ranks[rank].cores[i];
  }
  return hosts;
}

}  // namespace

RunPeak::RunPeak(const Config& config, Communicator& control, int threads, PeakCache cache)
    : control_(control),
      cache_(std::move(cache)),
      measured_(config.machine.peak_tflops < 0.0),
      patient_(control.size() == 1 || config.mesh.deadline >= kPatientRanks),
      tflops_(std::max(config.machine.peak_tflops, 0.0)) {
  key_.dtype = config.precision.compute;
  if (!measured_) return;
  const Place own = place_of_this_rank(threads);
  const auto hosts = hosts_of(gather_from_ranks<Place>(control, {&own, 1}, Traffic::kOther));
  for (const auto& [id, host] : hosts) all_threads_ += host.threads();
  const Host& host = hosts.at(own.host);
  cores_ = cores_in(host.place);
  key_.threads = host.threads();
  key_.processor = processor_name();
  measures_ = host.first_rank == static_cast<std::size_t>(control.rank());
  if (measures_) own_ = cache_.find(key_).value_or(KnownPeak());
  add_up_hosts();
}

void RunPeak::measure() {
  ++measurements_;
  if (measures_) {
    const BoundToCores bound(cores_);
    const KnownPeak now = quick_peak(key_.dtype, key_.threads);
    cache_.keep(key_, now);
    own_ = {.tflops = std::max(own_.tflops, now.tflops), .undisturbed = own_.undisturbed || now.undisturbed};
  }
  add_up_hosts();
  doubtful_ = false;  // as good as it gets now
}

bool RunPeak::measure_if_worthwhile(double seconds_left, const std::function<void()>& settle) {
  constexpr int kMostMeasurements = 5;
  ++calls_;
  if (!measured_ || !patient_ || calls_ < 2 || !std::has_single_bit(calls_)) return false;
  const bool is_wanted = doubtful_ && seconds_left >= kLongRun && measurements_ < kMostMeasurements;
  if (!any_rank(control_, control_.rank() == 0 && is_wanted)) return false;
  settle();
  measure();
  return true;
}

std::optional<double> RunPeak::part(double tflops) {
  if (tflops_ <= 0.0) return std::nullopt;
  if (tflops <= tflops_) return tflops / tflops_;
  doubtful_ = true;
  return std::nullopt;
}

// The rate of all is known where that of each host is.
void RunPeak::add_up_hosts() {
  const bool unknown = any_rank(control_, measures_ && own_.tflops <= 0.0);
  doubtful_ = any_rank(control_, measures_ && !own_.undisturbed);
  const double sum = sum_of_ranks(control_, measures_ ? own_.tflops : 0.0, Traffic::kOther);
  tflops_ = unknown ? 0.0 : sum;
}

std::string RunPeak::text() const {
  return fmt::format("{:.3g} TFLOP/s ({}, {})", tflops_, name_of(key_.dtype),
                     all_threads_ > 0 ? format_count(all_threads_, "thread") : "as configured");
}

}  // namespace meshtrain

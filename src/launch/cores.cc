#include "launch/cores.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include "base/cores.h"
#include "base/error.h"
#include "comm/agreement.h"
#include "train/threads.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

// The number that a file begins with; `otherwise` if there is none.
int number_in(const fs::path& file, int otherwise) {
  std::ifstream in(file);
  int number = 0;
  return in >> number ? number : otherwise;
}

// A core has a link node3 to its memory node.
int memory_node(const fs::path& core) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(core, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node")) continue;
    const std::string digits = name.substr(4);
    if (!digits.empty() &&
        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      return std::stoi(digits);
    }
  }
  return 0;
}

// What a rank tells the others about where it runs.
constexpr std::int64_t kHostBytes = 256;
constexpr std::int64_t kCoreBytes = 1024;

std::vector<std::uint8_t> place_of(std::span<const int> cores) {
  std::vector<std::uint8_t> place(kHostBytes + kCoreBytes, 0);
  gethostname(reinterpret_cast<char*>(place.data()), kHostBytes - 1);
  for (const int core : cores) {
    const auto byte = static_cast<std::size_t>(kHostBytes + core / 8);
    if (byte < place.size()) place[byte] = static_cast<std::uint8_t>(place[byte] | 1u << (core % 8));
  }
  return place;
}

}  // namespace

std::vector<int> in_order_of_topology(std::vector<int> cores, const fs::path& sysfs) {
  using Place = std::tuple<int, int, int, int>;  // package, node, first thread of the core, core
  std::vector<Place> places;
  for (const int core : cores) {
    const fs::path folder = sysfs / ("cpu" + std::to_string(core));
    places.emplace_back(number_in(folder / "topology/physical_package_id", 0), memory_node(folder),
                        number_in(folder / "topology/thread_siblings_list", core), core);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 0; i < cores.size(); ++i) cores[i] = std::get<3>(places[i]);
  return cores;
}

std::span<const int> share_of_cores(std::span<const int> cores, int share, int shares) {
  const int count = static_cast<int>(cores.size());
  if (count < shares) return {};
  const int base = count / shares;
  const int longer = count % shares;
  return cores.subspan(static_cast<std::size_t>(share * base + std::min(share, longer)),
                       static_cast<std::size_t>(base + (share < longer ? 1 : 0)));
}

int take_cores(std::span<const int> cores, int share, int shares) {
  const std::span<const int> mine = share_of_cores(cores, share, shares);
  if (!mine.empty()) bind_to_cores(mine);
  return threads_by_default(std::max(1, static_cast<int>(mine.size())));
}

int take_cores(World& world) {
  const std::vector<int> cores = available_cores();
  const std::vector<std::uint8_t> mine = place_of(cores);
  const auto bytes = static_cast<std::int64_t>(mine.size());
  const std::vector<std::uint8_t> all =
      gather_from_ranks<std::uint8_t>(*world.everyone("cores"), mine, Traffic::kControl);
  int share = 0;
  int shares = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!std::equal(mine.begin(), mine.end(), all.begin() + rank * bytes)) continue;
    if (rank < world.rank()) ++share;
    ++shares;
  }
  return take_cores(in_order_of_topology(cores), share, shares);
}

}  // namespace meshtrain

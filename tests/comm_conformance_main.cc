// One rank of the conformance suite under an MPI launcher: mpirun -n 4 comm_conformance [quick|full].
#include <cstdio>
#include <exception>
#include <string_view>

#include "comm/engines.h"
#include "comm_conformance.h"

int main(int argc, char** argv) {
  using namespace meshtrain;
  auto extent = testing::Extent::kFull;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "quick") extent = testing::Extent::kQuick;
  }
  try {
    const auto world = make_mpi_world(0, {});
    const std::vector<std::string> failures = testing::run_conformance(*world, extent);
    for (const std::string& failure : failures) std::fprintf(stderr, "%s\n", failure.c_str());
    return failures.empty() ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "comm_conformance: %s\n", e.what());
    return 2;
  }
}

#!/usr/bin/env bash
# Builds everything and runs all tests. Arguments go to ctest, e.g. ./test.sh -R Tokenizer
# Checks that take long carry the label "slow" and are left out; ./test.sh --slow runs them alone.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/install_packages.sh
install_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"

labels=(-LE slow)
if [ "${1:-}" = "--slow" ]; then
  labels=(-L slow)
  shift
fi
cmake --preset release -DMESHTRAIN_TESTS=ON >/dev/null
cmake --build --preset release
ctest --test-dir build/release --output-on-failure -j "$(nproc)" "${labels[@]}" "$@"

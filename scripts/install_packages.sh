# Sourced by quickstart.sh and test.sh: installs the Debian packages named as arguments, those that are
# missing, as root or through sudo.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "These packages are missing and installing them needs root or sudo: ${missing[*]}" >&2
      exit 2
    }
    as_root=(sudo)
  fi
  echo "Installing: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}

BUILD_PACKAGES=(g++ cmake ninja-build ccache pkg-config libdnnl-dev libhwy-dev libcli11-dev libtomlplusplus-dev
  libfmt-dev nlohmann-json3-dev libxxhash-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev
  libopenmpi-dev openmpi-bin)
TEST_PACKAGES=(libgtest-dev git iproute2)

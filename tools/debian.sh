#!/usr/bin/env bash
# Install Debian packages that are missing, or say exactly what to install and fail.
#
#   tools/debian.sh COMMAND:PACKAGE...    a package is missing when its command is not on PATH
set -euo pipefail

look() {  # COMMAND:PACKAGE...
  local pair
  missing=()
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
}

look "$@"
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then as_root=(sudo -n); fi
if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
  echo "missing here; install as root, then try again:  apt-get install ${missing[*]}" >&2
  exit 1
fi

source "$(dirname "$0")/go.sh"
lock "$cache/debian"  # `.ci/run` builds and installs at once, and dpkg waits for nobody
look "$@"
((${#missing[@]})) || exit 0

export DEBIAN_FRONTEND=noninteractive
echo "installing Debian packages: ${missing[*]}" >&2
# An unrelated third-party source that cannot be refreshed must not stop the installation.
"${as_root[@]}" apt-get -qq update </dev/null >&2 9>&- || true
"${as_root[@]}" apt-get -qq -y --no-install-recommends install "${missing[@]}" </dev/null >&2 9>&-

#!/usr/bin/env bash
# Install Debian packages that are missing, or say exactly what to install and fail.
#
#   tools/debian.sh COMMAND:PACKAGE...    a package is missing when its command is not on PATH
set -euo pipefail

missing=()
for pair in "$@"; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then as_root=(sudo -n); fi
if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
  echo "missing here; install as root, then try again:  apt-get install ${missing[*]}" >&2
  exit 1
fi

export DEBIAN_FRONTEND=noninteractive
echo "installing Debian packages: ${missing[*]}" >&2
# An unrelated third-party source that cannot be refreshed must not stop the installation.
"${as_root[@]}" apt-get -qq update </dev/null >&2 || true
"${as_root[@]}" apt-get -qq -y --no-install-recommends install "${missing[@]}" </dev/null >&2

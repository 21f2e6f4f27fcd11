#!/usr/bin/env bash
# Make s5cmd, a client of S3, for bench/micro/weights.py, and print its path.
#
#   tools/s5cmd.sh            build it unless it is there (once per machine, under a minute on two cores)
#   tools/s5cmd.sh --where    print where it is or would be; build nothing
set -euo pipefail
source "$(dirname "$0")/go.sh"

S5CMD=v2.2.2            # github.com/peak/s5cmd

binary=$cache/s5cmd/$S5CMD/s5cmd

if [[ ${1:-} == --where ]]; then echo "$binary"; exit; fi

if [[ -x $binary ]]; then echo "$binary"; exit; fi
lock "$cache/s5cmd"
if [[ -x $binary ]]; then echo "$binary"; exit; fi
begin "$cache/s5cmd" "github.com/peak/s5cmd/v2@$S5CMD"
say "building s5cmd $S5CMD with Go $(go_version); under a minute on two cores, once per machine"

nice go build -trimpath -ldflags "-s -w" -o "$work/built/s5cmd" github.com/peak/s5cmd/v2
"$work/built/s5cmd" version >&2
mkdir -p "$cache/s5cmd/$S5CMD"
mv "$work/built/s5cmd" "$binary"                        # the same file system: it appears whole or not at all
echo "$binary"

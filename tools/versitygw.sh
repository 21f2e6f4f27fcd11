#!/usr/bin/env bash
# Make a real S3 server for the tests of weights, and print its path.
#
#   tools/versitygw.sh            build it unless it is there (once per machine, some two minutes on two cores)
#   tools/versitygw.sh --where    print where it is or would be; build nothing
#   tools/versitygw.sh --built    say by the exit code whether it is there
set -euo pipefail
source "$(dirname "$0")/go.sh"

VERSITYGW=v1.8.0        # github.com/versity/versitygw

binary=$cache/versitygw/$VERSITYGW/versitygw

if [[ ${1:-} == --where ]]; then echo "$binary"; exit; fi
if [[ ${1:-} == --built ]]; then [[ -x $binary ]]; exit; fi

if [[ -x $binary ]]; then echo "$binary"; exit; fi
lock "$cache/versitygw"
if [[ -x $binary ]]; then echo "$binary"; exit; fi
begin "$cache/versitygw" "github.com/versity/versitygw@$VERSITYGW"
say "building versitygw $VERSITYGW with Go $(go_version); about two minutes on two cores, once per machine"

nice go build -trimpath -ldflags "-s -w -X main.Version=$VERSITYGW" -o "$work/built/" github.com/versity/versitygw/cmd/versitygw
"$work/built/versitygw" --version >&2
mkdir -p "$cache/versitygw/$VERSITYGW"
mv "$work/built/versitygw" "$binary"                    # the same file system: it appears whole or not at all
echo "$binary"

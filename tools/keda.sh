#!/usr/bin/env bash
# Make a real KEDA for the tests: its operator, metrics adapter, admission webhooks and CRDs. Print the folder.
#
#   tools/keda.sh            build it unless it is there, and the kube-controller-manager that it needs beside it
#   tools/keda.sh --where    print where it is or would be; build nothing
#   tools/keda.sh --built    say by the exit code whether all of it is there
set -euo pipefail
source "$(dirname "$0")/go.sh"

KEDA=v2.21.0            # github.com/kedacore/keda/v2
COMMANDS=(operator adapter webhooks)

folder=$cache/keda/$KEDA

if [[ ${1:-} == --where ]]; then echo "$folder"; exit; fi
if [[ ${1:-} == --built ]]; then [[ -d $folder && -x $("$tools/envtest.sh" --where kube-controller-manager) ]]; exit; fi

"$tools/envtest.sh" kube-controller-manager >/dev/null
if [[ -d $folder ]]; then echo "$folder"; exit; fi
lock "$cache/keda"
if [[ -d $folder ]]; then echo "$folder"; exit; fi
begin "$cache/keda" "github.com/kedacore/keda/v2@$KEDA"
say "building KEDA $KEDA with Go $(go_version); about ten minutes on two cores, once per machine"

# KEDA pins what it is built from by `replace` lines, and Go heeds those of the main module alone: repeat them.
module=$(go mod download -json "github.com/kedacore/keda/v2@$KEDA")
sed -n 's#^[[:space:]]*\([^[:space:]]*\) => \([^[:space:]]*\) \(v[^[:space:]]*\).*#\1=\2@\3#p' \
  "$(field GoMod <<<"$module")" | while read -r replacement; do
  go mod edit -replace="$replacement"
done

nice go build -trimpath -ldflags "-s -w -X github.com/kedacore/keda/v2/version.Version=${KEDA#v}" \
  -o "$work/built/" "${COMMANDS[@]/#/github.com/kedacore/keda/v2/cmd/}"
source=$(field Dir <<<"$module")
cp -r "$source/config/crd/bases" "$work/built/crds"
cp "$source/config/webhooks/validation_webhooks.yaml" "$work/built/"
chmod -R u+w "$work/built"
mv "$work/built" "$folder"                         # the same file system: it appears whole or not at all
echo "$folder"

#!/usr/bin/env bash
# Make a real helm for the tests of the chart, and print its path.
#
#   tools/helm.sh            build it unless it is there (once per machine, some three minutes on two cores)
#   tools/helm.sh --where    print where it is or would be; build nothing
#   tools/helm.sh --built    say by the exit code whether it is there
set -euo pipefail
source "$(dirname "$0")/go.sh"

HELM=v3.22.0            # helm.sh/helm/v3

binary=$cache/helm/$HELM/helm

if [[ ${1:-} == --where ]]; then echo "$binary"; exit; fi
if [[ ${1:-} == --built ]]; then [[ -x $binary ]]; exit; fi

if [[ -x $binary ]]; then echo "$binary"; exit; fi
lock "$cache/helm"
if [[ -x $binary ]]; then echo "$binary"; exit; fi
begin "$cache/helm" "helm.sh/helm/v3@$HELM"
say "building helm $HELM with Go $(go_version); about three minutes on two cores, once per machine"

# The Kubernetes version that charts are rendered for without a cluster is that of helm's client library: v0.36.x is 1.36.
library=$(go list -m -f '{{.Version}}' k8s.io/client-go)
minor=${library#v0.}
minor=${minor%%.*}
module=helm.sh/helm/v3
stamp="-X $module/internal/version.version=$HELM
       -X $module/pkg/lint/rules.k8sVersionMajor=1
       -X $module/pkg/lint/rules.k8sVersionMinor=$minor
       -X $module/pkg/chartutil.k8sVersionMajor=1
       -X $module/pkg/chartutil.k8sVersionMinor=$minor"
nice go build -trimpath -ldflags "-s -w ${stamp//$'\n'/ }" -o "$work/built/" "$module/cmd/helm"
"$work/built/helm" version >&2
mkdir -p "$cache/helm/$HELM"
mv "$work/built/helm" "$binary"                    # the same file system: it appears whole or not at all
echo "$binary"

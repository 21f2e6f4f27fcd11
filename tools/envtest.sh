#!/usr/bin/env bash
# Make a real kube-apiserver for the tests, in the manner of controller-runtime's envtest, and print its path.
#
#   tools/envtest.sh [COMMAND]          build it unless it is there (once per machine, some five minutes on two cores)
#   tools/envtest.sh --where [COMMAND]  print where it is or would be; build nothing
#
# COMMAND is kube-apiserver (the default) or kube-controller-manager.
# KUBEBUILDER_ASSETS, when set, names a folder with binaries that somebody else provides; then nothing is built.
# etcd is not built: Debian's etcd-server is found on PATH.
set -euo pipefail
source "$(dirname "$0")/go.sh"

KUBERNETES=v1.36.3      # k8s.io/kubernetes; its libraries carry the same numbers as v0.36.3

where=
if [[ ${1:-} == --where ]]; then where=1; shift; fi
command=${1:-kube-apiserver}
binary=${KUBEBUILDER_ASSETS:-$cache/envtest/$KUBERNETES}/$command

if [[ $where || -x $binary ]]; then echo "$binary"; exit; fi
if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
  echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS holds no $command; unset it to have one built" >&2
  exit 1
fi

lock "$cache/envtest"
if [[ -x $binary ]]; then echo "$binary"; exit; fi
begin "$cache/envtest" "k8s.io/kubernetes@$KUBERNETES"
say "building $command $KUBERNETES with Go $(go_version); about five minutes on two cores, once per machine"

# Inside its own repository Kubernetes replaces its libraries by folders (`k8s.io/api => ./staging/...`); a module
# outside has to say which published version each of them is.
kubernetes_mod=$(go mod download -json "k8s.io/kubernetes@$KUBERNETES" | field GoMod)
sed -n 's#^[[:space:]]*\(k8s\.io/[a-z-]*\) => \./staging/.*#\1#p' "$kubernetes_mod" | while read -r library; do
  go mod edit -replace="$library=$library@v0${KUBERNETES#v1}"
done

stamp="-X k8s.io/component-base/version.gitVersion=$KUBERNETES
       -X k8s.io/component-base/version.gitMajor=1
       -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES")
       -X k8s.io/component-base/version.gitTreeState=clean"
nice go build -trimpath -ldflags "-s -w ${stamp//$'\n'/ }" -o "$work/built/" "k8s.io/kubernetes/cmd/$command"
"$work/built/$command" --version >&2
mkdir -p "$cache/envtest/$KUBERNETES"
mv "$work/built/$command" "$binary"                # the same file system: it appears whole or not at all
echo "$binary"

#!/usr/bin/env bash
# Make a real kube-apiserver for the tests, in the manner of controller-runtime's envtest, and print its path.
#
#   tools/envtest.sh            build it unless it is there (once per machine, some five minutes on two cores)
#   tools/envtest.sh --where    print where it is or would be; build nothing
#
# KUBEBUILDER_ASSETS, when set, names a folder with binaries that somebody else provides; then nothing is built.
# The result lies in the user's cache folder, outside the checkout, so `make clean` and a new clone keep it.
# etcd is not built: Debian's etcd-server is found on PATH.
set -euo pipefail

KUBERNETES=v1.36.3      # k8s.io/kubernetes; its libraries carry the same numbers as v0.36.3
GO=1.26.8               # fetched as a Go module where the machine's own Go is older than GO_AT_LEAST
GO_AT_LEAST=1.26.0      # the `go` line of that Kubernetes' go.mod

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vllm-autoscaler/envtest
binary=${KUBEBUILDER_ASSETS:-$cache/$KUBERNETES}/kube-apiserver

if [[ ${1:-} == --where ]]; then echo "$binary"; exit; fi
if [[ -x $binary ]]; then echo "$binary"; exit; fi
if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
  echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS holds no kube-apiserver; unset it to have one built" >&2
  exit 1
fi

say() { echo "envtest: $*" >&2; }

mkdir -p "$cache/$KUBERNETES"
exec 9>"$cache/lock"
flock 9                                            # two checkouts on one machine build once
if [[ -x $binary ]]; then echo "$binary"; exit; fi

work=$(mktemp -d "$cache/build.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# A go line newer than the machine's Go must never start a download on its own; the choice is made here, in sight.
export GOTOOLCHAIN=local GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0

at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

go_version() { go env GOVERSION | sed 's/^go//'; }

# Debian 12 carries Go 1.19. Newer Go releases are themselves Go modules, checked against the public checksum
# database, so an old Go can fetch a new one. Modules lose their execute bits: put them back in a copy.
fetch_go() {
  local platform module dir
  platform=$(go env GOOS)-$(go env GOARCH)
  module=golang.org/toolchain@v0.0.1-go$GO.$platform
  say "Go $(go_version) is older than $GO_AT_LEAST; fetching Go $GO"
  (cd "$work" && go mod download -json "$module" >toolchain.json)
  dir=$(sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p' "$work/toolchain.json")
  cp -r "$dir" "$work/go"
  chmod -R u+w "$work/go"
  chmod +x "$work"/go/bin/* "$work"/go/pkg/tool/*/*
  export PATH=$work/go/bin:$PATH GOROOT=$work/go
}

"$here/debian.sh" go:golang-go
at_least "$GO_AT_LEAST" "$(go_version)" || fetch_go

say "building kube-apiserver $KUBERNETES with Go $(go_version); about five minutes on two cores, once per machine"
mkdir "$work/module"
cd "$work/module"
go mod init vllm-autoscaler.io/envtest 2>/dev/null
go mod edit -go="$GO_AT_LEAST" -require="k8s.io/kubernetes@$KUBERNETES"

# Inside its own repository Kubernetes replaces its libraries by folders (`k8s.io/api => ./staging/...`); a module
# outside has to say which published version each of them is.
kubernetes_mod=$(go mod download -json "k8s.io/kubernetes@$KUBERNETES" |
  sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",\{0,1\}$/\1/p')
sed -n 's#^[[:space:]]*\(k8s\.io/[a-z-]*\) => \./staging/.*#\1#p' "$kubernetes_mod" | while read -r library; do
  go mod edit -replace="$library=$library@v0${KUBERNETES#v1}"
done

stamp="-X k8s.io/component-base/version.gitVersion=$KUBERNETES
       -X k8s.io/component-base/version.gitMajor=1
       -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES")
       -X k8s.io/component-base/version.gitTreeState=clean"
nice go build -trimpath -ldflags "-s -w ${stamp//$'\n'/ }" -o "$work/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
"$work/kube-apiserver" --version >&2
mv "$work/kube-apiserver" "$binary"                # the same file system: it appears whole or not at all
echo "$binary"

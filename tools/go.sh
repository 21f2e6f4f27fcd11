# Sourced by the scripts that install what the tests need: most build other people's commands from their Go modules.
#
# What is built lies in the user's cache folder, outside the checkout, so `make clean` and a new clone keep it.

GO=1.26.8               # fetched as a Go module where the machine's own Go is older than GO_AT_LEAST
GO_AT_LEAST=1.26.0      # the highest `go` line of the modules that are built

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vllm-autoscaler

say() { echo "$(basename "$0" .sh): $*" >&2; }

at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

go_version() { go env GOVERSION | sed 's/^go//'; }

# field NAME: the value of one string in the JSON that `go mod download -json` prints.
field() { sed -n "s/^[[:space:]]*\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p"; }

# Debian 12 carries Go 1.19. Newer Go releases are themselves Go modules, checked against the public checksum
# database, so an old Go can fetch a new one. Modules lose their execute bits: put them back in a copy.
fetch_go() {
  local module dir
  module=golang.org/toolchain@v0.0.1-go$GO.$(go env GOOS)-$(go env GOARCH)
  say "Go $(go_version) is older than $GO_AT_LEAST; fetching Go $GO"
  dir=$(cd "$work" && go mod download -json "$module" | field Dir)
  cp -r "$dir" "$work/go"
  chmod -R u+w "$work/go"
  chmod +x "$work"/go/bin/* "$work"/go/pkg/tool/*/*
  export PATH=$work/go/bin:$PATH GOROOT=$work/go
}

# lock FOLDER: take the folder's lock until the script ends, so that two checkouts on one machine build once.
lock() {
  mkdir -p "$1"
  exec 9>"$1/lock"
  flock 9
}

# begin FOLDER MODULE@VERSION: have Go, and stand in a new module below FOLDER that requires this one.
begin() {
  work=$(mktemp -d "$1/build.XXXXXX")
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  # A go line newer than the machine's Go must never start a download on its own; the choice is made here, in sight.
  export GOTOOLCHAIN=local GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
  "$tools/debian.sh" go:golang-go
  at_least "$GO_AT_LEAST" "$(go_version)" || fetch_go
  mkdir "$work/module" "$work/built"
  cd "$work/module"
  go mod init vllm-autoscaler.io/built 2>/dev/null
  go mod edit -go="$GO_AT_LEAST" -require="$2"
}

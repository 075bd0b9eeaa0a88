#!/bin/sh
# Builds containerd, its shim, ctr and crictl for tests, from the Go module proxy: minutes, once.
#   scripts/containerd.sh VERSION      such as v2.3.7, into $XDG_CACHE_HOME/weir/containerd/VERSION (~/.cache/...)
# Prints the directory. Debian 12 has containerd 1.6, whose pulls take another way.
set -eu
version=${1:?the version is missing: scripts/containerd.sh v2.3.7}
crictl=v1.34.0
dir=${XDG_CACHE_HOME:-$HOME/.cache}/weir/containerd/$version
command -v go >/dev/null || { echo "containerd: go is missing: install Go 1.24 or later (https://go.dev/dl)" >&2; exit 1; }
is_whole() { [ -x "$dir/containerd" ] && [ -x "$dir/containerd-shim-runc-v2" ] && [ -x "$dir/ctr" ] && [ -x "$dir/crictl" ]; }
if ! is_whole; then
	echo "containerd: building $version and crictl $crictl" >&2
	mkdir -p "$dir"
	export CGO_ENABLED=0 GOFLAGS=-trimpath
	GOBIN="$dir" go install "sigs.k8s.io/cri-tools/cmd/crictl@$crictl" >&2
	# `go install` refuses containerd's go.mod, because it excludes versions. Its `vendor` is not whole in the proxy.
	told=$(go mod download -json "github.com/containerd/containerd/v2@$version")
	source=$(echo "$told" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	[ -n "$source" ] || { echo "containerd: go mod download names no Dir of $version: $told" >&2; exit 1; }
	for program in containerd containerd-shim-runc-v2 ctr; do
		go build -C "$source" -mod=readonly -buildvcs=false -o "$dir/$program" "./cmd/$program" >&2
	done
fi
echo "$dir"

#!/bin/sh
# Builds nfpm, which makes packages, from the Go module proxy: minutes, once. Prints the program.
set -eu
version=v2.45.2
dir=${XDG_CACHE_HOME:-$HOME/.cache}/weir/nfpm/$version
if [ ! -x "$dir/nfpm" ]; then
	command -v go >/dev/null || { echo "nfpm: go is missing: install Go 1.24 or later (https://go.dev/dl)" >&2; exit 1; }
	echo "nfpm: building $version" >&2
	mkdir -p "$dir"
	CGO_ENABLED=0 GOFLAGS=-trimpath GOBIN="$dir" go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$version" >&2
fi
echo "$dir/nfpm"

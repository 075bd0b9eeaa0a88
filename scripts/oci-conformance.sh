#!/bin/sh
# The OCI distribution specification's conformance programme on pulls from `weir image serve`: it pushes all
# of its data sets to a reference registry (oci-registry.py), and each GET and HEAD goes through weir. Then
# a client reads a list of 250 tags in pages, by both of the names that weir knows.
#
#   scripts/oci-conformance.sh [PROGRAM]    # PROGRAM: the conformance programme, if it is built already
#
# Without PROGRAM, Go (1.24 or later) builds it. Needs root, python3, curl; WEIR_BIN or target/release/weir.
# Ends with `N passed, N failed`.
set -eu
module=github.com/opencontainers/distribution-spec/conformance@v0.0.0-20260831232431-97274622c111
skip() { printf 'oci-conformance: SKIPPED: %s\n0 passed, 0 failed, 1 skipped\n' "$1"; exit 0; }
here=$(realpath "$(dirname "$0")")
weir=$(realpath "${WEIR_BIN:-target/release/weir}")
for program in python3 curl unshare "$weir"; do
    command -v "$program" >/dev/null || { echo "oci-conformance: $program is missing" >&2; exit 1; }
done
if [ -z "${CONFORMANCE_INSIDE:-}" ]; then
    tests=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/weir/oci-conformance/conformance}
    if [ ! -x "$tests" ]; then
        [ $# = 0 ] || { echo "oci-conformance: there is no program $tests" >&2; exit 1; }
        PATH=$PATH:/usr/local/go/bin:$HOME/go/bin
        command -v go >/dev/null || skip "no Go here, and the system's packages have none of 1.24 or later"
        GOBIN=$(dirname "$tests") go install "$module" >&2 || skip "Go cannot build $module, see above"
    fi
    exec env CONFORMANCE_INSIDE=1 unshare --net -- "$0" "$(realpath "$tests")"
fi
tests=$1
ip link set dev lo up
dir=$(mktemp -d)
pids=""
# shellcheck disable=SC2086 # a list of words
trap 'kill $pids 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
await() { for _ in $(seq 300); do curl -sf -o /dev/null "$1" && return; sleep 0.1; done; tail -qn 3 "$dir"/*.log >&2; exit 1; }

# 5000: the registry. 5050: weir. 5060: pushes to the registry, pulls through weir.
python3 "$here/oci-registry.py" 5000 5060 5050 registry.example >"$dir/registry.log" 2>&1 & pids="$pids $!"
mkdir "$dir/weir"
cat >"$dir/weir.toml" <<END
[images]
budget = "256MiB"
keep_free = "0"
directory = "$dir/weir/images"
proxy = ""
tag_ttl_s = 0
[[images.upstream]]
registry = "registry.example"
url = "http://127.0.0.1:5000"
END
"$weir" --socket "$dir/weir.sock" image serve --config "$dir/weir.toml" >"$dir/weir.log" 2>&1 & pids="$pids $!"
await http://127.0.0.1:5000/v2/
await http://127.0.0.1:5050/v2/
cd "$dir"

# weir passes on what is pulled; to delete is for the registry alone.
judge() { # PORT: prints what the programme says, sets passed and failed
    mkdir "$dir/results-$1"
    OCI_RESULTS_DIR=$dir/results-$1 OCI_REGISTRY=127.0.0.1:$1 OCI_TLS=disabled \
        OCI_REPO1=conformance/one OCI_REPO2=conformance/two OCI_API_BLOBS_DELETE=false \
        OCI_API_MANIFESTS_DELETE=false OCI_API_TAGS_DELETE=false \
        timeout 300 "$tests" >"$dir/said-$1" 2>&1 || true
    passed=$(sed -n 's/^  Pass\.*: *\([0-9]*\)$/\1/p' "$dir/said-$1")
    failed=$(sed -n 's/^  FAIL\.*: *\([0-9]*\)$/\1/p' "$dir/said-$1")
    if [ -z "$passed" ] || [ -z "$failed" ]; then
        tail -n 20 "$dir/said-$1" >&2
        echo "oci-conformance: the programme came to no end" >&2
        exit 1
    fi
    grep ': FAIL$' "$dir/said-$1" || true
}
judge 5060
echo "conformance, pulled through weir: $passed passed, $failed failed"
if [ "$passed" -lt 500 ]; then
    echo "oci-conformance: $passed of at least 500 tests passed: data sets were left out" >&2
    failed=$((failed + 1))
fi

# Pages: a registry that gives 100 tags at once, and a client that follows the links.
for n in $(seq -w 250); do
    echo "url = http://127.0.0.1:5000/v2/many/tags/manifests/v$n"
    echo 'request = PUT'
    echo 'data-binary = "{\"schemaVersion\":2}"'
    echo 'header = "content-type: application/vnd.oci.image.manifest.v1+json"'
    echo 'next'
done | sed '$d' | curl -sf -o /dev/null -K -
pages() { # PATH: all tags of all pages, by the links
    at=$1
    while [ -n "$at" ]; do
        curl -sf -D "$dir/head" "http://127.0.0.1:5050$at" | grep -o '"v[0-9]*"'
        at=$(tr -d '\r' <"$dir/head" | sed -n 's/^link: <\(\/[^>]*\)>; rel="next"$/\1/Ip')
    done
}
for list in /v2/registry.example/many/tags/tags/list "/v2/many/tags/tags/list?ns=registry.example"; do
    read=$(pages "$list" | sort -u | wc -l)
    echo "tags through weir, $list: $read of 250"
    if [ "$read" = 250 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

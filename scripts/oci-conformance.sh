#!/bin/sh
# What the OCI distribution specification's conformance tests say of pulls from `weir image serve`: an image
# and an index in Debian's docker-registry, pulled from behind the cache, in one network namespace. Also
# pulls them with crane, if it is there.
#
#   scripts/oci-conformance.sh PROGRAM      # of a clone of github.com/opencontainers/distribution-spec:
#                                           # cd conformance && go build
#
# Needs root; docker-registry, skopeo and curl from Debian; WEIR_BIN or target/release/weir.
set -eu
tests=$(realpath "${1:?the conformance program}")
weir=$(realpath "${WEIR_BIN:-target/release/weir}")
for program in docker-registry skopeo curl "$tests" "$weir"; do
    command -v "$program" >/dev/null || { echo "oci-conformance: $program is missing" >&2; exit 1; }
done
if [ -z "${CONFORMANCE_INSIDE:-}" ]; then
    exec env CONFORMANCE_INSIDE=1 unshare --net -- "$0" "$tests"
fi
ip link set dev lo up
dir=$(mktemp -d)
pids=""
trap 'kill $pids 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
await() { for _ in $(seq 300); do curl -sf -o /dev/null "$1" && return; sleep 0.1; done; tail -qn 3 "$dir"/*.log >&2; exit 1; }

# An image of two layers, and an index of it.
mkdir -p "$dir/made/blobs/sha256" "$dir/weir"
add() { # FILE KIND: into the layout, as a descriptor
    hex=$(sha256sum "$1" | cut -d' ' -f1) bytes=$(stat -c %s "$1")
    mv "$1" "$dir/made/blobs/sha256/$hex"
    printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s}' "$2" "$hex" "$bytes"
}
digest() { echo "$1" | grep -o 'sha256:[0-9a-f]*' | head -n 1; }
for n in 1 2; do
    head -c "$((n * 300000))" /dev/urandom >"$dir/noise"
    tar -cf "$dir/layer" -C "$dir" noise
    eval "id$n=sha256:$(sha256sum "$dir/layer" | cut -d' ' -f1)"
    gzip -n -f "$dir/layer"
    eval "layer$n=\$(add \"$dir/layer.gz\" layer.v1.tar+gzip)"
done
printf '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["%s","%s"]}}' "$id1" "$id2" >"$dir/text"
config=$(add "$dir/text" config.v1+json)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s,%s]}' "$config" "$layer1" "$layer2" >"$dir/text"
image=$(add "$dir/text" manifest.v1+json)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' \
    "$(echo "$image" | sed 's/}$/,"platform":{"architecture":"amd64","os":"linux"}}/')" >"$dir/text"
index=$(add "$dir/text" index.v1+json)
printf '{"schemaVersion":2,"manifests":[%s]}' "$index" >"$dir/made/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$dir/made/oci-layout"
printf 'version: 0.1\nlog: {level: error}\nhttp: {addr: "127.0.0.1:5000"}\nstorage: {filesystem: {rootdirectory: %s/data}}\n' "$dir" >"$dir/registry.yml"
docker-registry serve "$dir/registry.yml" >"$dir/registry.log" 2>&1 & pids="$pids $!"
await http://127.0.0.1:5000/v2/
skopeo --insecure-policy copy --all --preserve-digests --dest-tls-verify=false "oci:$dir/made" docker://127.0.0.1:5000/acme/app:1 >/dev/null

cat >"$dir/weir.toml" <<END
[images]
budget = "256MiB"
keep_free = "0"
directory = "$dir/weir/images"
proxy = ""
[[images.upstream]]
registry = "registry.example"
url = "http://127.0.0.1:5000"
END
"$weir" --socket "$dir/weir.sock" image serve --config "$dir/weir.toml" 2>"$dir/weir.log" & pids="$pids $!"
await http://127.0.0.1:5050/v2/
if command -v crane >/dev/null; then
    crane pull --insecure 127.0.0.1:5050/registry.example/acme/app:1 "$dir/pulled.tar"
    crane validate --insecure --remote 127.0.0.1:5050/registry.example/acme/app:1
fi
mkdir "$dir/results"
cd "$dir"
# Debian's registry knows no referrers, so there are none to relay. That digests are in headers the program
# looks up only for content that it has pushed: they are looked at below.
OCI_RESULTS_DIR=$dir/results OCI_REGISTRY=127.0.0.1:5050 OCI_TLS=disabled OCI_REPO1=registry.example/acme/app \
    OCI_API_PUSH=false OCI_API_BLOBS_DELETE=false OCI_API_MANIFESTS_DELETE=false OCI_API_TAGS_DELETE=false \
    OCI_API_BLOBS_MOUNT_ANONYMOUS=false OCI_API_REFERRER=false OCI_API_BLOBS_DIGEST_HEADER=true \
    OCI_RO_DATA_TAGS=1 OCI_RO_DATA_MANIFESTS="$(digest "$index") $(digest "$image")" \
    OCI_RO_DATA_BLOBS="$(digest "$config") $(digest "$layer1") $(digest "$layer2")" \
    "$tests" >"$dir/said" 2>&1 || true
# Some versions of it fail while they write their report, after all is judged.
sed '/^panic:/,$d' "$dir/said"
for reference in 1 "$(digest "$index")"; do
    curl -sfI "http://127.0.0.1:5050/v2/registry.example/acme/app/manifests/$reference" |
        grep -i "^docker-content-digest: $(digest "$index")"
done
grep -q '^OCI Conformance Result: Pass' "$dir/said"

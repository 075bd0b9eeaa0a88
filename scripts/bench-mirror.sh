#!/bin/sh
# How fast `weir image serve` serves a blob that it has, beside nginx with sendfile and the same file,
# in turns, in one network namespace: medians, their ratio, processor time, and weir's memory.
#
#   scripts/bench-mirror.sh [MiB of the blob, 512] [rounds, 9]
#
# Needs root; docker-registry, skopeo, nginx and curl from Debian; WEIR_BIN or target/release/weir.
set -eu
size=${1:-512} rounds=${2:-9}
weir=$(realpath "${WEIR_BIN:-target/release/weir}")
for program in docker-registry skopeo nginx curl "$weir"; do
    command -v "$program" >/dev/null || { echo "bench-mirror: $program is missing" >&2; exit 1; }
done
if [ -z "${BENCH_INSIDE:-}" ]; then
    exec env BENCH_INSIDE=1 unshare --net -- "$0" "$size" "$rounds"
fi
ip link set dev lo up
dir=$(mktemp -d)
pids=""
trap 'kill $pids 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
started() { pids="$pids $!"; }
await() { for _ in $(seq 100); do curl -sf -o /dev/null "$1" && return; sleep 0.1; done; tail -qn 3 "$dir"/*.log >&2; echo "bench-mirror: no answer from $1" >&2; exit 1; }

# An image with one layer, in a registry.
mkdir -p "$dir/made/blobs/sha256" "$dir/tree" "$dir/weir"
add() { # FILE KIND: into the layout, as a descriptor
    hex=$(sha256sum "$1" | cut -d' ' -f1) bytes=$(stat -c %s "$1")
    mv "$1" "$dir/made/blobs/sha256/$hex"
    printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s}' "$2" "$hex" "$bytes"
}
head -c "${size}M" /dev/urandom >"$dir/tree/noise"
tar -cf "$dir/layer" -C "$dir/tree" noise
layer=$(add "$dir/layer" layer.v1.tar)
digest=$(echo "$layer" | grep -o 'sha256:[0-9a-f]*')
rm -r "$dir/tree"
printf '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["%s"]}}' "$digest" >"$dir/text"
config=$(add "$dir/text" config.v1+json)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' "$config" "$layer" >"$dir/text"
manifest=$(add "$dir/text" manifest.v1+json)
printf '{"schemaVersion":2,"manifests":[%s]}' "$manifest" >"$dir/made/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$dir/made/oci-layout"
printf 'version: 0.1\nlog: {level: error}\nhttp: {addr: "127.0.0.1:5000"}\nstorage: {filesystem: {rootdirectory: %s/data}}\n' "$dir" >"$dir/registry.yml"
docker-registry serve "$dir/registry.yml" >"$dir/registry.log" 2>&1 & started
await http://127.0.0.1:5000/v2/
skopeo --insecure-policy copy --preserve-digests --dest-tls-verify=false "oci:$dir/made" docker://127.0.0.1:5000/a/b:1 >/dev/null

cat >"$dir/weir.toml" <<END
[images]
budget = "$((4 * size + 256))MiB"
keep_free = "0"
directory = "$dir/weir/images"
[[images.upstream]]
registry = "registry.example"
url = "http://127.0.0.1:5000"
END
"$weir" --socket "$dir/weir.sock" image serve --config "$dir/weir.toml" 2>"$dir/weir.log" & started
served=$!
await http://127.0.0.1:5050/v2/
peak() { awk '/VmHWM/ { print int($2 / 1024 + 0.5) }' /proc/$served/status; }
echo "weir at rest: $(peak) MiB"
"$weir" --socket "$dir/weir.sock" image warm registry.example/a/b:1 >/dev/null
echo "weir after the download: peak $(peak) MiB"

# The very file that weir sends.
hex=${digest#sha256:}
cat >"$dir/nginx.conf" <<END
daemon off; pid $dir/nginx.pid; error_log $dir/nginx.log; worker_processes 1; user root;
events {}
http {
    access_log off; sendfile on; tcp_nopush on;
    client_body_temp_path $dir; proxy_temp_path $dir; fastcgi_temp_path $dir; uwsgi_temp_path $dir; scgi_temp_path $dir;
    server { listen 127.0.0.1:8080; root $dir/weir/images/blobs/sha256; }
}
END
nginx -c "$dir/nginx.conf" & started
master=$!
await "http://127.0.0.1:8080/$(echo "$hex" | cut -c1-2)/$hex"
worker=$(cat /proc/$master/task/$master/children | tr -d ' ')

# Clock ticks of a process.
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
fetch() { curl -sf -o /dev/null -w '%{speed_download}\n' "$1"; }
a="http://127.0.0.1:5050/v2/a/b/blobs/$digest?ns=registry.example" b="http://127.0.0.1:8080/$(echo "$hex" | cut -c1-2)/$hex"
fetch "$a" >/dev/null; fetch "$b" >/dev/null
weir_before=$(ticks $served) nginx_before=$(ticks "$worker")
for _ in $(seq "$rounds"); do
    fetch "$a" >>"$dir/a"
    fetch "$b" >>"$dir/b"
done
weir_ticks=$(($(ticks $served) - weir_before)) nginx_ticks=$(($(ticks "$worker") - nginx_before))
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print int(v[int((NR + 1) / 2)] / 1048576) }'; }
x=$(median "$dir/a") y=$(median "$dir/b")
echo "a hit, one client: weir $x MiB/s, nginx $y MiB/s, ratio $(awk "BEGIN { printf \"%.2f\", $x / $y }")"
echo "processor time of the server: weir $weir_ticks, nginx $nginx_ticks ticks of $(getconf CLK_TCK) a second"
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do fetch "$a" >/dev/null & clients="${clients:-} $!"; done
wait $clients
echo "weir after 20 clients at once: peak $(peak) MiB"

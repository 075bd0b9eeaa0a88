#!/usr/bin/env bash
# The dashboard of a real agent in a network namespace, driven in headless Chromium. Needs root, chromium, node and npm
# (`scripts/install-deps.sh dashboard`). PICTURES names a directory for screenshots.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in node npm chromium ip; do
	command -v $program >/dev/null || { echo "$program is missing: scripts/install-deps.sh dashboard"; exit 1; }
done
weir=${WEIR_BIN:-$PWD/target/debug/weir}
[ -d testing/dashboard/node_modules ] || PUPPETEER_SKIP_DOWNLOAD=1 npm --prefix testing/dashboard ci --no-audit --no-fund
work=$(mktemp -d)
net=weirdash$$
port=18080
forward=

finish() {
	local code=$?
	[ "$code" = 0 ] || tail -n 20 "$work/agent.log" || true
	[ -z "$forward" ] || kill "$forward" 2>/dev/null || true
	[ ! -e "$work/pid" ] || kill "$(cat "$work/pid")" 2>/dev/null || true
	sleep 1
	ip netns delete "$net" 2>/dev/null || true
	rm -rf "$work"
	exit "$code"
}
trap finish EXIT

ip netns add "$net"
ip -n "$net" link set lo up
for pair in up0:far0 c1:p1 c2:p2; do
	ip -n "$net" link add "${pair%:*}" type veth peer name "${pair#*:}"
	ip -n "$net" link set "${pair%:*}" up
	ip -n "$net" link set "${pair#*:}" up
done
ip -n "$net" address add 192.0.2.1/24 dev up0
cat >"$work/weir.toml" <<EOF
[link]
device = "up0"
capacity = "100mbit"
engine = "htb"
[agent]
socket = "$work/weir.sock"
state = "$work/state"
[discover]
docker = false
netns = false
[agreements]
[[class]]
name = "web"
interface = "c1"
weight = 3
min = "20mbit"
[[class]]
name = "video"
interface = "c2"
[[class]]
name = "camera"
interface = "c9"
EOF
cat >"$work/start" <<EOF
#!/bin/sh
[ ! -e "$work/pid" ] || { kill "\$(cat "$work/pid")"; sleep 3; }
ip netns exec "$net" "$weir" agent -c "$work/weir.toml" >>"$work/agent.log" 2>&1 </dev/null &
echo \$! >"$work/pid"
EOF
chmod +x "$work/start"
"$work/start"
for _ in $(seq 100); do [ -S "$work/weir.sock" ] && break; sleep 0.1; done
node testing/dashboard/forward.mjs $port "$work/weir.sock" &
forward=$!
sleep 1
timeout 300 node testing/dashboard/drive.mjs "http://127.0.0.1:$port" "$work/start" "${PICTURES:-}"

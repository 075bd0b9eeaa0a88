# Sourced by tests that drive the API of a real agent. It makes a network namespace with a link and two containers'
# interfaces, writes the configuration, and starts the agent. $more has more sections of it. Sets $weir, $work (unless it is
# set) and $net. "$work/start" starts the agent again, after it has stopped the present one. All of it goes at the end.
weir=${WEIR_BIN:-$PWD/target/debug/weir}
work=${work:-$(mktemp -d)}
net=weirapi$$

finish() {
	local code=$?
	[ "$code" = 0 ] || tail -n 20 "$work/agent.log" || true
	# Processes of the test itself.
	jobs -p | xargs -r kill 2>/dev/null || true
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
${more:-}
[[class]]
name = "web"
interface = "c1"
weight = 3
min = "20mbit"
[[class]]
name = "video"
interface = "c2"
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

#!/usr/bin/env bash
# Measures a program of weir on this machine: its size, the time until its agent answers, and its memory.
#   scripts/footprint.sh PROGRAM [CONTAINERS]      as root; 100 containers unless said otherwise
# The containers are veth interfaces in a network namespace of its own. The agent of engine htb shares 100 Mbit/s.
set -euo pipefail
weir=$(realpath "${1:?the program}") many=${2:-100} starts=5
net=weirsize$$ work=$(mktemp -d)

finish() {
	local code=$?
	[ "$code" = 0 ] || tail -n 5 "$work/agent.log" 2>/dev/null || true
	stop
	ip netns delete "$net" 2>/dev/null || true
	rm -rf "$work"
	exit "$code"
}
stop() {
	[ -e "$work/pid" ] || return 0
	kill "$(cat "$work/pid")" 2>/dev/null || true
	wait "$(cat "$work/pid")" 2>/dev/null || true
	rm -f "$work/pid"
}
trap finish EXIT

# Starts the agent, and sets $took to the milliseconds until it answers. A call of the program itself is included.
start() {
	local begin=${EPOCHREALTIME/./} i
	ip netns exec "$net" "$weir" agent -c "$work/weir.toml" >>"$work/agent.log" 2>&1 &
	echo $! >"$work/pid"
	for i in $(seq 3000); do
		"$weir" --socket "$work/weir.sock" ps >"$work/ps" 2>/dev/null && break
		kill -0 "$(cat "$work/pid")" || { echo "footprint: the agent ended" >&2; return 1; }
	done
	[ "$(grep -c "c[0-9]" "$work/ps")" -ge "$1" ] || { echo "footprint: ps shows fewer than $1 classes" >&2; return 1; }
	took=$(((${EPOCHREALTIME/./} - begin) / 1000))
}

memory() {
	awk '/^VmRSS/ { all = $2 } /^RssAnon/ { own = $2 } END { printf "%.1f MiB, of which %.1f of its own data", all / 1024, own / 1024 }' \
		"/proc/$(cat "$work/pid")/status"
}

ip netns add "$net"
ip -n "$net" link set lo up
ip -n "$net" link add up0 type veth peer name far0
ip -n "$net" link set up0 up
ip -n "$net" link set far0 up
ip -n "$net" address add 192.0.2.1/24 dev up0
for count in 1 "$many"; do
	cat >"$work/weir.toml" <<-EOF
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
	EOF
	for i in $(seq "$count"); do
		ip -n "$net" link show "c$i" >"$work/link" 2>/dev/null || {
			ip -n "$net" link add "c$i" type veth peer name "p$i"
			ip -n "$net" link set "c$i" up
			ip -n "$net" link set "p$i" up
		}
		printf '[[class]]\nname = "c%s"\ninterface = "c%s"\n' "$i" "$i" >>"$work/weir.toml"
	done
	times=()
	for _ in $(seq "$starts"); do
		stop
		start "$count"
		times+=("$took")
	done
	sleep 10
	printf '%s classes: the agent answers after %s ms (of %s starts), resident %s\n' "$count" \
		"$(printf '%s\n' "${times[@]}" | sort -n | sed -n "$((starts / 2 + 1))p")" "$starts" "$(memory)"
	stop
done
printf '%s: %s MiB\n' "$("$weir" --version)" "$(stat -c %s "$weir" | awk '{ printf "%.1f", $1 / 1048576 }')"

# The common part of the scripts of guests with systemd: steps that pass or fail, times, and the far end of the link.
set -uo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C TERM=dumb COLUMNS=200 SYSTEMD_COLORS=0
cd /
# systemd 257 has reset the terminal, and its escape sequence is the beginning of a line.
echo
passed=0
code=1
pass() { passed=$((passed + 1)); echo "ok: $*"; }
fail() {
	echo "weir-test: $*"
	journalctl --no-pager --lines 40 --output short-monotonic
	exit 1
}
now() { cut -d' ' -f1 /proc/uptime; }
end() {
	echo "weir-vm: job ended with $code, $(now) s"
	systemctl poweroff --force --force
}
trap end EXIT
# The time between two moments, and whether a figure lies between two others.
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f", to - from }'; }
within() { awk -v got="${1:-nan}" -v least="$2" -v most="$3" 'BEGIN { exit !(got + 0 >= least && got + 0 <= most && got != "nan") }'; }
# waited_for SECONDS COMMAND...
waited_for() {
	local tries=$(($1 * 5))
	shift
	while ! "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		sleep 0.2
	done
}
quietly() { "$@" >/test/log 2>&1 || { cat /test/log; fail "\`$*\` failed"; }; }

# The far end of the uplink eth0 is a namespace of process $far, and has the address 198.51.100.1.
far=
make_far_end() {
	echo 1 >/proc/sys/net/ipv4/ip_forward
	unshare --net sleep infinity &
	far=$!
	waited_for 5 test -n "$(readlink /proc/$far/ns/net)"
	sleep 0.5
	ip link add eth0 type veth peer name far0 netns $far
	ip address add 198.51.100.2/24 dev eth0
	ip link set eth0 up
	nsenter --target $far --net sh -c 'ip link set lo up; ip address add 198.51.100.1/24 dev far0; ip link set far0 up
		ip route add default via 198.51.100.2'
	ip route add default via 198.51.100.1
}

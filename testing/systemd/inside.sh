#!/bin/bash
# The steps of scripts/test-systemd.sh, a service of the guest.
#
# Namespaces `web`, `db` and `probe` send by this node's uplink eth0 to a far end, which counts. `web` sends 4 Mbit/s and
# may have 2, `db` sends all that it can, and `probe` 0.4 Mbit/s. The guest's time is virtual: seconds without work pass at once.
source /test/common.sh
property() { systemctl show --property "$2" --value "$1"; }
is_active() { [ "$(property weir.service ActiveState)" = active ]; }
# A new process is active.
is_replaced() { is_active && [ "$(property weir.service MainPID)" != "$1" ]; }
# Every main process of a unit, for the look at what was refused to it.
declare -A agents=()
note() { agents[$1]+=" $(property "$1" MainPID)"; }

# The files without those of the kernel, of this test, of dpkg, and of systemd's own records.
files() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /test -o -path /var/tmp -o -path /var/lib/dpkg \
		-o -path /var/lib/apt -o -path /var/log -o -path /var/cache -o -path /var/lib/systemd -o -path '/etc/*-' -o -path /etc/.pwd.lock \) \
		-prune -o -printf '%p %y %m %u %g\n' | sort
}
accounts() { cat /etc/passwd /etc/group /etc/shadow /etc/gshadow; }
# Devices, queues, and programs but for those of systemd's own cgroups.
network() {
	ip -o link | sed 's/^[0-9]*: //; s/[@:].*//' | sort
	tc qdisc show | sort
	{ bpftool prog show | sed -n 's/^[0-9]*: //p' | grep -v 'name sd_' || true; } | sed 's/  *tag.*//' | sort
}

traffic=/test/traffic.py
counted=/test/counted
senders=()
begin_traffic() {
	[ ${#senders[@]} -eq 0 ] || return 0
	ip netns exec web python3 $traffic send 198.51.100.1 5001 4000000 & senders+=($!)
	ip netns exec db python3 $traffic send 198.51.100.1 5002 12000000 & senders+=($!)
	ip netns exec probe python3 $traffic send 198.51.100.1 5003 400000 & senders+=($!)
}
end_traffic() {
	kill "${senders[@]}" && wait "${senders[@]}" 2>/dev/null
	senders=()
}
of() { python3 $traffic "$1" $counted "${@:2}"; }
# Whether the last seconds have the shares: web its maximum, db the rest of the link.
shares_hold() {
	local to from web db
	sleep "$1"
	to=$(now)
	from=$(awk -v to="$to" -v back="$1" 'BEGIN { print to - back }')
	web=$(of rate 5001 "$from" "$to") db=$(of rate 5002 "$from" "$to")
	shares="web has $web of 2 Mbit/s, and db $db of 7.6"
	within "$web" 1.9 2.1 && within "$db" 7.0 8.0
}

make_network() {
	make_far_end
	local name number=1
	for name in web db probe; do
		ip netns add $name
		ip link add in-$name type veth peer name eth0 netns $name
		ip address add 10.0.$number.1/24 dev in-$name
		ip link set in-$name up
		ip -n $name address add 10.0.$number.2/24 dev eth0
		ip -n $name link set eth0 up
		ip -n $name route add default via 10.0.$number.1
		number=$((number + 1))
	done
	nsenter --target $far --net python3 $traffic count $counted 5001 5002 5003 &
}

# The kernel's record of calls that fail by EPERM, EACCES or EROFS, as those that the units refuse do.
trace=/sys/kernel/tracing
watch_refusals() {
	mountpoint -q $trace || mount -t tracefs tracefs $trace
	echo 1 >$trace/options/record-tgid
	echo 4096 >$trace/buffer_size_kb
	echo 'ret == -1 || ret == -13 || ret == -30' >$trace/events/raw_syscalls/sys_exit/filter
	echo 1 >$trace/events/raw_syscalls/sys_exit/enable
}

[ "$(cat /proc/1/comm)" = systemd ] && [ "$(systemctl is-system-running --wait)" = running ] || { systemctl --failed --no-pager; fail "the guest has units that failed before the package"; }
pass "systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p') runs as process 1, $(now) s after the boot"
make_network
watch_refusals
sleep 1
files >/test/files-before
accounts >/test/accounts-before
network >/test/network-before

quietly dpkg --install /test/weir.deb
for unit in weir.service weir-images.service; do
	[ "$(systemctl is-enabled $unit)" = disabled ] && [ "$(systemctl is-active $unit)" = inactive ] ||
		fail "after the installation $unit is $(systemctl is-enabled $unit) and $(systemctl is-active $unit), and not disabled and inactive"
done
getent group weir >/dev/null && id -nG weir-images | grep -qw weir || fail "the package makes no group weir, or weir-images is no member"
pass "the package is installed: its units are disabled, and its accounts are there"

begun=$(now)
while read -r line; do quietly sh -c "$line"; done </test/first-minute
quietly systemctl enable --now weir
is_active || fail "weir.service is $(property weir.service ActiveState) after \`systemctl enable --now weir\`"
[ "$(property weir.service StatusErrno)" = 0 ] && [ "$(property weir.service NRestarts)" = 0 ] || fail "weir.service was started again"
note weir.service
quietly weir status
begin_traffic
waited_for 20 sh -c "weir ps | grep -q '^web '" || { weir ps; fail "weir does not find the namespace web"; }
quietly weir set web max=2mbit
is_held() { to=$(now); from=$(awk -v to="$to" 'BEGIN { print to - 2 }'); rate=$(of rate 5001 "$from" "$to"); within "$rate" 1.9 2.1; }
sleep 2
waited_for 60 is_held || { weir ps; fail "web has $rate Mbit/s at the far end, and may have 2"; }
took=$(since "$begun")
within "$took" 0 60 || fail "the maximum of web holds after $took s, and not within 60 s"
weir ps --json | python3 -c 'import json, sys; web, = [c for c in json.load(sys.stdin) if c["name"] == "web"]; assert web["enforced"], web' ||
	fail "weir ps does not show web as enforced"
pass "weir.service is active; $took s after the first command web has $rate of 2 Mbit/s at the far end"

pid=$(property weir.service MainPID)
sed -i 's/^capacity = .*/capacity = "10mbit"/' /etc/weir/weir.toml
quietly systemctl reload weir
shares_hold 1 || shares_hold 5 || { weir ps; fail "after a reload with 10mbit $shares"; }
[ "$(property weir.service MainPID)" = "$pid" ] || fail "a reload starts another process"
pass "systemctl reload: the link has 10 Mbit/s, $shares"

# A stop takes the queues away, and a start makes them again before it tells systemd that it is ready. From here on the
# engine is htb: in virtual time each start of bpf waits ten seconds for the kernel's verifier.
sed -i 's/^capacity = .*/&\nengine = "htb"/' /etc/weir/weir.toml
from=$(now)
quietly systemctl restart weir
took=$(since "$from")
is_active || fail "weir.service is $(property weir.service ActiveState) after a restart"
note weir.service
from=$(now)
sleep 3
above=$(of above 5001 "$from" "$(now)" 2.6)
within "$above" 0 0.3 || fail "web has more than its maximum for $above s after systemctl restart has returned"
shares_hold 5 || { weir ps; fail "after a restart $shares"; }
weir ps | grep -q '^web .* 2mbit' || { weir ps; fail "a restart loses what weir set web max=2mbit changed"; }
pass "systemctl restart under traffic takes $took s, then web is above its maximum for $above s; $shares"

# unbroken WHAT: the division stays in force from $from to now, and no datagram of probe is lost.
unbroken() {
	local to most least lost
	to=$(now)
	most=$(of most 5001 "$from" "$to" 0.5) least=$(of least 5001 "$from" "$to" 0.5) lost=$(of lost 5003 "$from" "$to")
	figures="web has $least to $most of 2 Mbit/s in each 0.5 s, and probe lost $lost datagrams"
	within "$most" 0 2.3 && within "$least" 1.4 3 && [ "$lost" = 0 ] || { weir ps; fail "$1: $figures"; }
}
pid=$(property weir.service MainPID)
restarts=$(property weir.service NRestarts)
from=$(now)
kill -9 "$pid"
waited_for 10 is_replaced "$pid" || fail "no other agent is active 10 s after kill -9"
took=$(since "$from")
note weir.service
sleep 3
unbroken "kill -9"
[ "$(property weir.service NRestarts)" = $((restarts + 1)) ] || fail "systemd started $(property weir.service NRestarts) agents after kill -9, and not one"
shares_hold 5 || { weir ps; fail "after kill -9 $shares"; }
pass "kill -9: another agent is active after $took s; $figures; then $shares"

# upgrade DEB: another program is in force without a gap.
upgrade() {
	local pid
	pid=$(property weir.service MainPID)
	from=$(now)
	quietly dpkg --install "$1"
	waited_for 10 is_replaced "$pid" || fail "no other agent is active 10 s after dpkg --install $1"
	note weir.service
	sleep 3
	unbroken "the upgrade"
	shares_hold 5 || { weir ps; fail "after the upgrade $shares"; }
	pass "dpkg --install $(dpkg-query -W -f '${Version}' weir) under traffic: $figures; then $shares"
}
upgrade /test/weir-later.deb
end_traffic

# The agent feeds the watchdog, and one that hangs is replaced.
fed=$(property weir.service WatchdogTimestampMonotonic)
sleep 20
[ "$(property weir.service WatchdogTimestampMonotonic)" != "$fed" ] || fail "the agent did not feed the watchdog in 20 s"
pid=$(property weir.service MainPID)
kill -STOP "$pid"
waited_for 60 is_replaced "$pid" || fail "systemd does not replace an agent that hangs for 60 s"
note weir.service
journalctl --unit weir.service --output cat | grep -q 'Watchdog timeout' || fail "the journal has no word of the watchdog"
pass "the watchdog is fed, and an agent that hangs is replaced"

printf '\n[images]\nbudget = "64MiB"\nkeep_free = "1MiB"\nserved_by = "unit"\n' >>/etc/weir/weir.toml
quietly systemctl enable --now weir-images
note weir-images.service
pid=$(property weir-images.service MainPID)
[ "$(stat -c %U "/proc/$pid")" = weir-images ] || fail "weir-images.service runs as $(stat -c %U "/proc/$pid")"
[ -z "$(grep '^Cap' "/proc/$pid/status" | grep -v '0000000000000000$')" ] || fail "weir-images.service has capabilities: $(grep '^Cap' "/proc/$pid/status" | tr '\n' ' ')"
answer=$(exec 3<>/dev/tcp/127.0.0.1/5050 && printf 'GET /v2/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' >&3 && head -n 1 <&3)
grep -q '^HTTP/1.1 200' <<<"$answer" || fail "weir-images.service answers GET /v2/ with \"$answer\""
quietly weir image df
pass "weir-images.service runs as weir-images without capabilities, and answers"

while read -r unit bound; do
	exposure=$(systemd-analyze security --no-pager $unit | sed -n 's/.*Overall exposure level for .*: \([0-9.]*\) .*/\1/p')
	within "$exposure" 0 "$bound" || fail "the exposure of $unit is ${exposure:-unknown}, and may be $bound"
	pass "the exposure of $unit is $exposure of $bound"
done <<<"weir.service 3.0
weir-images.service 2.0"

weir doctor >/test/doctor 2>&1
grep -q '^engine htb  *ok' /test/doctor || { cat /test/doctor; fail "weir doctor does not find engine htb to work"; }
# A namespace has no hardware, so that other engines may be slow here.
pass "weir doctor: $(grep -cE '  ok ' /test/doctor) checks are ok, $(grep -cE '  FAIL ' /test/doctor) fail"

errors=$(journalctl --no-pager --output cat --priority err _SYSTEMD_UNIT=weir.service + _SYSTEMD_UNIT=weir-images.service)
[ -z "$errors" ] || fail "the journal has errors of the units: $errors"
audit=$(journalctl --no-pager --dmesg --output cat | grep 'type=1326' || true)
[ -z "$audit" ] || fail "the kernel ended a process by a filter of system calls: $audit"
# The calls that were refused to a unit. The kernel answers libbpf so at one of its questions (bpf, 321 on amd64), also
# without a unit.
refused_to() {
	local pattern
	pattern=$(sed 's/^ *//; s/  */|/g' <<<"${agents[$1]}")
	{ grep -E "\( *($pattern)\)" $trace/trace || true; } | sed 's/.*sys_exit: //; /^NR 321 = -1$/d'
}
# Engine `user` has no right to its mount (fsopen, 430), as docs/limits.md says. The agent tries it for the one `weir doctor`
# above, three times at most.
mount=$(refused_to weir.service | grep -cx 'NR 430 = -1' || true)
[ "$mount" -le 3 ] || fail "fsopen is refused to weir.service $mount times, and one weir doctor asks 3 times at most"
refused=$({ refused_to weir.service | sed '/^NR 430 = -1$/d'; refused_to weir-images.service; } | sort | uniq -c | tr -s ' \n' ' ')
grep -q '^engine user  *warn' /test/doctor || { cat /test/doctor; fail "weir doctor does not say that engine user is missing"; }
[ -z "${refused// /}" ] || fail "these calls are refused to the units (count, number, answer): $refused"
pass "the journal has no error, and no call is refused to the units"

# A wrong file: the start fails at once, says why, and is not tried again.
cp /etc/weir/weir.toml /test/kept.toml
quietly systemctl stop weir
echo '[nonsense]' >>/etc/weir/weir.toml
from=$(now)
! systemctl start weir >/test/log 2>&1 || fail "systemctl start succeeds with a wrong file"
sleep 5
[ "$(property weir.service ActiveState)" = failed ] || fail "weir.service is $(property weir.service ActiveState) with a wrong file, and not failed"
told=$(journalctl --unit weir.service --output cat --since "-$(since "$from")s" | grep -c 'cannot use configuration /etc/weir/weir.toml.*' || true)
[ "$told" = 1 ] || fail "a wrong file is told $told times in 5 s, and not once"
journalctl --unit weir.service --output cat | grep -q nonsense || fail "the journal does not name what is wrong"
cp /test/kept.toml /etc/weir/weir.toml
pass "with a wrong file systemctl start fails, and the journal says why once"

# A device that comes late: the start fails, and systemd tries again until it is there.
sed -i 's/^device = .*/device = "wan9"/' /etc/weir/weir.toml
! systemctl start weir >/test/log 2>&1 || fail "systemctl start succeeds without the link's device"
sleep 5
[ "$(property weir.service ActiveState)" = activating ] || fail "weir.service is $(property weir.service ActiveState) while its device is missing, and not activating"
ip link add wan9 type dummy
from=$(now)
waited_for 10 is_active || fail "weir.service is $(property weir.service ActiveState) 10 s after its device has come"
pass "a device that comes late is taken after $(since "$from") s"
quietly systemctl stop weir
ip link del wan9
cp /test/kept.toml /etc/weir/weir.toml
quietly systemctl start weir

quietly apt-get purge --yes weir
sleep 2
[ "$(systemctl is-active weir.service)" = inactive ] && ! pidof weir >/dev/null || fail "the purge leaves a process of weir"
network | diff /test/network-before - || fail "the purge leaves the devices, queues or programs above, or takes them"
accounts | diff /test/accounts-before - || fail "the purge leaves accounts"
files | diff /test/files-before - || fail "the purge leaves the files above, or takes them"
[ -z "$(systemctl list-units --all --plain --no-legend 'weir*' | grep -v weir-test)" ] || { systemctl list-units --all 'weir*'; fail "the purge leaves units"; }
pass "a purge leaves no device, queue, program, file, account or unit"

echo "$passed passed, 0 failed"
code=0

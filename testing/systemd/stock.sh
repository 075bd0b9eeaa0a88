#!/bin/bash
# The steps of scripts/test-stock.sh, a service of the guest.
#
# A container of each kind sends all that it can by eth0, to a port of its own at the far end, which counts. The guest's
# time is virtual: seconds without work pass at once.
source /test/common.sh

traffic=/test/traffic.py
counted=/test/counted
# Each may have 2 Mbit/s, and has a weight. Docker, Podman and containerd have labels, and Incus has keys. The
# configuration names the unit's and that of alice's slice, and `weir set` that of LXC, which has no labels.
kinds=(docker1 docker-host podman1 podman-host alice ctr1 lxc1 incus1 job)
declare -A port=([docker1]=5001 [docker-host]=5002 [podman1]=5003 [podman-host]=5004 [alice]=5005 [ctr1]=5006 [lxc1]=5007
	[incus1]=5008 [job]=5009)
declare -A weight=([docker1]=3 [docker-host]=1 [podman1]=2 [podman-host]=1 [alice]=1 [ctr1]=2 [lxc1]=1 [incus1]=3 [job]=1)
times=
capacity=40

of() { python3 $traffic "$1" $counted "${@:2}"; }
as_alice() { runuser -u alice -- env XDG_RUNTIME_DIR=/run/user/1000 DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus HOME=/home/alice "$@"; }
send() { echo "/bin/nc 198.51.100.1 ${port[$1]} </dev/zero"; }
# Whether the class is there and enforced.
enforced() { weir ps --json | python3 -c 'import json, sys; c, = [c for c in json.load(sys.stdin) if c["name"] == sys.argv[1]]; assert c["enforced"], c' "$1"; }
# From the end of the command that starts a container to the moment at which its class is in force, ms. The guest's
# processor executes 10^9 instructions a second, and the agent may be a debug build. Suite `runtimes` asserts 100 ms.
declare -A begun=()
begins() { begun[$1]=$(date +%s%3N); }
lateness() {
	weir events --json | python3 -c '
import json, sys
name, begun_ms = sys.argv[1:]
for line in sys.stdin:
    event = json.loads(line)
    if event["what"] == "class-added" and event["class"] == name:
        at_ms = event["time_ms"]
print(at_ms - int(begun_ms))' "$1" "${begun[$1]}"
}
# rates SECONDS EXPECTED...: what each kind has at the far end, beside what it must have. Fails if one is 2 % off.
rates() {
	local from to name got all="" good=0
	sleep 1
	from=$(now)
	sleep "$1"
	to=$(now)
	shift
	for name in "${kinds[@]}"; do
		got=$(of rate ${port[$name]} "$from" "$to")
		all+=" $name $got of $1,"
		awk -v got="$got" -v want="$1" 'BEGIN { exit !(got >= want * 0.98 && got <= want * 1.02) }' || good=1
		shift
	done
	figures=${all%,}
	return $good
}

[ "$(systemctl is-system-running --wait)" = running ] || { systemctl --failed --no-pager; fail "the guest has units that failed before the package"; }
[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] || fail "/sys/fs/cgroup is not cgroup v2"
quietly make_far_end
nsenter --target $far --net python3 $traffic sink $counted far0 "${port[@]}" &
echo '{ "live-restore": true }' >/etc/docker/daemon.json
quietly systemctl restart docker
quietly systemctl start podman.socket incus
driver=$(docker info --format '{{.CgroupDriver}} with cgroup v{{.CgroupVersion}}')
[ "$driver" = "systemd with cgroup v2" ] || fail "Docker's cgroup driver is $driver"
# Docker drops what other runtimes forward: its manual, "Packet filtering and firewalls".
iptables --policy FORWARD ACCEPT
tc qdisc show | sort >/test/qdiscs-before
pass "Docker $(docker --version | sed 's/.*version \([^,+]*\).*/\1/') has the driver $driver, Podman is $(podman --version | sed 's/.* //'), Incus $(incus --version)"

quietly dpkg --install /test/weir.deb
weir init --capacity ${capacity}mbit --yes >/test/init 2>&1 || { cat /test/init; fail "weir init"; }
for runtime in Docker Podman Incus; do grep -q "^$runtime is here" /test/init || { cat /test/init; fail "weir init does not find $runtime"; }; done
cat >>/etc/weir/weir.toml <<END
containerd = true

[[class]]
name = "alice"
slice = "user-1000.slice"
max = "2mbit"

[[class]]
name = "job"
unit = "job.service"
max = "2mbit"
END
weir agent --check >/test/log 2>&1 || { cat /test/log; fail "the file of weir init with two more classes is refused"; }
quietly systemctl enable --now weir
waited_for 20 weir status || fail "the agent does not answer"
engine=$(weir status | sed -n 's/^engine *\([a-z]*\).*/\1/p')
pass "weir init finds the runtimes, and weir.service takes engine $engine"

mkdir -p /test/image/{bin,sbin,proc,sys,dev,etc,tmp,run}
for name in sh sleep nc ip; do ln -s busybox /test/image/bin/$name; done
cp /bin/busybox /test/image/bin/
printf '#!/bin/sh\nexec sleep 100000\n' >/test/image/sbin/init
chmod +x /test/image/sbin/init
tar -C /test/image -cf /test/image.tar .
quietly docker import /test/image.tar bare
quietly podman import /test/image.tar bare
quietly docker run --detach --name docker1 --label weir.max=2mbit --label weir.weight=3 bare /bin/sh -c "sleep 5; $(send docker1)"
begins docker1
quietly docker run --detach --name docker-host --network host --label weir.max=2mbit bare /bin/sh -c "sleep 5; $(send docker-host)"
begins docker-host
quietly podman run --detach --name podman1 --label weir.max=2mbit --label weir.weight=2 bare /bin/sh -c "sleep 5; $(send podman1)"
begins podman1
quietly podman run --detach --name podman-host --network host --label weir.max=2mbit bare /bin/sh -c "sleep 5; $(send podman-host)"
begins podman-host
quietly ctr run --detach --net-host --rootfs --runc-systemd-cgroup --cgroup system.slice:ctr:ctr1 --label weir.max=2mbit --label weir.weight=2 \
	/test/image ctr1 /bin/sh -c "sleep 5; $(send ctr1)"
begins ctr1
cat >/test/lxc1.conf <<END
lxc.rootfs.path = dir:/test/image
lxc.uts.name = lxc1
lxc.mount.auto = proc:mixed
lxc.apparmor.profile = unconfined
lxc.net.0.type = veth
lxc.net.0.link = lxcbr0
lxc.net.0.flags = up
lxc.net.0.ipv4.address = 10.0.3.50/24
lxc.net.0.ipv4.gateway = 10.0.3.1
END
quietly lxc-start --name lxc1 --rcfile /test/lxc1.conf -- /bin/sh -c "sleep 5; $(send lxc1)"
begins lxc1
quietly incus admin init --minimal
mkdir -p /test/incus
cp -a /test/image /test/incus/rootfs
printf 'architecture: x86_64\ncreation_date: 1767225600\n' >/test/incus/metadata.yaml
tar -C /test/incus -cf /test/incus.tar metadata.yaml rootfs
quietly incus image import /test/incus.tar --alias bare
quietly incus launch bare incus1 --config user.weir.max=2mbit --config user.weir.weight=${weight[incus1]}
begins incus1
bridge=$(incus network get incusbr0 ipv4.address)
quietly incus exec incus1 -- /bin/sh -c "ip link set eth0 up; ip address add ${bridge%.*}.50/24 dev eth0; ip route add default via ${bridge%/*}"
# A command of `incus exec` ends with the daemon, and a process behind it does not.
quietly incus exec incus1 -- /bin/sh -c "$(send incus1) >/dev/null 2>&1 &"
mkdir -p /etc/systemd/system
printf '[Service]\nExecStart=/bin/busybox sh -c "/bin/busybox nc 198.51.100.1 %s </dev/zero"\n' ${port[job]} >/etc/systemd/system/job.service
quietly systemctl daemon-reload
useradd --create-home --uid 1000 alice
quietly loginctl enable-linger alice
waited_for 10 test -S /run/user/1000/bus || fail "alice has no manager of her own"
quietly as_alice podman import /test/image.tar bare
quietly as_alice podman run --detach --name rootless bare /bin/sh -c "sleep 2; $(send alice)"
quietly weir set lxc1 max=2mbit weight=${weight[lxc1]}
quietly systemctl start job
for name in "${kinds[@]}"; do waited_for 5 enforced $name || { weir ps; fail "$name is not enforced"; }; done
late=""
for name in "${!begun[@]}"; do
	ms=$(lateness "$name")
	within "$ms" -1000 400 || late+=" $name"
	times+=" $name $ms ms,"
done
[ -z "$late" ] || fail "a class is later than 400 ms after the command that starts its container:$times of which$late"
pass "each container is a class soon after the command that starts it:${times%,}"

sleep 8
rates 4 2 2 2 2 2 2 2 2 2 || { weir ps; fail "beside a maximum of 2 Mbit/s:$figures"; }
pass "each kind is held to its maximum:$figures"

# keyed MAX: since a key of incus1 was set, its class has got this maximum, bit/s, within a second.
has_max() { weir ps --json | python3 -c 'import json, sys; c, = [c for c in json.load(sys.stdin) if c["name"] == "incus1"]; assert c["policy"]["max"] == int(sys.argv[1]), c' "$1"; }
keyed() {
	local from=$(now)
	waited_for 5 has_max "$1" || { weir explain incus1; fail "a key of incus1 is not in force"; }
	figures=$(since "$from")
	within "$figures" 0 1 || fail "a key of incus1 is in force $figures s after \`incus config set\`"
}
quietly incus config set incus1 user.weir.max=1mbit
keyed 1000000
sleep 1
from=$(now)
sleep 4
held=$(of rate ${port[incus1]} "$from" "$(now)")
within "$held" 0.98 1.02 || { weir ps; fail "a key of 1 Mbit/s holds incus1 to $held"; }
quietly incus config set incus1 user.weir.max=2mbit
keyed 2000000
pass "a key of Incus is in force $figures s after \`incus config set\`, and holds it to $held of 1 Mbit/s"
sleep 3

# steady WHAT: since $from no kind has had more than its maximum in any half second, and no class is another.
handles() { weir ps --json | python3 -c 'import json, sys; print(*sorted(c["name"] + "=" + c["handle"] for c in json.load(sys.stdin) if c.get("handle")))'; }
steady() {
	local to name most all=""
	sleep 3
	to=$(now)
	for name in "${kinds[@]}"; do
		most=$(of most ${port[$name]} "$from" "$to" 0.5)
		all+=" $name $most,"
		within "$most" 1.5 2.2 || { weir ps; fail "$1: $name has $most Mbit/s in half a second, and may have 2"; }
	done
	[ "$(handles)" = "$before" ] || { handles; fail "$1: classes were $before, and are those above"; }
	rates 3 2 2 2 2 2 2 2 2 2 || fail "after $1:$figures"
	pass "$1: at most$all in half a second, and the same classes"
}
before=$(handles)
for service in docker containerd incus podman; do
	from=$(now)
	quietly systemctl restart $service
	iptables --policy FORWARD ACCEPT
	steady "systemctl restart $service"
done
from=$(now)
agent=$(systemctl show --property MainPID --value weir)
kill -9 "$agent"
is_replaced() { [ "$(systemctl is-active weir)" = active ] && [ "$(systemctl show --property MainPID --value weir)" != "$agent" ]; }
waited_for 10 is_replaced || fail "no other agent is active 10 s after kill -9"
steady "kill -9 of the agent"

# A label's maximum counts where none is set by hand.
for name in "${kinds[@]}"; do quietly weir set "$name" max=${capacity}mbit weight=${weight[$name]}; done
sleep 2
shares() { for name in "${kinds[@]}"; do awk -v w=${weight[$name]} -v all="$1" -v of=15 'BEGIN { printf "%.3f ", all * w / of }'; done; }
rates 5 $(shares $capacity) || { weir ps; fail "by weight:$figures"; }
pass "each kind has its share by weight:$figures"

from=$(now)
quietly weir set alice min=8mbit
sleep 1
rates 4 $(for name in "${kinds[@]}"; do [ $name = alice ] && echo 8 || awk -v w=${weight[$name]} 'BEGIN { print 32 * w / 14 }'; done) ||
	{ weir ps; fail "beside a minimum of 8 Mbit/s:$figures"; }
pass "a minimum for all of alice's containers:$figures"

quietly docker rm --force docker1 docker-host
quietly podman rm --force --time 0 podman1 podman-host
ctr task kill --signal 9 ctr1
quietly lxc-stop --name lxc1 --kill
quietly incus delete --force incus1
only_these() { weir ps --json | python3 -c 'import json, sys; left = {c["name"] for c in json.load(sys.stdin) if c.get("handle")} - {"control", "default", "host", "alice", "job"}; assert not left, left'; }
waited_for 5 only_these || { weir ps; fail "classes stay after their containers"; }
pass "classes end with their containers"

quietly systemctl stop job
quietly systemctl stop weir
tc qdisc show | sort >/test/qdiscs-after
! grep -E 'weir|htb|clsact' /test/qdiscs-after || fail "weir leaves the queues above"
! ip -o link | grep weir || fail "weir leaves the devices above"
pass "weir leaves no queue and no device"

echo "$passed passed, 0 failed"
code=0

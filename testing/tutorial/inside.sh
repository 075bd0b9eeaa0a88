#!/bin/bash
# The tutorial, inside of the root that scripts/test-tutorial.sh has made.
set -euo pipefail
cd /test/steps
passed=0
pass() { passed=$((passed + 1)); echo "ok: $*"; }
fail() { echo "test-tutorial: $*" >&2; exit 1; }
begun=$(date +%s)
took() { echo $(($(date +%s) - begun)); }

if [ "${1:-}" != network ]; then
	# These steps need Debian's mirror. No service starts by itself here, as there is no systemd.
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	export DEBIAN_FRONTEND=noninteractive
	# A person answers apt's question.
	echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/yes
	apt-get update -qq
	apt-get install -y -qq /test/weir-earlier.deb >/test/log 2>&1 || { cat /test/log >&2; fail "the package cannot be installed"; }
	installed=$(took)
	bash -e "$(grep -l 'apt install --yes docker.io' *.sh)" >/test/log 2>&1 || { cat /test/log >&2; fail "docker.io cannot be installed"; }
	with_docker=$(took)
	# The measure of the upgrade.
	apt-get install -y -qq --no-install-recommends iperf3 >/dev/null 2>&1 || fail "iperf3 cannot be installed"
	# dockerd's package has brought systemd's own, which cannot work here.
	cp --remove-destination /test/systemctl /usr/bin/systemctl
	export BEGUN=$begun DOCKER=$((with_docker - installed)) NOT_COUNTED=$(($(took) - with_docker))
	exec unshare --net bash /test/inside.sh network
fi
begun=$((BEGUN + NOT_COUNTED))

# An uplink whose far end answers, but for the address of the tutorial, whose packets it drops.
unshare --net sleep 900 &
far=$!
sleep 0.3
ip link set lo up
ip link add eth0 type veth peer name far0 netns $far
ip address add 198.51.100.2/24 dev eth0
ip link set eth0 up
nsenter --target $far --net sh -c 'ip link set lo up; ip address add 198.51.100.1/24 dev far0; ip link set far0 up'
ip route add default via 198.51.100.1
iptables -L >/dev/null 2>&1 || update-alternatives --set iptables /usr/sbin/iptables-legacy >/dev/null
mkdir -p /run/systemd/system
containerd >/run/containerd.log 2>&1 &
dockerd --containerd /run/containerd/containerd.sock >/run/dockerd.log 2>&1 &
for _ in $(seq 150); do
	docker version >/dev/null 2>&1 && break
	sleep 0.1
done
docker version >/dev/null || { tail -n 20 /run/dockerd.log >&2; fail "dockerd does not start"; }
docker import /test/base.tar debian:12 >/dev/null
links() { ip -o link | sed 's/^[0-9]*: //; s/[@:].*//' | grep -v '^veth' | sort; }
before=$(links; tc qdisc show dev eth0)

# Each line's first word, for lines that do not begin with a number.
firsts() { awk '$1 !~ /^[0-9]/ { print $1 }' | sort -u; }
# A heading, in capitals.
headings() { grep -E '^[A-Z]+( +[A-Z]+)+ *$' | tr -s ' ' || true; }
# The column SENDING of a class, Mbit/s.
sends() { weir ps | awk -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "SENDING") column = i } $1 == name { print $column }' | sed -n 's/mbit$//p'; }
near() { awk -v got="${1:-0}" -v wanted="$2" 'BEGIN { exit !(got > wanted * 0.95 && got < wanted * 1.05) }'; }

upgrade() {
	docker run --detach --name probe debian:12 sleep 600 >/dev/null
	nsenter --target $far --net iperf3 --server --daemon --bind 198.51.100.1 >/dev/null
	local pid package
	pid=$(docker inspect --format '{{.State.Pid}}' probe)
	for package in weir weir-earlier weir; do
		sleep 1
		local agent
		agent=$(weir status | sed -n 's/.*process \([0-9]*\).*/\1/p')
		nsenter --target "$pid" --net iperf3 --client 198.51.100.1 --udp --bitrate 1M --time 10 >/test/iperf3 &
		local client=$!
		sleep 2
		apt-get install -y -qq --allow-downgrades /test/$package.deb >/test/log 2>&1 || { cat /test/log >&2; fail "$package.deb cannot be installed"; }
		wait $client
		grep -q ' 0/[0-9]* (0%) *receiver' /test/iperf3 || { cat /test/iperf3 /run/stand-in/weir.log >&2; fail "$package.deb: datagrams are lost"; }
		local next
		next=$(weir status | sed -n 's/.*process \([0-9]*\).*/\1/p')
		[ -n "$next" ] && [ "$next" != "$agent" ] || fail "$package.deb: the agent is process ${next:-none}, and was $agent"
		grep -q 'the division stays in force' /run/stand-in/weir.log || fail "$package.deb: the agent did not hand over"
		pass "$package.deb ($(dpkg-query -W -f '${Version}' weir)) is installed under traffic: $(grep receiver /test/iperf3 | grep -o '[0-9]*/[0-9]* (0%)') datagrams are lost"
	done
	docker rm --force probe >/dev/null
	# A version that refuses the configuration leaves the agent alone.
	cp /etc/weir/weir.toml /test/kept.toml
	echo '[nonsense]' >>/etc/weir/weir.toml
	agent=$(weir status | sed -n 's/.*process \([0-9]*\).*/\1/p')
	apt-get install -y -qq --allow-downgrades /test/weir-earlier.deb >/test/log 2>&1 || { cat /test/log >&2; fail "the package cannot be installed beside a bad configuration"; }
	sleep 2
	next=$(weir status | sed -n 's/.*process \([0-9]*\).*/\1/p')
	[ "$next" = "$agent" ] && grep -q 'version before runs on' /test/log && grep -q nonsense /test/log ||
		{ cat /test/log >&2; fail "the agent is process ${next:-none}, and was $agent"; }
	cp /test/kept.toml /etc/weir/weir.toml
	pass "a version that refuses the configuration leaves the agent alone"
}

for step in [0-9]*.sh; do
	if grep -q -e 'make deps' -e 'apt install --yes docker.io' "$step"; then continue; fi
	# A person takes some seconds too.
	sleep 2
	if grep -q 'docker rm --force' "$step"; then
		upgrade
		pass "the tutorial takes $(took) s so far, and Debian's packages of docker.io $DOCKER s of it"
	fi
	code=0
	bash -e "$step" >/test/out 2>&1 || code=$?
	command=$(head -n 1 "$step")
	expected=${step%.sh}.expected
	# A refused command fails.
	if [ -e "$expected" ] && grep -q '^weir: ' "$expected"; then
		[ $code -ne 0 ] || fail "\`$command\` is not refused"
	else
		[ $code -eq 0 ] || { cat /test/out >&2; tail -n 20 /run/stand-in/weir.log >&2 || true; fail "\`$command\` ends with $code"; }
	fi
	if [ -e "$expected" ]; then
		lacking=$(comm -13 <(firsts </test/out) <(firsts <"$expected"))
		[ -z "$lacking" ] || { cat /test/out >&2; fail "\`$command\` shows no line that begins with: $lacking"; }
		[ "$(headings </test/out)" = "$(headings <"$expected")" ] || { cat /test/out >&2; fail "\`$command\` has other columns"; }
	fi
	pass "$command"
	case $command in
	*--name\ backup*)
		for _ in $(seq 100); do
			weir ps | grep -q '^web .*active' && break
			sleep 0.1
		done
		weir ps | grep -q '^web .*active' || { weir ps >&2; weir status >&2; weir doctor >&2 || true; cat /etc/weir/weir.toml /run/stand-in/weir.log >&2; fail "web is not shaped"; }
		first=$(($(took) - DOCKER))
		[ "$first" -le 60 ] || fail "a container is shaped after $first s without docker.io"
		pass "a container is shaped $first s after the first command, without the $DOCKER s of docker.io"
		sleep 5
		near "$(sends web)" 15 && near "$(sends backup)" 5 || { weir ps >&2; fail "web and backup do not have 15 and 5 Mbit/s"; }
		;;
	*backup\ max=4mbit*) sleep 3; near "$(sends web)" 16 && near "$(sends backup)" 4 || { weir ps >&2; fail "web and backup do not have 16 and 4 Mbit/s"; } ;;
	*agree\ offer*) sleep 5; near "$(sends backup)" 8 || { weir ps >&2; fail "backup does not have 8 Mbit/s"; } ;;
	esac
done
[ "$(took)" -le 600 ] || fail "the tutorial takes $(took) s"
pass "the tutorial takes $(took) s"
[ "$(links; tc qdisc show dev eth0)" = "$before" ] || { links >&2; tc qdisc show dev eth0 >&2; fail "links or queues are left"; }
left=$(find / -xdev -name '*weir*' -not -path '/proc/*' -not -path '/test/*' -not -path '/var/lib/docker/*' -not -path '/var/log/*' -not -path '/var/cache/*')
[ -z "$left" ] || fail "files are left: $left"
! getent group weir >/dev/null && ! getent passwd weir-images >/dev/null || fail "accounts are left"
pass "no link, queue, file or account of weir is left"
echo "$passed passed, 0 failed"

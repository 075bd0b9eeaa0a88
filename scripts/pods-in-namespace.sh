# Sourced after scripts/agent-in-namespace.sh: `pods N V` moves p1 to pN, the peers of V1 to VN, into a namespace of
# their own, and makes those that are not there. Their packets leave by the uplink. Sets $pods, a process of that namespace.
pods() {
	local many=$1 node_end=$2 i
	unshare --net sleep 900 &
	pods=$!
	sleep 0.5
	for i in $(seq "$many"); do
		if ip -n "$net" link show "$node_end$i" >/dev/null 2>&1; then
			echo "link set p$i netns $pods"
		else
			printf 'link add %s type veth peer name p%d netns %d\nlink set %s up\n' "$node_end$i" "$i" "$pods" "$node_end$i"
		fi
	done | ip -n "$net" -batch -
	for i in $(seq "$many"); do
		echo "link set p$i up"
		echo "address add 198.18.$((i / 250)).$((i % 250 + 1))/32 dev p$i"
		echo "route add 192.0.2.2 dev p$i metric $i"
	done | nsenter --net="/proc/$pods/ns/net" ip -batch -
	# No one answers here, so the addresses of next hops stand in the tables.
	ip -n "$net" neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev up0
	ip netns exec "$net" sh -c 'for n in $(seq '"$many"'); do echo "$n $(cat /sys/class/net/'"$node_end"'$n/address)"; done' |
		sed 's/\(.*\) \(.*\)/neigh add 192.0.2.2 lladdr \2 dev p\1/' | nsenter --net="/proc/$pods/ns/net" ip -batch -
	ip netns exec "$net" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward
		for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$file; done'
}

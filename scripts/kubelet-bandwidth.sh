# Sourced by scripts/test-kubelet.sh: the bandwidth in the node's status, and pods that do not fit.
need_web
status_of() { kube get node edge-1 -o "jsonpath={.status.$1.weir\\.dev/egress-mbit}"; }

# The values that the node's status shows over some seconds, each with the number of times it was seen.
shown() {
	local end=$(($(milliseconds) + $1 * 1000))
	while [ "$(milliseconds)" -lt "$end" ]; do
		echo "$(status_of capacity)/$(status_of allocatable)"
	done | sort | uniq -c | awk '{ print $2 " (" $1 " times)" }'
}
is_steady() { [ "$(wc -l <<<"$1")" = 1 ] && [[ $1 == "$2/$2 "* ]]; }

until_so "the status is without the minimum of pod web" 15 node_has 85
echo "--- the kubelet leaves the bandwidth in the node's status"
heartbeat() { kube get node edge-1 -o 'jsonpath={.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}'; }
before=$(heartbeat)
seen=$(shown 10)
[ "$(heartbeat)" != "$before" ] || fail "the kubelet wrote no status"
is_steady "$seen" 85 || fail "the node's status: $seen"
echo "ok: 10 s with the kubelet's own writes: $seen"
stop kubelet KILL
start_kubelet
seen=$(shown 10)
is_steady "$seen" 85 || fail "the node's status after a restart of the kubelet: $seen"
echo "ok: 10 s from a restart of the kubelet: $seen"

echo "--- a kubelet without its state, and a node that is registered again"
stop kubelet KILL
rm -rf /var/lib/kubelet/device-plugins
start_kubelet
echo "10 s without its state: $(shown 10)"
until_so "the status has the bandwidth" 15 node_has 85
stop kubelet TERM
kube delete node edge-1 >/dev/null
start_kubelet
until_so "the node is ready" 30 node_is_ready
admit_pods
until_so "the status has the bandwidth" 15 node_has 85

echo "--- a minimum that does not fit"
pod large '{}' '{ "weir.dev/egress-mbit": "86" }'
waits() { of_pod "$1" '.status.conditions[0].message' | grep -q 'Insufficient weir.dev/egress-mbit'; }
until_so "pod large is Pending" 15 waits large
echo "its message: $(of_pod large '.status.conditions[0].message')"
pod fits '{}' '{ "weir.dev/egress-mbit": "40" }'
until_so "a pod with 40 Mbit/s runs" 60 runs fits
until_so "with its minimum" 5 explains shop/fits "min 40mbit: resource limit weir.dev/egress-mbit"
within "its rate beside pod web, Mbit/s" "$(rate_of fits 3)" 60 85
pod greedy '{ "weir.dev/min": "200mbit" }'
until_so "a pod whose annotation asks for 200 Mbit/s runs" 60 runs greedy
has_event() { kube get events -n shop --field-selector "involvedObject.name=$1,source=weir" | grep -F "$2"; }
until_so "it has an event" 20 has_event greedy "200mbit"
has_event greedy "200mbit"
kube delete pod large fits greedy -n shop --wait=false >/dev/null
until_so "they are gone" 30 is_gone fits

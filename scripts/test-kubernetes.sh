#!/usr/bin/env bash
# `[kubernetes]` with a real API server, RBAC and scheduler, in a network namespace of its own. No kubelet runs: pods are
# objects whose status this script writes. Needs root, kubectl and the programs of scripts/kubernetes.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in kubectl openssl curl; do
	command -v $program >/dev/null || { echo "$program is missing (Debian's packages kubernetes-client, openssl, curl)"; exit 1; }
done
kubernetes=$(scripts/kubernetes.sh)
server=https://127.0.0.1:6443
. scripts/control-plane.sh
weir=${WEIR_BIN:-$PWD/target/debug/weir}
work=$(mktemp -d)
net=weirkube$$
pids=()
uid=
root=/sys/fs/cgroup
[ -e $root/cgroup.procs ] || root=/sys/fs/cgroup/unified

finish() {
	local code=$?
	[ "$code" = 0 ] || { ask doctor; ask ps; tail -n 5 "$work"/*.log; } || true
	# The agent puts its own things back. The others would wait for each other.
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	sleep 1
	for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
	[ -z "$uid" ] || rmdir "$root/kubepods/burstable/pod$uid/c1" "$root/kubepods/burstable/pod$uid" \
		"$root/kubepods/burstable" "$root/kubepods" 2>/dev/null || true
	ip netns delete "${net}a" 2>/dev/null || true
	ip netns delete "$net" 2>/dev/null || true
	rm -rf "$work"
	exit "$code"
}
trap finish EXIT

# `ip netns exec` would hide the cgroups.
inside() { nsenter --net="/run/netns/$net" "$@"; }

# Starts a program in the namespace. Its log is named by the first word.
start() {
	local name=$1
	shift
	nsenter --net="/run/netns/$net" "$@" >"$work/$name.log" 2>&1 &
	pids+=($!)
}

kube() { inside kubectl --server "$server" --insecure-skip-tls-verify --token admin-token "$@"; }

ip netns add "$net"
inside ip link set lo up
inside ip link add eth0 type veth peer name far
inside ip link set eth0 up
inside ip link set far up
inside ip address add 192.0.2.1/24 dev eth0
inside ip route add default via 192.0.2.2

start_control_plane --disable-admission-plugins ServiceAccount
write_token
kube create namespace shop
kube apply -f - <<'END'
{ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "edge-1" } }
END
kube patch node edge-1 --type merge -p '{"spec":{"taints":null}}'
patch_status() {
	inside curl -sSfk -X PATCH -H 'Authorization: Bearer admin-token' -H 'Content-Type: application/merge-patch+json' \
		"$server/api/v1/$1/status" -d "$2" >/dev/null
}
patch_status nodes/edge-1 '{"status":{"capacity":{"pods":"20","cpu":"4","memory":"4Gi"},"allocatable":{"pods":"20","cpu":"4","memory":"4Gi"},"conditions":[{"type":"Ready","status":"True"}]}}'

cat >"$work/weir.toml" <<END
[link]
device = "eth0"
capacity = "100mbit"
reservable = 0.9
engine = "htb"
[agent]
socket = "$work/weir.sock"
state = "$work/state"
[discover]
docker = false
netns = false
[kubernetes]
node = "edge-1"
server = "$server"
token_file = "$work/token"
ca_file = "$work/certs/apiserver.crt"
namespace_groups = true
END
start agent "$weir" agent --config "$work/weir.toml"
ask() { inside env WEIR_SOCKET="$work/weir.sock" "$weir" "$@"; }
node_has() { kube get node edge-1 -o 'jsonpath={.status.allocatable.weir\.dev/egress-mbit}' | grep -qx "$1"; }
until_so "the status has the unreserved bandwidth" 15 node_has 90
kube get node edge-1 -o 'jsonpath={.status.capacity}{"\n"}'

# Three pods ask for 40 Mbit/s each, and two fit.
pod() {
	kube apply -f - >/dev/null <<END
{ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "$1", "namespace": "shop", "annotations": $2 },
  "spec": { "hostNetwork": ${3:-false}, "containers": [{ "name": "c", "image": "none",
    "resources": { "limits": { "weir.dev/egress-mbit": "40" } } }] } }
END
}
is_bound() { [ -n "$(kube get pod "$1" -n shop -o 'jsonpath={.spec.nodeName}')" ]; }
pod a '{}'
pod b '{}'
until_so "pod a is bound" 15 is_bound a
until_so "pod b is bound" 15 is_bound b
pod c '{}'
waits() { kube get pod c -n shop -o 'jsonpath={.status.conditions[0].message}' | grep -q 'Insufficient weir.dev/egress-mbit'; }
until_so "pod c waits for bandwidth" 15 waits
kube get pod c -n shop -o 'jsonpath={.status.conditions[0].message}{"\n"}'

# A pod has a process in the cgroup that a kubelet would make, so it is a class.
uid=$(kube get pod a -n shop -o 'jsonpath={.metadata.uid}')
mkdir -p "$root/kubepods/burstable/pod$uid/c1"
ip netns add "${net}a"
ip -n "$net" link add va type veth peer name eth0 netns "${net}a"
ip -n "$net" link set va up
nsenter --net="/run/netns/${net}a" sleep 600 &
pids+=($!)
echo "$!" >"$root/kubepods/burstable/pod$uid/c1/cgroup.procs"
patch_status namespaces/shop/pods/a '{"status":{"phase":"Running"}}'
class_has() { ask explain shop/a | grep -qF "$1"; }
until_so "pod a is a class with its limit as its minimum" 15 class_has "min 40mbit: resource limit weir.dev/egress-mbit"
kube annotate pod a -n shop weir.dev/max=50mbit
until_so "an annotation counts" 1 class_has "max 50mbit: annotation weir.dev/max"
kube annotate pod a -n shop weir.dev/max-
until_so "its removal counts" 1 class_has "max none"
kube annotate namespace shop weir.dev/max=60mbit
group_has() { ask explain group:shop | grep -qF "max 60mbit: annotation weir.dev/max of namespace shop"; }
until_so "a namespace's annotation counts" 1 group_has
kube annotate pod a -n shop weir.dev/weight=heavy
has_event() { kube get events -n shop | grep -F WeirIgnored | grep -qF 'weir.dev/weight=heavy is ignored'; }
until_so "the pod has an event" 15 has_event
kube get events -n shop --field-selector reason=WeirIgnored

# The minimum of a class that is no pod leaves less. The agent can do no more than its role says.
ask set host min=20mbit
until_so "a promise to the host is taken off" 20 node_has 70
for forbidden in "get secrets -n weir" "delete pod a -n shop" "list nodes" "get pod a -n shop"; do
	read -ra words <<<"$forbidden"
	answer=$(kube auth can-i "${words[@]:0:2}" --as system:serviceaccount:weir:weir "${words[@]:2}" 2>/dev/null || true)
	[[ $forbidden == delete* || $forbidden == get\ pod* ]] &&
		answer=$(kube auth can-i "${words[0]}" pods -n shop --as system:serviceaccount:weir:weir || true)
	[ "$answer" = no ] || { echo "FAILED: the agent may $forbidden: $answer"; exit 1; }
done
echo "ok: secrets, deleting and reading single pods, and the list of nodes are refused"

# The server goes away and comes back.
kill -KILL "${pids[1]}"
told() { ask status | grep -qF "kubernetes: pods may be out of date: "; }
until_so "the loss of the server is told" 20 told
class_has "min 40mbit: resource limit weir.dev/egress-mbit" || { echo "FAILED: the policy is lost"; exit 1; }
echo "ok: the last known policy stays"

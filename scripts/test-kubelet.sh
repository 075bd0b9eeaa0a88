#!/usr/bin/env bash
# Pods of a real kubelet and containerd, with `weir cni` in the chain, `[kubernetes]` and `[discover] containerd`. All of
# it runs on a node in namespaces. Go builds the programs, for some minutes. Needs root and the packages below.
#   scripts/test-kubelet.sh [PART...]      parts are pods, restarts, away, kinds, bandwidth and daemonset: scripts/kubelet-PART.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" != inside ]; then
	for program in kubectl openssl runc busybox python3; do
		command -v $program >/dev/null || {
			echo "$program is missing (Debian's packages kubernetes-client, openssl, runc, busybox-static, python3)"
			exit 1
		}
	done
	[ -x /usr/lib/cni/bridge ] || { echo "/usr/lib/cni/bridge is missing (Debian's package containernetworking-plugins)"; exit 1; }
	kubernetes=$(scripts/kubernetes.sh kubelet)
	containerd=$(scripts/containerd.sh v2.3.7)
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	export parts=${*:-pods restarts away kinds bandwidth daemonset} kubernetes containerd work weir=${WEIR_BIN:-$PWD/target/debug/weir}
	scripts/node-in-namespaces.sh "$0" inside
	exit
fi
. scripts/kubelet-node.sh

finish() {
	local code=$?
	[ "$code" = 0 ] || { "$weir" doctor; "$weir" ps; kube get pods,events -A; tail -n 8 "$work"/*.log /var/log/pods/weir_*/*/*.log; } || true
	# The processes end with this one. The mounts of containers would keep their directory.
	exit "$code"
}
trap finish EXIT
trap 'echo "FAILED: ${BASH_SOURCE[0]}:$LINENO: $BASH_COMMAND"' ERR
fail() { echo "FAILED: $*"; exit 1; }

# A pod in namespace shop that sends all it can: its name, annotations, limits, and more of its specification.
pod() {
	kube apply -f - >/dev/null <<-END
		{ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "$1", "namespace": "shop", "annotations": $2 },
		  "spec": { "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "dnsPolicy": "Default", ${4:-}
		    "containers": [{ "name": "c", "image": "weir.test/busybox:1", "imagePullPolicy": "Never",
		      "command": ["sh", "-c", "while :; do nc 192.0.2.2 5001 </dev/zero; sleep 0.1; done"],
		      "resources": { "limits": ${3:-{\}} } }] } }
	END
}
of_pod() { kube get pod "$1" -n shop -o "jsonpath={$2}"; }
address_of() { of_pod "$1" .status.podIP; }
runs() { [ "$(of_pod "$1" .status.phase)" = Running ] && [ -n "$(address_of "$1")" ]; }
is_gone() { ! kube get pod "$1" -n shop; }
# The classes of a pod, and of whatever has its interface.
classes_of() { "$weir" ps --json | scripts/classes-seen.py "${1:+shop/$1}"; }
explains() { "$weir" explain "$1" | grep -qF "$2"; }
arrived() { scripts/traffic-sink.py "$1" "$work/arrived" "${@:2}"; }
# Compares numbers: fails unless LOW <= VALUE <= HIGH.
within() {
	awk -v value="$2" -v low="$3" -v high="$4" 'BEGIN { exit !(value != "" && low <= value && value <= high) }' ||
		fail "$1: $2, not $3 to $4"
	echo "ok: $1: $2 (from $3 to $4)"
}
# The mean rate of a pod over the next seconds.
rate_of() {
	local begin
	begin=$(milliseconds)
	sleep "$2"
	arrived rate "$(address_of "$1")" "$begin" $((begin + $2 * 1000))
}

node_has() {
	local status
	status=$(kube get node edge-1 -o 'jsonpath={.status.capacity.weir\.dev/egress-mbit} {.status.allocatable.weir\.dev/egress-mbit}')
	[ "$status" = "$1 $1" ]
}
# Pod web, if an earlier part has not made it.
need_web() {
	kube get pod web -n shop >/dev/null 2>&1 || pod web '{ "kubernetes.io/egress-bandwidth": "20M", "weir.dev/weight": "3", "weir.dev/min": "5mbit" }'
	until_so "pod web runs" 60 runs web
	address=$(address_of web)
}
leases() { find /var/lib/cni/networks/pods -name '10.*' | wc -l; }
has_no_class() { ! classes_of "$1" | grep -q .; }

make_link
start_cluster
write_cni
start_containerd
load_images
start_agent
start_kubelet
until_so "the node is ready" 60 node_is_ready
admit_pods
until_so "the node's status has the unreserved bandwidth" 15 node_has 90

for part in $parts; do . "scripts/kubelet-$part.sh"; done

echo "--- nothing is left"
need_web
kube delete pod web -n shop --wait=false >/dev/null
until_so "pod web is gone" 30 is_gone web
# The agent's own pod may be one.
has_no_pod() { ! classes_of | grep -q 'shop/'; }
until_so "no class of a pod is left" 10 has_no_pod
within "addresses that are taken" "$(leases)" 0 0
within "attachments that the agent keeps" "$(find /var/lib/weir/cni -type f | wc -l)" 0 0

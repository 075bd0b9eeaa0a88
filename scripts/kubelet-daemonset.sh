# Sourced by scripts/test-kubelet.sh: the agent runs in a container of packaging/kubernetes/weir.yaml, and is upgraded there.
# No controller of DaemonSets runs here, so this script makes the pods of its template.
PROGRAM=$work/cni/bin/weir scripts/busybox-image.py "$(command -v busybox)" weir.test/weir:1 >"$work/weir.tar"
containers images import "$work/weir.tar" >/dev/null 2>&1

# A pod of the DaemonSet on this node, by name.
agent_pod() {
	kube get daemonset weir -n weir -o json | python3 -c '
import json, sys
spec = json.load(sys.stdin)["spec"]["template"]["spec"]
spec["nodeName"] = "edge-1"
spec["containers"][0] |= {"image": "weir.test/weir:1", "imagePullPolicy": "Never"}
json.dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": sys.argv[1], "namespace": "weir"}, "spec": spec}, sys.stdout)
' "$1" | kube apply -f - >/dev/null
}
is_ready() { kube get pod "$1" -n weir -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' | grep -qx True; }
is_no_agent_pod() { ! kube get pod "$1" -n weir; }

echo "--- the agent moves into a container of its DaemonSet"
need_web
class=$(classes_of web)
sleep 1
begin=$(milliseconds)
stop agent TERM
agent_pod weir-1
until_so "the agent's pod is ready" 60 is_ready weir-1
until_so "it knows the pod's annotations" 10 explains shop/web "max 20mbit: annotation kubernetes.io/egress-bandwidth"
sleep 2
[ "$(classes_of web)" = "$class" ] || fail "classes: $(classes_of web), not $class"
"$weir" status | grep '^!' && fail "the agent warns"
within "the rate within any 500 ms, Mbit/s" "$(arrived peak "$address" "$begin" "$(milliseconds)")" 12 23
kube annotate pod web -n shop --overwrite kubernetes.io/egress-bandwidth=10M >/dev/null
until_so "a changed annotation counts" 5 explains shop/web "max 10mbit"
until_so "the node's status has the bandwidth of the manifest's capacity" 20 node_has "$((95 * 95 / 100 - 5))"
pod other '{ "kubernetes.io/egress-bandwidth": "15M" }'
until_so "another pod starts" 60 runs other
sleep 3
first=$(arrived first "$(address_of other)")
within "its rate within any 500 ms of its first 2 s, Mbit/s" "$(arrived peak "$(address_of other)" "$first" $((first + 2000)))" 3 17
within "its classes" "$(classes_of other | wc -l)" 1 1
pod hosted '{ "kubernetes.io/egress-bandwidth": "20M" }' '{}' '"hostNetwork": true,'
until_so "a pod in the node's network runs" 60 runs hosted
sleep 2
within "its rate, Mbit/s" "$(rate_of hosted 3)" 14 20.5
kube delete pod other hosted -n shop --wait=false >/dev/null
until_so "they are gone" 30 is_gone hosted

echo "--- the DaemonSet is upgraded"
sleep 1
begin=$(milliseconds)
kube delete pod weir-1 -n weir --wait=false >/dev/null
until_so "the old pod is gone" 60 is_no_agent_pod weir-1
agent_pod weir-2
until_so "the new one is ready" 60 is_ready weir-2
sleep 2
[ "$(classes_of web)" = "$class" ] || fail "classes: $(classes_of web), not $class"
within "the rate within any 500 ms, Mbit/s" "$(arrived peak "$address" "$begin" "$(milliseconds)")" 6 11.5
within "the mean rate, Mbit/s" "$(arrived rate "$address" "$begin" "$(milliseconds)")" 7.5 10.5

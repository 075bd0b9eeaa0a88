# Sourced by scripts/test-kubelet.sh: a pod in the node's network, a static pod, and a container that restarts.
echo "--- a pod in the node's network"
pod hosted '{ "kubernetes.io/egress-bandwidth": "20M" }' '{}' '"hostNetwork": true,'
until_so "pod hosted runs" 60 runs hosted
is_class() { classes_of "$1" | grep -qx "cni:shop/$1 .*"; }
until_so "it is a class" 10 is_class hosted
sleep 1
within "its rate, Mbit/s" "$(rate_of hosted 3)" 14 20.5
kube delete pod hosted -n shop --wait=false >/dev/null
until_so "it is gone" 30 is_gone hosted

echo "--- a static pod"
cat >"$work/static/fixed.yaml" <<-END
	apiVersion: v1
	kind: Pod
	metadata: { name: fixed, namespace: shop, annotations: { kubernetes.io/egress-bandwidth: 15M } }
	spec:
	  terminationGracePeriodSeconds: 1
	  dnsPolicy: Default
	  containers:
	  - { name: c, image: "weir.test/busybox:1", imagePullPolicy: Never, command: [sh, -c, "while :; do nc 192.0.2.2 5001 </dev/zero; sleep 0.1; done"] }
END
until_so "it runs" 60 runs fixed-edge-1
sleep 1
within "its rate, Mbit/s" "$(rate_of fixed-edge-1 3)" 11 15.5
within "its classes" "$(classes_of fixed-edge-1 | wc -l)" 1 1
rm "$work/static/fixed.yaml"
until_so "it is gone" 30 is_gone fixed-edge-1
until_so "its class is gone" 10 has_no_class fixed-edge-1

echo "--- a container ends and the kubelet starts it again"
need_web
class=$(classes_of web)
begin=$(milliseconds)
container=$(containers containers list -q 'labels."io.kubernetes.container.name"==c,labels."io.kubernetes.pod.name"==web' 2>/dev/null)
containers tasks kill -s KILL "$container" 2>/dev/null
is_restarted() { [ "$(of_pod web '.status.containerStatuses[0].restartCount')" = 1 ] && [ "$(of_pod web '.status.containerStatuses[0].ready')" = true ]; }
until_so "it runs again" 60 is_restarted
sleep 2
[ "$(classes_of web)" = "$class" ] || fail "classes: $(classes_of web), not $class"
within "the rate within any 500 ms, Mbit/s" "$(arrived peak "$address" "$begin" "$(milliseconds)")" 12 23

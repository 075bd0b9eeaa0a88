# Sourced by scripts/test-kubelet.sh: pods start and end while the agent is away, and a pod's sandbox ends.
echo "--- a pod starts while the agent is away"
stop agent KILL
pod late '{ "kubernetes.io/egress-bandwidth": "10M" }'
until_so "pod late runs" 60 runs late
start_agent
is_class() { classes_of "$1" | grep -qx "cni:shop/$1 .*"; }
until_so "it is a class" 10 is_class late
until_so "with its maximum" 5 explains shop/late "max 10mbit: annotation kubernetes.io/egress-bandwidth"
within "its rate, Mbit/s" "$(rate_of late 3)" 7 10.5
within "its classes" "$(classes_of late | wc -l)" 1 1

echo "--- the sandbox of a pod ends"
sandbox=$(containers containers list -q 'labels."io.cri-containerd.kind"==sandbox,labels."io.kubernetes.pod.name"==late' 2>/dev/null)
earlier=$(address_of late)
containers tasks kill -s KILL "$sandbox"
has_another_address() { runs late && [ "$(address_of late)" != "$earlier" ]; }
until_so "the kubelet makes another" 60 has_another_address
until_so "it is a class" 10 is_class late
sleep 1
within "its rate, Mbit/s" "$(rate_of late 3)" 7 10.5
within "its classes" "$(classes_of late | wc -l)" 1 1

echo "--- a pod ends while the agent is away"
attachments() { find /var/lib/weir/cni -type f | wc -l; }
kept=$(attachments)
stop agent TERM
kube delete pod late -n shop --wait=false >/dev/null
until_so "it is gone" 30 is_gone late
start_agent
until_so "its class is gone" 10 has_no_class late
within "attachments that the agent keeps" "$(attachments)" $((kept - 1)) $((kept - 1))

echo "--- a pod does not start without the agent if the list says so"
sed -i 's/"type": "weir",/"type": "weir", "onError": "refuse",/' "$work/cni/net.d/10-pods.conflist"
sleep 1
stop agent KILL
pod strict '{ "kubernetes.io/egress-bandwidth": "10M" }'
is_refused() { kube get events -n shop --field-selector involvedObject.name=strict,reason=FailedCreatePodSandBox | grep 'weir'; }
until_so "the kubelet tells that weir refuses it" 30 is_refused
is_refused
[ "$(of_pod strict .status.phase)" = Pending ] || fail "pod strict is not Pending"
start_agent
until_so "it runs with the agent" 60 runs strict
sleep 3
first=$(arrived first "$(address_of strict)")
within "its rate within any 500 ms of its first 2 s, Mbit/s" "$(arrived peak "$(address_of strict)" "$first" $((first + 2000)))" 3 12
within "its classes" "$(classes_of strict | wc -l)" 1 1
sed -i 's/ "onError": "refuse",//' "$work/cni/net.d/10-pods.conflist"
kube delete pod strict -n shop --wait=false >/dev/null
until_so "it is gone" 30 is_gone strict

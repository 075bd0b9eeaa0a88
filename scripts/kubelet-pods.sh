# Sourced by scripts/test-kubelet.sh: a pod's first packets, changed annotations, groups, and its end.
echo "--- a pod with annotations is shaped before its first packet"
pod free '{}'
until_so "a pod without annotations runs" 60 runs free
sleep 1
within "its rate, Mbit/s" "$(rate_of free 3)" 60 100
kube delete pod free -n shop --wait=false >/dev/null
until_so "it is gone" 30 is_gone free
need_web
sleep 3
first=$(arrived first "$address")
within "its rate within any 500 ms of its first 3 s, Mbit/s" "$(arrived peak "$address" "$first" $((first + 3000)))" 5 23
within "its rate, Mbit/s" "$(rate_of web 3)" 15 20.5
explains shop/web "max 20mbit: annotation kubernetes.io/egress-bandwidth" || fail "the maximum is not the annotation's"
explains shop/web "min 5mbit: annotation weir.dev/min" || fail "the minimum is not the annotation's"

echo "--- CNI, Kubernetes and containerd tell of one class"
within "containers of the pod in containerd" "$(containers containers list -q 'labels."io.kubernetes.pod.name"==web' 2>/dev/null | wc -l)" 2 2
class=$(classes_of)
[ "$(wc -l <<<"$class")" = 1 ] && [[ $class == "cni:shop/web "* ]] || fail "not one class: $class"
echo "ok: one class: $class"

echo "--- an annotation is changed"
for max in 40 10; do
	begin=$(milliseconds)
	kube annotate pod web -n shop --overwrite "kubernetes.io/egress-bandwidth=${max}M" >/dev/null
	told=$(milliseconds)
	until_so "max $max Mbit/s is the class's" 5 explains shop/web "max ${max}mbit"
	sleep 2
	at=$(arrived from "$address" "$begin" $((max * 7 / 10)) $((max * 23 / 20)))
	within "from kubectl's end to the new rate at the sink, ms" $((${at:-999999} + 200 - told)) -1000 2000
	within "its rate, Mbit/s" "$(rate_of web 2)" $((max * 7 / 10)) "$max.5"
done
[ "$(of_pod web '.status.containerStatuses[0].restartCount')" = 0 ] || fail "the pod has been restarted"

echo "--- a namespace is a group"
pod shop2 '{}'
until_so "pod shop2 runs" 60 runs shop2
kube annotate namespace shop weir.dev/max=24mbit >/dev/null
until_so "the namespace's annotation is the group's" 5 explains group:shop "max 24mbit: annotation weir.dev/max of namespace shop"
kube annotate pod web -n shop kubernetes.io/egress-bandwidth- >/dev/null
sleep 2
begin=$(milliseconds)
sleep 4
end=$(milliseconds)
web=$(arrived rate "$address" "$begin" "$end")
other=$(arrived rate "$(address_of shop2)" "$begin" "$end")
within "both pods together, Mbit/s" "$(awk "BEGIN { print $web + $other }")" 18 24.5
within "their ratio, by weights 3 and 1" "$(awk "BEGIN { print $web / $other }")" 2.4 3.6
kube annotate namespace shop weir.dev/max- >/dev/null
kube annotate pod web -n shop kubernetes.io/egress-bandwidth=20M >/dev/null
until_so "the pod has its maximum back" 5 explains shop/web "max 20mbit"

echo "--- a pod is deleted"
kube delete pod shop2 -n shop --wait=false >/dev/null
until_so "its class is gone" 30 has_no_class shop2
until_so "it is gone" 30 is_gone shop2
within "addresses that are taken" "$(leases)" 1 1
within "attachments that the agent keeps" "$(find /var/lib/weir/cni -type f | wc -l)" 1 1
within "interfaces on the bridge" "$(ip -o link show master cni0 | wc -l)" 1 1
! grep -h "weir" "$work/containerd.log" "$work/kubelet.log" | grep -iq "cni.*\(fail\|error\)" || fail "CNI DEL: $(grep -h weir "$work/containerd.log" | grep -i cni | tail -n 3)"

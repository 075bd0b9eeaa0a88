# Sourced by scripts/test-kubelet.sh: kubelet, containerd and the agent are restarted while pod web sends.
need_web
class=$(classes_of web)

# Records the classes until the file $work/sampled is gone.
sample() {
	while [ -e "$work/sampled" ]; do
		"$weir" ps --json >>"$work/sampled" 2>/dev/null || true
		sleep 0.1
	done
}

# Restarts a program by a signal. Any class beside the pod's, another handle and a rate above the maximum are failures.
restart() {
	local name=$1 signal=$2 begin sampler seen
	echo "--- $name ends by SIG$signal and starts again"
	sleep 1
	begin=$(milliseconds)
	>"$work/sampled"
	sample &
	sampler=$!
	sleep 1
	stop "$name" "$signal"
	sleep 2
	"start_$name"
	sleep "${3:-6}"
	mv "$work/sampled" "$work/samples"
	wait "$sampler"
	seen=$(scripts/classes-seen.py <"$work/samples")
	[ "$seen" = "$class" ] || fail "classes of the samples: $seen, not $class"
	within "samples that show one class" "$(grep -c '"source": "cni"' "$work/samples")" 20 1000
	within "the rate within any 500 ms, Mbit/s" "$(arrived peak "$address" "$begin" "$(milliseconds)")" 12 23
	within "the mean rate, Mbit/s" "$(arrived rate "$address" "$begin" "$(milliseconds)")" 15 20.5
	[ "$(address_of web)" = "$address" ] || fail "the pod has another address"
	[ "$(of_pod web '.status.containerStatuses[0].restartCount')" = 0 ] || fail "the pod has been restarted"
}

restart kubelet TERM
restart kubelet KILL
restart containerd TERM
restart containerd KILL
restart agent TERM
restart agent KILL

echo "--- the kubelet, containerd and the agent end at once"
for name in kubelet containerd agent; do stop $name KILL; done
begin=$(milliseconds)
sleep 2
start_agent
until_so "the agent has the pod without the others" 10 explains shop/web "max 20mbit"
start_containerd
start_kubelet
sleep 5
[ "$(classes_of)" = "$class" ] || fail "classes: $(classes_of), not $class"
within "the rate within any 500 ms, Mbit/s" "$(arrived peak "$address" "$begin" "$(milliseconds)")" 12 23
within "the mean rate, Mbit/s" "$(arrived rate "$address" "$begin" "$(milliseconds)")" 15 20.5

# Sourced by scripts/test-kubelet.sh on the node that scripts/node-in-namespaces.sh makes. It starts etcd, an API server,
# a scheduler, containerd, a kubelet and the agent there, each by a function. A sink beyond the link takes traffic.
# $work is a directory, $kubernetes and $containerd have the programs, and $weir is weir.
. scripts/control-plane.sh
declare -A pid_of

# Starts a program. Its log is named by the first word.
start() {
	local name=$1
	shift
	"$@" >>"$work/$name.log" 2>&1 </dev/null &
	pid_of[$name]=$!
}

# Ends a program by a signal, and waits until it is gone.
stop() {
	kill "-$2" "${pid_of[$1]}"
	wait "${pid_of[$1]}" 2>/dev/null || true
}

# The address at which pods of the node's network look for the API server, by a service that no proxy serves here.
server=https://10.96.0.1:443
kube() {
	kubectl --cache-dir "$work/kubectl" --server "$server" --insecure-skip-tls-verify --token admin-token "$@"
}
# Containers of the kubelet.
containers() { "$containerd/ctr" -n k8s.io "$@"; }

make_link() {
	# A namespace with a name would be a class.
	start sink unshare --net scripts/traffic-sink.py serve 0.0.0.0 5001 "$work/arrived"
	until [ "$(readlink "/proc/${pid_of[sink]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
	local in_sink=(nsenter --net="/proc/${pid_of[sink]}/ns/net")
	ip link add eth0 type veth peer name eth0 netns "${pid_of[sink]}"
	ip link set dev eth0 up
	ip address add 192.0.2.1/24 dev eth0
	"${in_sink[@]}" ip link set dev eth0 up
	"${in_sink[@]}" ip address add 192.0.2.2/24 dev eth0
	# The pods have their own addresses there, so that it tells one from another.
	"${in_sink[@]}" ip route add 10.88.0.0/16 via 192.0.2.1
	ip route add default via 192.0.2.2
	echo 1 >/proc/sys/net/ipv4/ip_forward
}

start_cluster() {
	ip address add 10.96.0.1/32 dev lo
	start_control_plane --allow-privileged
	# No controller runs here, which would make these.
	kube create configmap kube-root-ca.crt -n weir --from-file=ca.crt="$work/certs/apiserver.crt" >/dev/null
	kube create namespace shop >/dev/null
	kube create serviceaccount default -n shop >/dev/null
	write_token
}

write_cni() {
	mkdir -p "$work/cni/bin" "$work/cni/net.d"
	ln -sf /usr/lib/cni/* "$work/cni/bin/"
	ln -sf "$weir" "$work/cni/bin/weir"
	cat >"$work/cni/net.d/10-pods.conflist" <<-'END'
		{ "cniVersion": "1.0.0", "name": "pods", "plugins": [
		  { "type": "bridge", "bridge": "cni0", "isGateway": true,
		    "ipam": { "type": "host-local", "subnet": "10.88.0.0/16", "routes": [{ "dst": "0.0.0.0/0" }] } },
		  { "type": "weir", "capabilities": { "bandwidth": true, "io.kubernetes.cri.pod-annotations": true } } ] }
	END
}

start_containerd() {
	cat >"$work/containerd.toml" <<-END
		version = 3
		root = "$work/containerd"
		state = "/run/containerd"
		[grpc]
		address = "/run/containerd/containerd.sock"
		[plugins."io.containerd.cri.v1.images".pinned_images]
		sandbox = "weir.test/pause:1"
		[plugins."io.containerd.cri.v1.runtime"]
		restrict_oom_score_adj = true
		enable_unprivileged_ports = false
		enable_unprivileged_icmp = false
		[plugins."io.containerd.cri.v1.runtime".cni]
		bin_dirs = ["$work/cni/bin"]
		conf_dir = "$work/cni/net.d"
	END
	start containerd env PATH="$containerd:$PATH" "$containerd/containerd" -c "$work/containerd.toml"
	until_so "containerd answers" 30 containers version
}

load_images() {
	scripts/busybox-image.py "$(command -v busybox)" weir.test/busybox:1 weir.test/pause:1 >"$work/images.tar"
	containers images import "$work/images.tar" >/dev/null
}

start_kubelet() {
	cat >"$work/kubelet.yaml" <<-END
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		failCgroupV1: false
		cgroupDriver: cgroupfs
		enforceNodeAllocatable: []
		localStorageCapacityIsolation: false
		makeIPTablesUtilChains: false
		failSwapOn: false
		resolvConf: ""
		authentication: { anonymous: { enabled: true }, webhook: { enabled: false } }
		authorization: { mode: AlwaysAllow }
		containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
		staticPodPath: $work/static
		volumePluginDir: $work/volume-plugins
		imageGCHighThresholdPercent: 100
		evictionHard: { memory.available: "1Mi" }
		# So that it writes the status many times in the test.
		nodeStatusUpdateFrequency: 2s
		nodeStatusReportFrequency: 2s
	END
	mkdir -p "$work/static"
	start kubelet "$kubernetes/kubelet" --config "$work/kubelet.yaml" --kubeconfig "$work/kubeconfig" \
		--hostname-override edge-1 --node-ip 192.0.2.1
}

node_is_ready() { kube get node edge-1 | grep -qw Ready; }

# Without a controller no one takes the taint of a new node away.
admit_pods() { kube patch node edge-1 --type merge -p '{"spec":{"taints":null}}' >/dev/null; }

start_agent() {
	cat >"$work/weir.toml" <<-END
		[link]
		device = "eth0"
		capacity = "100mbit"
		reservable = 0.9
		engine = "htb"
		[agent]
		at_end = "keep"
		[discover]
		docker = false
		containerd = true
		[kubernetes]
		node = "edge-1"
		server = "$server"
		token_file = "$work/token"
		ca_file = "$work/certs/apiserver.crt"
		namespace_groups = true
	END
	start agent "$weir" agent --config "$work/weir.toml"
	until_so "the agent answers" 30 "$weir" status
}

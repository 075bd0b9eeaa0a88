# Sourced by tests with a real API server: etcd, the server and a scheduler. The test has `start`, which starts a program by a
# name. Its `kube` is kubectl as the administrator. $work is a directory, and $kubernetes has the programs. $server is the
# server's URL with its port.

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

# Waits until a command succeeds. Sets $took, in milliseconds.
until_so() {
	local what=$1 seconds=$2 begin
	shift 2
	begin=$(milliseconds)
	until "$@" >/dev/null 2>&1; do
		if [ $(($(milliseconds) - begin)) -ge $((seconds * 1000)) ]; then
			echo "FAILED: not within $seconds s: $what: $("$@" 2>&1 || true)"
			exit 1
		fi
		sleep 0.02
	done
	took=$(($(milliseconds) - begin))
	echo "ok: $what (after $took ms)"
}

# The arguments are more of the API server's. The manifests pass its validation.
start_control_plane() {
	local address=${server#https://}
	echo 'admin-token,admin,1,"system:masters"' >"$work/tokens"
	openssl genrsa -out "$work/account.key" 2048 2>/dev/null
	start etcd "$kubernetes/etcd" --data-dir "$work/store" --listen-client-urls http://127.0.0.1:2379 \
		--advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
	start apiserver "$kubernetes/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --cert-dir "$work/certs" \
		--token-auth-file "$work/tokens" --service-account-issuer https://weir.invalid \
		--service-account-key-file "$work/account.key" --service-account-signing-key-file "$work/account.key" \
		--service-cluster-ip-range 10.96.0.0/24 --authorization-mode RBAC \
		--bind-address "${address%:*}" --secure-port "${address##*:}" "$@"
	until_so "the API server answers" 60 kube get --raw /readyz
	cat >"$work/kubeconfig" <<-END
		apiVersion: v1
		kind: Config
		clusters: [{ name: c, cluster: { server: "$server", insecure-skip-tls-verify: true } }]
		users: [{ name: u, user: { token: admin-token } }]
		contexts: [{ name: x, context: { cluster: c, user: u } }]
		current-context: x
	END
	start scheduler "$kubernetes/kube-scheduler" --kubeconfig "$work/kubeconfig" --leader-elect=false --secure-port 0
	kube apply -f packaging/kubernetes/weir.yaml >/dev/null
}

# Writes a token of the agent's service account, whose rights are the agent's alone.
write_token() {
	echo '{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}' >"$work/request.json"
	kube create --raw /api/v1/namespaces/weir/serviceaccounts/weir/token -f "$work/request.json" |
		sed 's/.*"token":"\([^"]*\)".*/\1/' >"$work/token"
}

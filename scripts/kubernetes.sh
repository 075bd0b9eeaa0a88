#!/usr/bin/env bash
# Prints a directory with etcd, kube-apiserver and kube-scheduler, and makes them first if they are not there. The word
# `kubelet` adds the kubelet. Go builds Kubernetes' programs from its module proxy: 7 minutes and 5 GB on two processors,
# and 1 minute more with the kubelet. etcd is the package's.
set -euo pipefail
version=1.36.3
programs="kube-apiserver:APIServer: kube-scheduler:Scheduler:"
[ "${1:-}" != kubelet ] || programs+=" kubelet:Kubelet:context.Background()"
dir=${WEIR_KUBERNETES:-$HOME/.cache/weir-kubernetes-$version}
mkdir -p "$dir"
work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

if [ ! -x "$dir/etcd" ]; then
	work=$(mktemp -d)
	(cd "$work" && apt-get download -q etcd-server && dpkg -x etcd-server_*.deb .) >&2
	cp "$work/usr/bin/etcd" "$dir/etcd"
	rm -r "$work"
fi

prepare() {
	go mod download -json "k8s.io/kubernetes@v$version" >download.json
	local file
	file=$(sed -n 's/.*"GoMod": "\(.*\)".*/\1/p' download.json)
	[ -n "$file" ] || { echo "go mod download names no GoMod of Kubernetes $version: $(head -c 300 download.json)"; exit 1; }
	{
		echo "module weir-kubernetes"
		echo "go $(awk '$1 == "go" { print $2 }' "$file")"
		echo "require k8s.io/kubernetes v$version"
		# The parts of Kubernetes' repository have no version of their own there.
		grep -oE 'k8s.io/[a-z-]+ v0\.0\.0( |$)' "$file" | sort -u |
			sed "s/\(.*\) v0.0.0 */replace \1 => \1 v0.${version#*.}/"
	} >go.mod
	go get "k8s.io/kubernetes@v$version"
}

# Builds one program: its name, the name of its command in Go, and that command's arguments.
build() {
	local command=$1 imports='"os"'
	[ -z "$3" ] || imports='"context"; "os"'
	mkdir -p "$command"
	cat >"$command/main.go" <<-GO
		package main

		import (
			${imports//; /$'\n\t'}

			"k8s.io/component-base/cli"
			"k8s.io/kubernetes/cmd/$command/app"
		)

		func main() { os.Exit(cli.Run(app.New$2Command($3))) }
	GO
	go build -trimpath -o "$dir/$command" \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version" "./$command"
}

missing=()
for program in $programs; do
	[ -x "$dir/${program%%:*}" ] || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ]; then
	command -v go >/dev/null || { echo "there is no Go to build Kubernetes" >&2; exit 1; }
	work=$(mktemp -d)
	echo "building ${missing[*]%%:*} of Kubernetes $version in $work, for some minutes" >&2
	(
		cd "$work"
		export GOFLAGS=-mod=mod CGO_ENABLED=0
		prepare
		for program in "${missing[@]}"; do
			IFS=: read -r command name arguments <<<"$program"
			build "$command" "$name" "$arguments"
		done
	) >&2
fi
echo "$dir"

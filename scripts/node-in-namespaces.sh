#!/usr/bin/env bash
# Runs a command as if on a node of its own: namespaces of network, processes, mounts and cgroups, and empty directories of
# state. All processes that it leaves behind end with it, and its cgroups go.
#   scripts/node-in-namespaces.sh COMMAND...
# Needs root. cgroup v2 is one hierarchy, and v1 has several.
set -euo pipefail
empty=(/run /var/log /var/lib/cni /var/lib/kubelet /var/lib/weir)
if [ "${1:-}" != inside ]; then
	name=weirnode$$
	tops=()
	made=()
	for directory in "${empty[@]}"; do
		[ -d "$directory" ] || { mkdir "$directory"; made+=("$directory"); }
	done
	for top in /sys/fs/cgroup /sys/fs/cgroup/*; do
		[ ! -e "$top/cgroup.procs" ] || [[ $(stat -fc %T "$top") != cgroup* ]] || tops+=("$top")
		# Below a v2 root the directories are cgroups.
		[ "$(stat -fc %T "$top")" != cgroup2fs ] || [ "$top" != /sys/fs/cgroup ] || break
	done
	finish() {
		local code=$? top
		for top in "${tops[@]}"; do
			find "$top/$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
		done
		[ ${#made[@]} = 0 ] || rmdir "${made[@]}"
		exit "$code"
	}
	trap finish EXIT
	for top in "${tops[@]}"; do
		mkdir "$top/$name"
		# A cgroup of v1 without processors takes no process.
		for file in cpuset.mems cpuset.cpus; do
			[ ! -e "$top/$name/$file" ] || cat "$top/$file" >"$top/$name/$file"
		done
		[ ! -e "$top/$name/cgroup.clone_children" ] || [ ! -e "$top/$name/cpuset.cpus" ] || echo 1 >"$top/$name/cgroup.clone_children"
	done
	# The namespace begins at the cgroups that its first process is in.
	(
		for top in "${tops[@]}"; do echo 0 >"$top/$name/cgroup.procs"; done
		exec unshare --net --mount --pid --fork --kill-child --cgroup "$0" inside "$@"
	) &
	child=$!
	trap 'kill -KILL $child 2>/dev/null || true' INT TERM
	wait "$child"
	exit
fi

shift
mount --make-rprivate /
mount -t proc proc /proc
hierarchies=$(grep -E ' - cgroup2? ' /proc/self/mountinfo | awk '{ print $5, $(NF - 2), $NF }')
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
# Of v1 each hierarchy has a directory. A v2 hierarchy alone is the directory itself.
grep -q '^/sys/fs/cgroup ' <<<"$hierarchies" || mount -t tmpfs tmpfs /sys/fs/cgroup
while read -r at kind options; do
	mkdir -p "$at"
	if [ "$kind" = cgroup2 ]; then
		mount -t cgroup2 cgroup2 "$at"
	else
		mount -t cgroup -o "${options#rw,}" cgroup "$at"
	fi
done <<<"$hierarchies"
for directory in "${empty[@]}"; do mount -t tmpfs tmpfs "$directory"; done
# Mounts in here are seen by the containers that share them, as on a node.
mount --make-rshared /
ip link set lo up
exec "$@"

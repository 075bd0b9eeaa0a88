#!/usr/bin/env bash
# Runs a command as if on a node of its own: namespaces of network, processes, mounts and cgroups, and empty directories of
# state. All processes that it leaves behind end with it, its cgroups go, and the kernel's settings are as before.
#   scripts/node-in-namespaces.sh COMMAND...
# Needs root. cgroup v2 is one hierarchy, and v1 has several.
set -euo pipefail
empty=(/run /var/log /var/lib/cni /var/lib/kubelet /var/lib/weir)
# A kubelet writes these. They are the machine's, and no namespace has its own.
settings=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)
if [ "${1:-}" != inside ]; then
	name=weirnode$$
	tops=()
	made=()
	declare -A was=()
	for setting in "${settings[@]}"; do
		[ ! -e "/proc/sys/$setting" ] || was[$setting]=$(<"/proc/sys/$setting")
	done
	# Removes the cgroups and the directories. Sets $left to those that stay.
	remove() {
		local top directory
		left=()
		for top in "${tops[@]}"; do
			[ ! -e "$top/$name" ] || find "$top/$name" -depth -type d -exec rmdir {} + 2>/dev/null
			[ ! -e "$top/$name" ] || left+=("$top/$name")
		done
		for directory in "${made[@]}"; do
			[ ! -e "$directory" ] || rmdir "$directory" 2>/dev/null || left+=("$directory")
		done
		[ ${#left[@]} = 0 ]
	}
	finish() {
		local code=$? setting
		set +e
		# Processes end some time after the first one of their namespace.
		for _ in {1..50}; do
			remove && break
			sleep 0.1
		done
		[ ${#left[@]} = 0 ] || echo "cannot remove after 5 s: ${left[*]}" >&2
		for setting in "${!was[@]}"; do
			[ "$(<"/proc/sys/$setting")" = "${was[$setting]}" ] || echo "${was[$setting]}" >"/proc/sys/$setting"
		done
		exit "$code"
	}
	trap finish EXIT
	for directory in "${empty[@]}"; do
		[ -d "$directory" ] || { mkdir "$directory"; made+=("$directory"); }
	done
	for top in /sys/fs/cgroup /sys/fs/cgroup/*; do
		[ ! -e "$top/cgroup.procs" ] || [[ $(stat -fc %T "$top") != cgroup* ]] || tops+=("$top")
		# Below a v2 root the directories are cgroups.
		[ "$(stat -fc %T "$top")" != cgroup2fs ] || [ "$top" != /sys/fs/cgroup ] || break
	done
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

#!/usr/bin/env bash
# Runs the tests that send real traffic with each agent under the limits of packaging/weir.service, without
# systemd. Arguments and WEIR_TESTS are those of scripts/test-netns.sh; engine `user` gets its drop-in.
# WEIR_BIN names the program, target/release/weir if it is not set. As root.
set -euo pipefail
cd "$(dirname "$0")/.."

weir=$(realpath "${WEIR_BIN:-target/release/weir}")
# A path that the unit's private /tmp does not hide; the tests' files stand for the unit's state.
dir=$(mktemp -d /run/weir-unit-XXXXXX)
tag=$(basename "$dir")
groups=/sys/fs/cgroup/memory
[ -d $groups ] || groups=/sys/fs/cgroup

finish() {
	# The peak of all agents: version 1 and version 2 name the file differently.
	{ cat $groups/"$tag"-*/memory.{max_usage_in_bytes,peak} 2>/dev/null || true; } | sort -n | tail -n 1 |
		awk '{ printf "under the unit: an agent had %.0f MiB of memory at most, page cache included\n", $1 / 1048576 }'
	rmdir $groups/"$tag"-* 2>/dev/null || true
	rm -rf "$dir"
}
trap finish EXIT

mkdir "$dir/etc" "$dir/tests"
# The unit's RuntimeDirectory=, which has the agents' locks.
mkdir -p -m 755 /run/weir
cp "$weir" "$dir/weir"
cp packaging/weir.service packaging/weir-engine-user.conf scripts/under-unit.py "$dir/"
# The unit's group, where this machine has none.
cp /etc/group "$dir/etc/group"
getent group weir >/dev/null || echo "weir:x:61990:" >>"$dir/etc/group"
unit=$dir/weir.service
[[ "${WEIR_ENGINES:-}" != *user* ]] || unit+=:$dir/weir-engine-user.conf
# Verbs that ask the agent are an operator's, without limits.
cat >"$dir/limited" <<END
#!/bin/sh
[ "\${1:-}" = agent ] || exec $dir/weir "\$@"
UNIT_WRITABLE=$dir/tests:/run/weir UNIT_ETC=$dir/etc UNIT_TAG=$tag exec $dir/under-unit.py $unit $dir/weir "\$@"
END
chmod +x "$dir/limited"

files=$(sed -n 's/^LimitNOFILE=//p' packaging/weir.service)
[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge "$files" ] ||
	echo "under the unit: agents have $(ulimit -Hn) descriptors, not $files"
TMPDIR=$dir/tests WEIR_BIN=$dir/limited scripts/test-netns.sh "$@"

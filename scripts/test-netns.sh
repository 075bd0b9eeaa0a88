#!/usr/bin/env bash
# Runs the tests that send real traffic, one at a time, in namespaces of this machine. Arguments
# go to the tests (`--skip NAME`).
#
# Their figures are real time, and a machine that is shared may stand still for longer than a
# queue lasts. So a test that fails is run once more, alone, in a process of its own; only what
# fails twice fails. Which tests needed it is said at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
again=() failed=()

for file in lib tests/netns/tests/*.rs; do
	name=$(basename "$file" .rs)
	target=(--test "$name")
	[ "$name" = lib ] && target=(--lib)
	suite() {
		$CARGO test --locked -p weir-netns-tests "${target[@]}" -- --test-threads=1 --nocapture "$@" 2>&1 | tee "$log"
	}
	suite "$@" && continue
	# libtest's last list: a name a line, below "failures:".
	mapfile -t names < <(awk '/^failures:$/ { list = 1; next } /^test result/ { list = 0 } list && NF == 1 { print $1 }' "$log" | sort -u)
	if [ ${#names[@]} -eq 0 ]; then
		failed+=("$name: no test ran to its end")
		continue
	fi
	for one in "${names[@]}"; do
		echo "==== $name $one failed: once more, from the start"
		sleep 10
		if suite --exact "$one"; then again+=("$name $one"); else failed+=("$name $one"); fi
	done
done

[ ${#again[@]} -eq 0 ] || printf '==== passed the second time only: %s\n' "${again[@]}"
if [ ${#failed[@]} -gt 0 ]; then
	printf '==== failed: %s\n' "${failed[@]}"
	exit 1
fi

#!/usr/bin/env bash
# Runs the tests that send real traffic, one at a time, in namespaces of this machine. Arguments
# go to the tests (`--skip NAME`); WEIR_TESTS names the files to run, all without.
#
# Their figures are real time, and a machine that is shared may stand still for longer than a
# queue lasts. So a test that fails is run again, alone, in a process of its own: at once, and if
# need be a last time after all others. What fails three times fails; which tests needed more than
# one go is said at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
late=() again=() failed=()

# Runs tests of one file: lib, or the name of one in tests/.
suite() {
	local target=(--test "$1")
	[ "$1" = lib ] && target=(--lib)
	shift
	$CARGO test --locked -p weir-netns-tests "${target[@]}" -- --test-threads=1 --nocapture "$@" 2>&1 | tee "$log"
}

for file in lib tests/netns/tests/*.rs tests/netns/tests/*/main.rs; do
	name=$(basename "${file%/main.rs}" .rs)
	[[ " ${WEIR_TESTS:-$name} " == *" $name "* ]] || continue
	suite "$name" "$@" && continue
	# libtest's last list: a name a line, below "failures:".
	mapfile -t names < <(awk '/^failures:$/ { list = 1; next } /^test result/ { list = 0 } list && NF == 1 { print $1 }' "$log" | sort -u)
	if [ ${#names[@]} -eq 0 ]; then
		failed+=("$name: no test ran to its end")
		continue
	fi
	for one in "${names[@]}"; do
		echo "==== $name $one failed: again, from the start"
		sleep 10
		if suite "$name" --exact "$one"; then again+=("2 goes: $name $one"); else late+=("$name $one"); fi
	done
done

for one in "${late[@]}"; do
	echo "==== $one failed twice: a last time"
	sleep 30
	read -r name test <<<"$one"
	if suite "$name" --exact "$test"; then again+=("3 goes: $one"); else failed+=("$one"); fi
done

[ ${#again[@]} -eq 0 ] || printf '==== passed, but took %s\n' "${again[@]}"
if [ ${#failed[@]} -gt 0 ]; then
	printf '==== failed: %s\n' "${failed[@]}"
	exit 1
fi

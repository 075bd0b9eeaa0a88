#!/usr/bin/env bash
# Runs the unit and property tests. Some of weir-lab and weir-image measure real time, and a machine
# that is shared may stand still for longer than a queue lasts: what of theirs fails has one more go,
# by itself, and the end says so. All others have one.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
$CARGO test --workspace --locked --no-fail-fast --exclude weir-netns-tests 2>&1 | tee "$log" && exit

# Cargo's last list: how to run each target that failed.
mapfile -t targets < <(sed -n 's/^    `\(-p .*\)`$/\1/p' "$log")
again=() failed=()
for target in "${targets[@]}"; do
	echo "==== $target failed"
	if [[ "$target" == "-p weir-"@(lab|image)" --test "* ]] &&
		$CARGO test --locked $target -- --test-threads=1; then
		again+=("$target")
	else
		failed+=("$target")
	fi
done
[ ${#again[@]} -eq 0 ] || printf '==== passed, but took 2 goes: %s\n' "${again[@]}"
if [ ${#failed[@]} -gt 0 ] || [ ${#targets[@]} -eq 0 ]; then
	printf '==== failed: %s\n' "${failed[@]:-the build}"
	exit 1
fi

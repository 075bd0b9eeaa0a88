#!/usr/bin/env bash
# Runs the unit and property tests, and the examples of the documentation. Tests with real traffic run in
# scripts/test-netns.sh. Output of passed tests is shown, because it says what was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"

mkdir -p target/test-report
log=$PWD/target/test-report/unit.log
tests=$(scripts/test-executables.py)
failed=$(mktemp)
beside=$(mktemp)
trap 'rm -f "$failed" "$beside"' EXIT

# Runs the tests of the packages that match, or do not match (-v).
run() {
	grep "$@" <<<"$tests" | while read -r package test executable directory; do
		echo "     Running $package $test"
		(cd "$directory" && "$executable" --show-output 2>&1 </dev/null) || echo "$package $test" >>"$failed"
	done
}

{
	# The image cache's tests wait more than they compute.
	run '^weir-image ' >"$beside" &
	run -v -e '^weir-netns-tests ' -e '^weir-lab experiments ' -e '^weir-image '
	$CARGO test --workspace --doc --locked 2>&1 || echo documentation >>"$failed"
	wait
	cat "$beside"
} | tee "$log"

if [ -s "$failed" ]; then
	sed 's/^/==== failed: /' "$failed"
	exit 1
fi

#!/usr/bin/env bash
# Runs the tests that send real traffic, one at a time, in namespaces of this machine. Arguments
# go to the tests (`--skip NAME`). WEIR_TESTS names the files to run; without it all of them run.
# WEIR_REPORT is a part of the report's name, for a second run of the same engines.
#
# A test measures once. A measurement counts a second time only if the machine stood still during
# the first one. Such a test prints a line with both figures; scripts/test-report.sh lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"

mkdir -p target/test-report
log=target/test-report/netns-${WEIR_ENGINES:-all}${WEIR_REPORT:+-$WEIR_REPORT}.log
: >"$log"
failed=()

for file in lib testing/netns/tests/*.rs testing/netns/tests/*/main.rs; do
	name=$(basename "${file%/main.rs}" .rs)
	[[ " ${WEIR_TESTS:-$name} " == *" $name "* ]] || continue
	target=(--test "$name")
	[ "$name" = lib ] && target=(--lib)
	$CARGO test --locked -p weir-netns-tests "${target[@]}" -- --test-threads=1 --nocapture "$@" 2>&1 |
		tee -a "$log" || failed+=("$name")
done

if [ ${#failed[@]} -gt 0 ]; then
	printf '==== failed: %s\n' "${failed[@]}"
	exit 1
fi

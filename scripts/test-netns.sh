#!/usr/bin/env bash
# Runs the tests that send real traffic, one at a time, in namespaces of this machine. Arguments
# go to the tests (`--skip NAME`). WEIR_TESTS names the files to run; without it all of them run.
# They are those of testing/netns/tests, and the lab's experiments.
# WEIR_REPORT is a part of the report's name, for a second run of the same engines.
#
# A test measures once. A measurement counts a second time only if the machine stood still during
# the first one. Such a test prints a line with both figures; scripts/test-report.sh lists them.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p target/test-report
log=$PWD/target/test-report/netns-${WEIR_ENGINES:-all}${WEIR_REPORT:+-$WEIR_REPORT}.log
: >"$log"
failed=()

tests=$(scripts/test-executables.py | grep -e '^weir-netns-tests ' -e '^weir-lab experiments ' | sort -k 2,2)
for name in ${WEIR_TESTS:-}; do
	grep -q "^[a-z-]* $name " <<<"$tests" || { echo "there is no suite $name in testing/netns/tests"; exit 1; }
done
while read -r _ name executable directory; do
	[[ " ${WEIR_TESTS:-$name} " == *" $name "* ]] || continue
	echo "     Running $name" | tee -a "$log"
	(cd "$directory" && "$executable" --test-threads=1 --nocapture "$@" 2>&1 </dev/null) |
		tee -a "$log" || failed+=("$name")
done <<<"$tests"

if [ ${#failed[@]} -gt 0 ]; then
	printf '==== failed: %s\n' "${failed[@]}"
	exit 1
fi

#!/bin/sh
# Says what the last runs of the test scripts measured twice, skipped, and did not run by choice.
# Arguments name what the caller left out.
cd "$(dirname "$0")/.." || exit 1
# The test of measure_once itself makes the machine stand still.
found() { grep -ho "$1.*" target/test-report/*.log | grep -v 'testkit/src/stalls.rs' | sort | uniq -c; }
report() {
	found "$2" | awk '{ n += $1 } END { print n + 0 }' | sed "s/^/==== $1: /"
	found "$2" | sed 's/^ */  /'
}

report 'measured twice, because the machine stood still' 'MEASURED TWICE'
report skipped 'SKIPPED'
echo "==== not run: ${*:-nothing is left out}"

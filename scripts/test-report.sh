#!/bin/sh
# Says what the last runs of the test scripts measured twice, skipped, and did not run by choice.
# Arguments name what the caller left out.
cd "$(dirname "$0")/.." || exit 1
count() { grep -hc "$1" target/test-report/*.log | awk '{ n += $1 } END { print n + 0 }'; }
list() { grep -ho "$1.*" target/test-report/*.log | sort | uniq -c | sed 's/^ */  /'; }

echo "==== measured twice, because the machine stood still: $(count 'MEASURED TWICE')"
list 'MEASURED TWICE'
echo "==== skipped: $(count 'SKIPPED')"
list 'SKIPPED'
echo "==== not run: ${*:-nothing is left out}"

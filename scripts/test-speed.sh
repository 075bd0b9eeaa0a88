#!/usr/bin/env bash
# Runs the tests that measure speed, built for release.
set -euo pipefail
cd "$(dirname "$0")/.."

tests=$(scripts/test-executables.py --profile bench -p weir-share -p weir-agree -p weir-htb -p weir-cache \
	--test speed --test rates --test instructions --test equivalence --test simulate)
while read -r package name executable directory; do
	echo "     Running $package $name"
	# The other simulations are unit tests.
	filter=""
	[ "$name" != simulate ] || filter=a_million
	(cd "$directory" && "$executable" --nocapture $filter </dev/null)
done <<<"$tests"

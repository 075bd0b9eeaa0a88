#!/usr/bin/env bash
# Runs the unit and property tests. A test measures once, as in scripts/test-netns.sh. Output of
# passed tests is shown, because it says what was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"

mkdir -p target/test-report
$CARGO test --workspace --locked --no-fail-fast --exclude weir-netns-tests -- --show-output 2>&1 |
	tee target/test-report/unit.log

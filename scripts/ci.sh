#!/usr/bin/env bash
# CI's tests: the lints, the README's test command and nearly all other tests. The end of the run says what it leaves
# out. Guests in virtual time run where nothing else wants a processor. They have ended before the first
# suite that they would move.
set -euo pipefail
cd "$(dirname "$0")/.."
# Nothing is built again here, and this saves a tenth of the time.
export CARGO_INCREMENTAL=0
# A panic names its line without them.
export CARGO_PROFILE_DEV_DEBUG=none
# No release is built. How fast an optimised program is, `make test-speed` and `make test-rest` measure elsewhere.
export PROGRAM=target/debug/weir

# Before the guests, which would wait for the same build.
make build-tests build-rest

log=$(mktemp)
# A process group of its own, and the same session: the kernel weighs processes by priority inside a session only.
set -m
chrt --idle 0 make test-vm VM_TIMEOUT=5000 VM_BRIEF=yes >"$log" 2>&1 &
vm=$!
set +m
trap 'kill -- -$vm 2>/dev/null || true; rm -f "$log"' EXIT

code=0
# Before the lints, which hold cargo's lock for minutes: the guests ask cargo for their tests when they start.
make conformance || code=$?
make lint
make test BEFORE_TRAFFIC="make rest-beside-guests && tail --pid=$vm -f /dev/null" || code=$?
wait $vm || code=$?
cat "$log"
make rest-alone LEFT_OUT='"what needs an optimised program," "make test-speed," "make test-runtimes," "make test-dashboard," "make test-schema," "make test-clients," "make test-arm64," "the tests of guests that VM_LONG of the Makefile names,"' || code=$?
exit $code

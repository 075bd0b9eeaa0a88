#!/usr/bin/env bash
# Runs the fuzz targets of fuzz/, one on each core at a time: `scripts/fuzz.sh [--keep] [--turn] [TARGET...]`,
# FUZZ_SECONDS each (60 unless set). A crash is a failure; its input stays in fuzz/artifacts.
#
#   --keep   add the inputs that reach new code to the corpora in fuzz/corpus
#   --turn   every fifth target: five commits in a row run all of them
#
# Coverage comes from stable Rust. There is no address sanitizer, which needs nightly.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
: "${FUZZ_SECONDS:=60}" "${CARGO:=cargo}"

keep=no
turn=no
while :; do
	case ${1:-} in
	--keep) keep=yes ;;
	--turn) turn=yes ;;
	*) break ;;
	esac
	shift
done
$CARGO fuzz --version >/dev/null 2>&1 || {
	echo "fuzz: cargo-fuzz is missing: scripts/install-deps.sh build fuzz" >&2
	exit 1
}
[ $# -gt 0 ] || set -- $($CARGO fuzz list)
if [ $turn = yes ]; then
	commit=$(git rev-list --count HEAD)
	set -- $(printf '%s\n' "$@" | awk -v commit="$commit" 'NR % 5 == commit % 5')
	echo "fuzz: in turn at commit $commit: $*"
fi
# One build for all is quicker than one for each of a few. Optimised enough for speed, in half the time.
export CARGO_TARGET_DIR=target CARGO_PROFILE_RELEASE_OPT_LEVEL=2 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_DEBUG=line-tables-only \
	CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
$CARGO fuzz build -s none -O --features libfuzzer
programs=target/x86_64-unknown-linux-gnu/release
[ "$(uname -m)" = x86_64 ] || programs=target/$(uname -m)-unknown-linux-gnu/release

# The corpus of a target: packed in the tree, unpacked for a run.
one() {
	local target=$1 corpus=target/corpus/$1 log=target/corpus/$1.log
	mkdir -p "$corpus" artifacts
	[ ! -e "corpus/$target.tar.xz" ] || tar xf "corpus/$target.tar.xz" -C "$corpus"
	if ! "$programs/$target" "$corpus" -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=1024 \
		-artifact_prefix="artifacts/$target-" >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		echo "fuzz: $target fails; its input is in fuzz/artifacts" >&2
		return 1
	fi
	echo "$target: $(grep -a DONE "$log" | tail -n 1)"
	if [ "$keep" = yes ]; then
		rm -rf "$corpus.least"
		mkdir -p "$corpus.least" corpus
		"$programs/$target" -merge=1 "$corpus.least" "$corpus" >>"$log" 2>&1
		tar cJf "corpus/$target.tar.xz" --sort=name --mtime=@0 --owner=0 --group=0 -C "$corpus.least" .
	fi
}
export -f one
export programs FUZZ_SECONDS keep
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; one {}'

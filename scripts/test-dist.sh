#!/usr/bin/env bash
# Builds the last commit twice, in two directories of other names, and compares every byte of what comes out. Two
# complete builds take half an hour on two cores, so CI leaves this out.
#   scripts/test-dist.sh [ARCHITECTURE...]      as scripts/dist.sh
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-dist.XXXXXX")
trap 'rm -rf "$work"' EXIT
for name in one another-directory; do
	git clone --quiet --no-hardlinks . "$work/$name"
	(cd "$work/$name" && DIST=$work/$name.out scripts/dist.sh "$@")
	# The target directory is large, and is not compared.
	rm -rf "${work:?}/$name"
done
diff --recursive "$work/one.out" "$work/another-directory.out" || {
	echo "test-dist: the builds differ" >&2
	exit 1
}
echo "$(find "$work/one.out" -type f | wc -l) files are the same in two builds"
echo "1 passed, 0 failed"

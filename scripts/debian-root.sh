#!/usr/bin/env bash
# Prints a tar file of a bare Debian, which debootstrap fetches once into the user's cache. As root.
#   scripts/debian-root.sh [PACKAGE,... [SUITE]]      with these packages more; bookworm, Debian 12, by default
set -euo pipefail
more=${1:-}
suite=${2:-bookworm}
# A list of packages can be longer than a file's name.
base=${XDG_CACHE_HOME:-$HOME/.cache}/weir/debootstrap/$suite${more:+-$(sha256sum <<<"$more" | cut -c-16)}.tar
if [ ! -e "$base" ]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$(dirname "$base")"
	# This machine's mirror, or debootstrap's own.
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | sed 's,/$,,' | grep '/debian$' | head -n 1 || true)
	debootstrap --variant=minbase ${more:+--include="$more"} "$suite" "$work/root" ${mirror:+"$mirror"} >"$work/log" ||
		{ cat "$work/log" >&2; exit 1; }
	tar -C "$work/root" --exclude=./var/cache/apt/archives/*.deb -cf "$base.new" .
	mv "$base.new" "$base"
fi
echo "$base"

#!/usr/bin/env bash
# Prints a tar file of a bare Debian 12, which debootstrap fetches once into the user's cache. As root.
#   scripts/debian-root.sh [PACKAGE,...]      with these packages more
set -euo pipefail
more=${1:-}
base=${XDG_CACHE_HOME:-$HOME/.cache}/weir/debootstrap/bookworm${more:+-${more//,/-}}.tar
if [ ! -e "$base" ]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$(dirname "$base")"
	# This machine's mirror, or debootstrap's own.
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | sed 's,/$,,' | grep '/debian$' | head -n 1 || true)
	debootstrap --variant=minbase ${more:+--include="$more"} bookworm "$work/root" ${mirror:+"$mirror"} >"$work/log" ||
		{ cat "$work/log" >&2; exit 1; }
	tar -C "$work/root" --exclude=./var/cache/apt/archives/*.deb -cf "$base.new" .
	mv "$base.new" "$base"
fi
echo "$base"

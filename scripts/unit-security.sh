#!/usr/bin/env bash
# Measures how exposed the units are with `systemd-analyze security`, from 0 to 10, and fails above the bounds.
# An argument names another directory of units. The items that count most stand below each figure.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${1:-packaging}
command -v systemd-analyze >/dev/null || {
	echo "unit-security: systemd-analyze is missing: scripts/install-deps.sh lint" >&2
	exit 1
}
systemd-analyze --help | grep -q -- --offline || {
	echo "SKIPPED: $(systemd-analyze --version | head -n 1) has no \`security --offline\`, systemd 250 has"
	exit 0
}

# The bounds are tenths, as for the option --threshold.
failed=0
while read -r unit bound; do
	good=true
	told=$(systemd-analyze security --no-pager --offline=true --threshold="$bound" "$dir/$unit" 2>&1) || good=false
	exposure=$(sed -n 's/.*Overall exposure level for .*: \([0-9.]*\) .*/\1/p' <<<"$told")
	[ -n "$exposure" ] || { printf 'unit-security: %s cannot be measured:\n%s\n' "$unit" "$told" >&2; exit 1; }
	printf '%s: exposure %s, at most %s\n' "$unit" "$exposure" "${bound%?}.${bound: -1}"
	# The last word of an item that counts is its part.
	awk '$1 == "✗" { print $NF, $2 }' <<<"$told" | sort -rn -s | head -n 6 | sed 's/^/  /'
	$good || failed=1
done <<'END'
weir.service 30
weir-images.service 20
END

[ $failed = 0 ] || echo "unit-security: a unit is exposed above its bound" >&2
exit $failed

#!/bin/sh
# Licences, sources and advisories of all dependencies (deny.toml).
# The advisory database is fetched; where it cannot be, that one check is skipped and said so.
set -eu
cd "$(dirname "$0")/.."
# A version that is pinned, so that the verdict does not change by itself.
version=0.20.2
if ! cargo deny --version 2>/dev/null | grep -q "$version"; then
    # Unoptimised, as it runs for seconds.
    cargo install --quiet --locked --debug cargo-deny --version "$version"
fi
cargo deny --all-features check bans licenses sources
if out=$(cargo deny --all-features check advisories 2>&1); then
    printf '%s\n' "$out"
elif printf '%s' "$out" | grep -qiE 'failed to fetch|failed to (clone|open)|could not (connect|resolve)|unable to fetch|network|dns'; then
    echo "SKIPPED: advisories: the RustSec database cannot be reached from here"
else
    printf '%s\n' "$out" >&2
    exit 1
fi

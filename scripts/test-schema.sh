#!/usr/bin/env bash
# Schemathesis asks a real agent for everything that the API's description names, with random values, and judges the
# answers by the description. EXAMPLES is their number for each route (200). Needs root, python3 with venv.
set -euo pipefail
cd "$(dirname "$0")/.."
version=4.32.5
tools=${XDG_CACHE_HOME:-$HOME/.cache}/weir/schemathesis-$version
if [ ! -x "$tools/bin/schemathesis" ]; then
	python3 -m venv "$tools"
	"$tools/bin/pip" install --quiet "schemathesis==$version"
fi
port=9798
work=$(mktemp -d)
more="[api]
listen = \"127.0.0.1:$port\"
[images]
listen = \"127.0.0.1:5000\"
directory = \"$work/images\"
budget = \"64MiB\""
. scripts/agent-in-namespace.sh

"$weir" --socket "$work/weir.sock" token add fuzzer --scope admin --json >"$work/token.json"
token=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["secret"])' "$work/token.json")
cd "$work"
ip netns exec "$net" "$tools/bin/schemathesis" run "http://127.0.0.1:$port/openapi.json" \
	--header "Authorization: Bearer $token" --checks all --max-examples "${EXAMPLES:-200}" \
	--request-timeout 30 "$@"

#!/usr/bin/env bash
# Schemathesis asks a real agent for everything that the API's description names, with random values, and judges the
# answers by the description. EXAMPLES is their number for each route (200). Needs root, python3 with venv, socat.
set -euo pipefail
cd "$(dirname "$0")/.."
version=4.32.5
tools=${XDG_CACHE_HOME:-$HOME/.cache}/weir/schemathesis-$version
if [ ! -x "$tools/bin/schemathesis" ]; then
	python3 -m venv "$tools"
	"$tools/bin/pip" install --quiet "schemathesis==$version"
fi
work=$(mktemp -d)
more="[images]
listen = \"127.0.0.1:5000\"
directory = \"$work/images\"
budget = \"64MiB\""
. scripts/agent-in-namespace.sh

# By the socket, whose root user has all rights, and no bound on requests a second as over TCP.
port=18081
socat "TCP-LISTEN:$port,bind=127.0.0.1,fork,reuseaddr" "UNIX-CONNECT:$work/weir.sock" &
sleep 1
# The events and the stream of classes never end.
"$tools/bin/schemathesis" --config-file testing/openapi/schemathesis.toml run "http://127.0.0.1:$port/openapi.json" \
	--max-examples "${EXAMPLES:-200}" --request-timeout 30 \
	--exclude-path /v1/events --exclude-path /v1/stream "$@"

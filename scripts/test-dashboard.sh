#!/usr/bin/env bash
# The dashboard of a real agent in a network namespace, driven in headless Chromium. Needs root, chromium, node and npm
# (`scripts/install-deps.sh dashboard`). PICTURES names a directory for screenshots.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in node npm chromium ip; do
	command -v $program >/dev/null || { echo "$program is missing: scripts/install-deps.sh dashboard"; exit 1; }
done
[ -d testing/dashboard/node_modules ] || PUPPETEER_SKIP_DOWNLOAD=1 npm --prefix testing/dashboard ci --no-audit --no-fund
more="[[class]]
name = \"camera\"
interface = \"c9\""
. scripts/agent-in-namespace.sh

port=18080
node testing/dashboard/forward.mjs $port "$work/weir.sock" &
sleep 1
timeout 300 node testing/dashboard/drive.mjs "http://127.0.0.1:$port" "$work/start" "${PICTURES:-}"

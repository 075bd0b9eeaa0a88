#!/usr/bin/env bash
# The dashboard of a real agent in a network namespace, driven in headless Chromium. Needs root, chromium, node, npm and
# python3 (`scripts/install-deps.sh dashboard`). PICTURES names a directory for screenshots. Its
# dashboard-*.png are those of docs/pictures.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in node npm chromium ip python3; do
	command -v $program >/dev/null || { echo "$program is missing: scripts/install-deps.sh dashboard"; exit 1; }
done
[ -d testing/dashboard/node_modules ] || PUPPETEER_SKIP_DOWNLOAD=1 npm --prefix testing/dashboard ci --no-audit --no-fund
more="[[class]]
name = \"camera\"
interface = \"c9\""
. scripts/agent-in-namespace.sh
# Both classes ask for more than there is.
. scripts/pods-in-namespace.sh
pods 2 c
nsenter --net="/proc/$pods/ns/net" python3 testing/dashboard/senders.py 2 1400 8000 &

port=18080
node testing/dashboard/forward.mjs $port "$work/weir.sock" &
sleep 1
timeout 300 node testing/dashboard/drive.mjs "http://127.0.0.1:$port" "$work/start" "${PICTURES:-}"

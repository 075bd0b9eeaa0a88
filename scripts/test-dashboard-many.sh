#!/usr/bin/env bash
# The processor time of the agent and of the page with 500 classes that all send: needs what scripts/test-dashboard.sh
# needs, and python3. Nothing else may run beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
many=500
more=$(for i in $(seq $many); do printf '[[class]]\nname = "pod%d"\ninterface = "v%d"\n' "$i" "$i"; done)
. scripts/agent-in-namespace.sh
. scripts/pods-in-namespace.sh
pods $many v
nsenter --net="/proc/$pods/ns/net" python3 testing/dashboard/senders.py $many 100 10 &

port=18081
node testing/dashboard/forward.mjs $port "$work/weir.sock" &
sleep 5
timeout 300 node testing/dashboard/many.mjs "http://127.0.0.1:$port" "$(cat "$work/pid")" $many

#!/usr/bin/env bash
# The examples of examples/clients with the generated clients, beside a real agent. Needs root, python3 with venv, and Go.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v go >/dev/null || { echo "go is missing: the example in Go needs 1.23 or later"; exit 1; }
clients=$PWD/target/clients
scripts/clients.sh "$clients"
python3 -m venv "$clients/venv"
"$clients/venv/bin/pip" install --quiet "$clients/python"
mkdir -p "$clients/example"
cp examples/clients/shares.go "$clients/example/"
(
	cd "$clients/example"
	[ -e go.mod ] || go mod init weir.invalid/example
	go mod edit -require weir.invalid/client@v0.0.0 -replace weir.invalid/client=../go
	go mod tidy
	go build -o shares .
)

port=9798
more="[api]
listen = \"127.0.0.1:$port\"
[[class]]
name = \"camera\"
interface = \"c9\""
. scripts/agent-in-namespace.sh
"$weir" --socket "$work/weir.sock" token add client --scope operate --json >"$work/token.json"
WEIR_TOKEN=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["secret"])' "$work/token.json")
export WEIR_TOKEN WEIR_URL=http://127.0.0.1:$port

# Runs a client. The class `web` must have the weight, and a class that is not there must be refused with its code.
try() {
	local weight=$1 shown
	shift
	shown=$(ip netns exec "$net" "$@" web "$weight")
	grep -Eq "^web +weight +$weight .* enforced$" <<<"$shown" || { echo "FAILED: $* shows: $shown"; exit 1; }
	grep -Eq "^camera .*there is no interface c9" <<<"$shown" || { echo "FAILED: $* shows: $shown"; exit 1; }
	if shown=$(ip netns exec "$net" "$@" nobody 1 2>&1) || ! grep -q unknown-name <<<"$shown"; then
		echo "FAILED: $* sets the weight of a class that is not there: $shown"
		exit 1
	fi
	echo "ok: $1"
}
try 7 "$clients/venv/bin/python" examples/clients/shares.py
try 9 "$clients/example/shares"

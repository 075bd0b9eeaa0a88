#!/bin/sh
# Offers an agreement over the socket of the agent, and shows what is promised. The last line says how to end it.
# Needs curl, and the right to open the socket: root, or the group weir.
set -eu
socket=${WEIR_SOCKET:-/run/weir/weir.sock}
here=$(dirname "$0")

ask() {
	curl --silent --show-error --unix-socket "$socket" "$@"
	echo
}

# The answer is 201 and the agreement, or a refusal that names the largest possible minimum.
ask --header 'Content-Type: application/toml' --data-binary @"$here/offer.toml" http://weir/v1/agreements
# All agreements, and the calendar of promises.
ask http://weir/v1/agreements
ask http://weir/v1/agreements/calendar
# To end one: curl --unix-socket "$socket" --request DELETE http://weir/v1/agreements/a-1

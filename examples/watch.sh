#!/bin/sh
# Prints a line for each class that gets less than its minimum while it has a backlog, every 5 s. Needs jq.
set -eu
while sleep 5; do
	weir ps --json | jq -r '.[] | select(.state == "active" and .min != null and .sending < .min) | "\(.name) sends \(.sending) of \(.min) bit/s"'
done

#!/bin/sh
# Names each class that has a backlog and sends less than 95 % of its minimum, every 5 s. Needs jq.
set -eu
while sleep 5; do
	weir ps --json | jq -r '.[] | select(.backlog > 0 and .policy.min != null and .rate < 0.95 * .policy.min)
		| "\(.name) sends \(.rate) of \(.policy.min) bit/s"'
done

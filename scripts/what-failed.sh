#!/bin/sh
# Says in few lines what failed in an output of the tests: the lines around each panic of a suite that failed, and
# then the tests' names. Suites that end well have panics on purpose.
awk '
	function line(text) { return substr(text, 1, 300) }
	/^running [0-9]+ test/ { held = ""; in_list = 0 }
	/panicked at/ { held = held before[2] before[1] before[0]; left = 4 }
	left > 0 { held = held line($0) "\n"; left-- }
	{ before[2] = before[1]; before[1] = before[0]; before[0] = line($0) "\n" }
	/^failures:$/ { in_list = 1; next }
	/^test result: FAILED/ { told = told held; names = names list; list = "" }
	/^test result:/ { held = ""; in_list = 0; left = 0 }
	in_list && /^    [^ ]/ { list = list "failed:" $0 "\n" }
	/^error(\[|:)|\*\*\*/ { other = other line($0) "\n" }
	END { printf "%s%s%s", other, told, names }
' "$1" | tail -n 40

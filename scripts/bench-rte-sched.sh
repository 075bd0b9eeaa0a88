#!/bin/sh
# DPDK's rte_sched beside weir's scheduler, same users, same packets, one core: by hand, not in CI.
# `scripts/bench-rte-sched.sh [USERS...]`, 800 and 1600 by default, after `cargo build --release`. Debian's
# packages are fetched and unpacked below target/, not installed: installing them brings 200 others. They
# take turns, as a machine's speed changes by the second where others share it, and the median of the
# rounds' ratios is told. On a busy machine put `chrt -f 1` in front, as root.
set -eu
cd "$(dirname "$0")/.."

die() { printf 'bench-rte-sched: %s\n' "$*" >&2; exit 1; }
command -v apt-get >/dev/null || die "no apt-get here: it takes DPDK from Debian's packages"
command -v cc >/dev/null || die "no C compiler here: apt install build-essential"

dir=$PWD/target/rte-sched
root=$dir/root
if [ ! -d "$root" ]; then
    mkdir -p "$dir/packages"
    libraries=$(apt-cache depends libdpdk-dev |
        grep -oE 'librte-(eal|sched|mbuf|mempool|mempool-ring|ring|kvargs|telemetry|net|meter)[0-9]+(t64)?') ||
        die "libdpdk-dev is not among the packages: apt-get update"
    # shellcheck disable=SC2086 # one word a package
    (cd "$dir/packages" && apt-get download -q libdpdk-dev $libraries)
    for package in "$dir"/packages/*.deb; do dpkg -x "$package" "$root.new"; done
    mv "$root.new" "$root"
fi
# Where the architecture's libraries are.
sched=$(find "$root" -name 'librte_sched.so.*' | sort | head -n 1)
[ -n "$sched" ] || die "no librte_sched in $root: remove it and try again"
lib=$(dirname "$sched")
include=$root/usr/include
abi=$(basename "$sched" | cut -d. -f3)
[ $# -gt 0 ] || set -- 800 1600
libraries=""
for name in eal mbuf mempool mempool_ring sched; do libraries="$libraries -l:librte_$name.so.$abi"; done
# shellcheck disable=SC2086
cc -O3 -march=native -Wall -Wno-deprecated-declarations -I "$include/dpdk" \
    -I "$include/$(basename "$lib")/dpdk" scripts/rte-sched.c -o "$dir/rte-sched" -L "$lib" \
    -Wl,-rpath,"$lib" -Wl,--disable-new-dtags -Wl,--no-as-needed $libraries
weir=$(realpath "${CARGO_TARGET_DIR:-target}/release/weir")
[ -x "$weir" ] || die "no $weir: cargo build --release"
: "${ROUNDS:=15}"
for users in "$@"; do
    cat >"$dir/one.toml" <<END
name = "beside-rte-sched"
title = "One thread, $users users"
source = "scripts/bench-rte-sched.sh"
about = "Beside rte_sched."
measures = "packets"
users = $users
active = $users
packets = 1000000
min_len = 64
max_len = 64
forms = ["single"]
loads = ["backlogged"]
repetitions = 3
END
    for _ in $(seq "$ROUNDS"); do
        theirs=$("$dir/rte-sched" --no-huge -m 256 --no-pci --no-telemetry --no-shconf --log-level 3 -l 0 -- "$users")
        ours=$(cd "$dir" && "$weir" lab run --json one.toml | grep -o '"mpps":[0-9.]*' | head -n 1)
        echo "$theirs ${ours#*:}"
    done >"$dir/rounds"
    awk -v users="$users" '
        { theirs[NR] = $1; ours[NR] = $2; ratio[NR] = $2 / $1 }
        function median(values, i, j, t) {
            for (i = 2; i <= NR; i++)
                for (j = i; j > 1 && values[j - 1] > values[j]; j--) { t = values[j]; values[j] = values[j - 1]; values[j - 1] = t }
            return values[int((NR + 1) / 2)]
        }
        END {
            if (!NR) exit 1
            printf "%d users, 64 bytes, one core, Mpps, medians of %d rounds: rte_sched %.2f, weir-htb %.2f", users, NR, median(theirs), median(ours)
            m = median(ratio)
            printf ", ratio %.2f (%.2f to %.2f)\n", m, ratio[1], ratio[NR]
        }' "$dir/rounds"
done

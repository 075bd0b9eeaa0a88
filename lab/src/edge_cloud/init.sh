#!/bin/sh
# The first process of a User-Mode-Linux guest. Its root is the machine's, read only. The kernel's working
# directory, which is the job's, is at /run/job.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/netns /run/job
mount -t hostfs -o /proc/self/cwd none /run/job
ip link set dev lo up
. /run/job/job
"$weir" lab run /run/job/scenario.toml --json --backend here --seed "$seed" --out /run/results \
	>/run/job/report.json 2>/run/job/errors
sync
echo o >/proc/sysrq-trigger
sleep 10

#!/bin/sh
# The first process of the guest: mounts, the job, the verdict, the end.
export PATH=/usr/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mkdir -p /dev/shm /run/netns
ln -s /proc/self/fd /dev/fd
# The module tun makes this node, and is loaded when it is opened.
[ -e /dev/net/tun ] || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; }
mkdir -p /dev/pts; mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
hostname weir-vm
cd /root || exit 1
echo "weir-vm: ready, kernel $(uname -r), $(cut -d' ' -f1 /proc/uptime) s"
sh /job
echo "weir-vm: job ended with $?, $(cut -d' ' -f1 /proc/uptime) s"
poweroff -f

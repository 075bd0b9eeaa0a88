#!/usr/bin/env bash
# Boots a Debian 13 with systemd and cgroup v2 alone under qemu, and runs the containers of its own packages beside each
# other: Docker, Podman with and without root, containerd, LXC, Incus and units. Each becomes a class that is held.
#   scripts/test-stock.sh [DIST]      target/dist-out by default
# Without the deb of `make dist` a package is made of PROGRAM (target/debug/weir) and of weir-fs beside it.
# As root, for debootstrap.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin
test=test-stock
inside=testing/systemd/stock.sh
source scripts/systemd-guest.sh

# Debug builds link libelf.
guest_root trixie systemd-sysv,libpam-systemd,dbus,dbus-user-session,udev,kmod,iproute2,iptables,nftables,procps,python3,libelf1t64,ca-certificates,busybox-static,docker.io,docker-cli,containerd,podman,netavark,aardvark-dns,passt,uidmap,fuse-overlayfs,crun,incus-base,incus-client,lxc
guest_package "${1:-target/dist-out}/weir_${version}_amd64.deb"
guest_boot --timeout 2400 --memory 6144 --kernel "${KERNEL:-6.12}"

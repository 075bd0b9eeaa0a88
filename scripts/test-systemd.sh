#!/usr/bin/env bash
# Boots a Debian 12 with systemd under qemu, installs weir's package there, and compares its units with docs/install.md.
# Among the steps are limits, the watchdog, a restart, a crash, a wrong file, an upgrade and a purge.
#   scripts/test-systemd.sh [DIST]      target/dist-out by default
# Without the deb of `make dist` a package is made of PROGRAM (target/debug/weir) and of weir-fs beside it.
# As root, for debootstrap.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin
test=test-systemd
inside=testing/systemd/inside.sh
source scripts/systemd-guest.sh

# Debug builds link libelf.
guest_root bookworm systemd-sysv,dbus,udev,kmod,iproute2,bpftool,python3,libelf1
guest_package "${1:-target/dist-out}/weir_${version}_amd64.deb"
# The version after this one: the same program under a higher number. It is not compressed, which saves the guest's time.
dpkg-deb --raw-extract "$deb" "$work/later"
chroot_runs() { cp "$work/later/usr/bin/weir" "$root/test/weir" && chroot "$root" /test/weir --version >/dev/null && rm "$root/test/weir"; }
chroot_runs || fail "$PROGRAM does not run in Debian 12: build a static package (scripts/dist.sh amd64)"
sed -i 's/^Version: .*/Version: 99.0/' "$work/later/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$work/later" "$root/test/weir-later.deb" >/dev/null
# The commands of the documents, without their comments.
sed -n '/^<!-- test-packages -->/,/^```$/p' docs/install.md | sed -n '/^```sh$/,/^```$/p' | sed '/^```/d; s/ *#.*//' >"$root/test/first-minute"
[ -s "$root/test/first-minute" ] || fail "docs/install.md has no commands to test"
guest_boot --timeout 2400

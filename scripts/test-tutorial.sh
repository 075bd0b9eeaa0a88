#!/usr/bin/env bash
# Runs docs/book/tutorial.md in a fresh Debian 12, command by command, with the package of `make dist`. Before the purge
# it upgrades and downgrades the package under traffic. As root; all of it happens in namespaces.
#   scripts/test-tutorial.sh [DIST]      target/dist-out by default
#
# Two things stand in for what is not here: testing/tutorial/systemctl for systemd, and the root itself for the image
# `debian:12` of a registry. Packages come from Debian's mirror, and count in the ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "${1:-target/dist-out}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
deb=$dist/weir_${version}_$(dpkg --print-architecture).deb
[ -e "$deb" ] || { echo "test-tutorial: $deb is missing: make dist" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "test-tutorial: must be root, for a root directory of its own" >&2; exit 1; }
for program in debootstrap dpkg-deb pivot_root; do
	command -v $program >/dev/null || { echo "test-tutorial: $program is missing: scripts/install-deps.sh dist" >&2; exit 1; }
done
if [ "${IN_NAMESPACE:-}" != 1 ]; then
	work=$(mktemp -d)
	export IN_NAMESPACE=1 work
	had=$(find /sys/fs/cgroup -maxdepth 2 -name docker)
	code=0
	unshare --mount --pid --cgroup --fork --kill-child --propagation private "$0" "$dist" || code=$?
	rm -rf --one-file-system "$work"
	# dockerd leaves its empty cgroups.
	[ -n "$had" ] || find /sys/fs/cgroup -depth -type d -path '*/docker*' -exec rmdir {} + 2>/dev/null || true
	exit $code
fi

root=$work/root
base=$(scripts/debian-root.sh iproute2,ca-certificates)
mkdir "$root"
mount -t tmpfs -o size=4g tmpfs "$root"
tar -C "$root" -xf "$base"
mkdir "$root/test"
python3 testing/tutorial/steps.py docs/book/tutorial.md "$root/test/steps"
cp testing/tutorial/systemctl testing/tutorial/inside.sh "$root/test/"
cp "$base" "$root/test/base.tar"
cp "$deb" "$root/test/weir.deb"
# This machine's way to Debian's mirror.
cp /etc/resolv.conf "$root/etc/resolv.conf"
rm -f "$root/etc/apt/sources.list"
cp -r /etc/apt/. "$root/etc/apt/"
cp -r /usr/share/ca-certificates /usr/local/share/ca-certificates "$root/usr/share/" 2>/dev/null || true
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"

# The version before this one: the same program under a lower number.
dpkg-deb --raw-extract "$deb" "$work/earlier"
sed -i 's/^Version: .*/Version: 0.0.9/' "$work/earlier/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$work/earlier" "$root/test/weir-earlier.deb" >/dev/null

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mkdir "$root/old"
cd "$root"
pivot_root . old
umount -l /old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C TERM=dumb \
	http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" /bin/bash /test/inside.sh

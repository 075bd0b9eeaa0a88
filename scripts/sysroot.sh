#!/usr/bin/env bash
# Unpacks Debian 12 of another architecture, and prints its directory: the static libraries that scripts/cross.sh links,
# and the programs of the guests of `weir-vm --arch`. Nothing of it runs here or changes this machine's packages.
#   scripts/sysroot.sh arm64|armhf
# Its `cc` compiles and links for it. It is fetched once, and again once the list below has changed (WEIR_UPDATE=1: now). WEIR_MIRROR
# names a mirror; else it is apt's, or debootstrap's own.
set -euo pipefail
arch=$1
case $arch in
arm64) triplet=aarch64-linux-gnu ;;
armhf) triplet=arm-linux-gnueabihf ;;
*) echo "sysroot: Debian's name of an architecture is arm64 or armhf, and not $arch" >&2; exit 1 ;;
esac
suite=bookworm
packages=libc6-dev,libelf-dev,zlib1g-dev,busybox,dash,bash,iproute2,ethtool,iperf3,iputils-ping,iptables,wireguard-tools,util-linux
mirror=${WEIR_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | sed 's,/$,,' | grep '/debian$' | head -n 1 || true)}

parent=${XDG_CACHE_HOME:-$HOME/.cache}/weir/sysroot
list=$(sha256sum <<<"$packages" | cut -c1-8)
root=$parent/$suite-$arch-$list
mkdir -p "$parent"
exec 9>"$parent/$arch.lock"
flock 9
if [ ! -d "$root" ] || [ "${WEIR_UPDATE:-}" = 1 ]; then
	for program in debootstrap dpkg-deb; do
		command -v $program >/dev/null || { echo "sysroot: $program is missing: scripts/install-deps.sh cross" >&2; exit 1; }
	done
	# debootstrap makes devices, and verifies signatures with the keys of debian-archive-keyring.
	[ "$(id -u)" = 0 ] || { echo "sysroot: must be root, for debootstrap" >&2; exit 1; }
	fetched=$(mktemp -d "$parent/fetched.XXXXXX")
	trap 'rm -rf "$fetched"' EXIT
	echo "sysroot: fetching Debian $suite of $arch from ${mirror:-the mirror of debootstrap}" >&2
	debootstrap --foreign --variant=minbase --arch="$arch" --include="$packages" "$suite" "$fetched/all" ${mirror:+"$mirror"} \
		>"$fetched/log" || { cat "$fetched/log" >&2; exit 1; }
	mkdir "$fetched/root"
	for directory in bin sbin lib; do
		mkdir -p "$fetched/root/usr/$directory"
		ln -s "usr/$directory" "$fetched/root/$directory"
	done
	for deb in "$fetched"/all/var/cache/apt/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$fetched/root" --keep-directory-symlink
		dpkg-deb --showformat '${Package} ${Version}\n' --show "$deb"
	done >"$fetched/packages"
	mv "$fetched/packages" "$fetched/root/packages"
	# The compiler's own package may have a glibc beside it, of an earlier revision. Debian's own comes first.
	cat >"$fetched/root/cc" <<-WRAPPER
		#!/bin/sh
		root=\$(dirname "\$0")
		exec $triplet-gcc --sysroot="\$root" -B"\$root/usr/lib/$triplet/" -L"\$root/usr/lib/$triplet" "\$@"
	WRAPPER
	chmod 755 "$fetched/root/cc"
	rm -rf "$root"
	mv "$fetched/root" "$root"
fi
echo "$root"

#!/bin/sh
# Builds the User-Mode-Linux kernel in which `weir lab run ecc-...` measures in virtual time.
#   scripts/uml-kernel.sh [FILE]     FILE: $XDG_CACHE_HOME/weir/uml/linux (~/.cache/...) unless said
# From Debian's source package and uml.patch; some minutes of processor time and 3 GB in TMPDIR while it
# builds, 10 MB then. Needs deb lines of Debian 12 or later, gcc, make, bc, flex, bison, and pahole, for
# the types that weir's BPF programs ask for. The kernel is the GPL's: build it, do not pass it on.
set -eu

version=${WEIR_UML_VERSION:-6.12}
file=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/weir/uml/linux}
here=$(dirname "$(readlink -f "$0")")
for tool in gcc make patch bc flex bison pahole dpkg-deb apt-get xz; do
	command -v $tool >/dev/null || {
		echo "no $tool here: apt-get install gcc make bc flex bison dwarves xz-utils" >&2
		exit 1
	}
done
[ "$(uname -m)" = x86_64 ] || { echo "User-Mode Linux is for x86_64 only, this is $(uname -m)" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM HUP
chmod 755 "$work"
cd "$work"
apt-get download "linux-source-$version"
dpkg-deb --fsys-tarfile linux-source-"$version"_*.deb | tar -x
tar -xf usr/src/linux-source-"$version".tar.xz
cd linux-source-"$version"
patch -s -p1 <"$here/uml.patch"

make -s ARCH=um x86_64_defconfig
cat "$here/uml.config" >>.config
# Says of each option of uml.config that it had another value.
make -s ARCH=um olddefconfig >olddefconfig.log 2>&1 || { cat olddefconfig.log >&2; exit 1; }
for option in $(sed -n 's/^\(CONFIG_[A-Z0-9_]*=y\)$/\1/p' "$here/uml.config"); do
	grep -q "^$option$" .config || { echo "linux $version does not take $option" >&2; exit 1; }
done
nice make -s ARCH=um -j"${WEIR_JOBS:-$(nproc)}" linux
strip -o "$work/linux" linux

mkdir -p "$(dirname "$file")"
mv "$work/linux" "$file"
echo "$file: linux $(make -s ARCH=um kernelversion)"

#!/usr/bin/env bash
# Runs a command, such as cargo, so that it builds static programs for an architecture.
#   scripts/cross.sh amd64|arm64|armhf COMMAND [ARGUMENT...]
# Names are Debian's: armhf is ARMv7 with floating point. For this machine's own architecture its libraries are linked,
# and for others those of scripts/sysroot.sh. The command finds the architecture in WEIR_ARCH, cargo's target in
# CARGO_BUILD_TARGET, and the directory of Debian's packages in WEIR_SYSROOT. Programs of another architecture run in
# qemu, also those that cargo runs. Builds are in target/ARCHITECTURE.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
die() { printf 'cross: %s\n' "$*" >&2; exit 1; }
[ $# -ge 2 ] || die "usage: scripts/cross.sh amd64|arm64|armhf COMMAND [ARGUMENT...]"

arch=$1
shift
case $arch in
amd64) triplet=x86_64-linux-gnu target=x86_64-unknown-linux-gnu qemu=qemu-x86_64-static ;;
arm64) triplet=aarch64-linux-gnu target=aarch64-unknown-linux-gnu qemu=qemu-aarch64-static ;;
armhf) triplet=arm-linux-gnueabihf target=armv7-unknown-linux-gnueabihf qemu=qemu-arm-static ;;
*) die "an architecture is amd64, arm64 or armhf, and not $arch" ;;
esac
export PATH="$HOME/.cargo/bin:$PATH"
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# Paths of this machine are in no program.
map="-ffile-prefix-map=$here=/weir -ffile-prefix-map=$cargo_home=/cargo"
rustflags="-C target-feature=+crt-static --remap-path-prefix=$here=/weir --remap-path-prefix=$cargo_home=/cargo"
variable=${target//-/_}

if [ "$arch" = "$(dpkg --print-architecture)" ]; then
	root=/
	libraries=/usr/lib/$triplet
else
	if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx "$target"; then
		rustup target add "$target" >&2 || die "rustup cannot add the target $target"
	fi
	command -v "$triplet-gcc" >/dev/null || die "$triplet-gcc is missing: scripts/install-deps.sh cross"
	root=$("$here/scripts/sysroot.sh" "$arch")
	libraries=$root/usr/lib/$triplet
	map="-ffile-prefix-map=$root=/sysroot $map"
	upper=$(tr a-z A-Z <<<"$variable")
	# The sysroot is named by a compiler of its own and not by RUSTFLAGS, which would be a part of the program.
	export "CC_$variable=$root/cc" "AR_$variable=$triplet-ar" "CARGO_TARGET_${upper}_LINKER=$root/cc"
	export "CARGO_TARGET_${upper}_RUNNER=$qemu"
fi
for library in libc.a libelf.a libz.a; do
	[ -e "$libraries/$library" ] || die "$libraries/$library is missing: scripts/install-deps.sh build"
done

export "CFLAGS_$variable=$map" "LIBBPF_SYS_LIBRARY_PATH_$variable=$libraries" RUSTFLAGS="$rustflags"
export CARGO_BUILD_TARGET=$target CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$here/target}/$arch"
export WEIR_ARCH=$arch WEIR_TRIPLET=$triplet WEIR_SYSROOT=$root WEIR_QEMU=$qemu
exec "$@"

#!/usr/bin/env bash
# Builds static programs without symbols, their bill of materials and licences, packages, and an image.
#   scripts/dist.sh [ARCHITECTURE...]      amd64, arm64 and armhf, unless some are named
# The result is in $DIST (target/dist-out). scripts/test-dist.sh compares two builds of one commit in two directories.
# With $SIGN_KEY, a private key of ssh-keygen, SHA256SUMS is signed too: docs/install.md has the check.
#
# The programs are linked with glibc, libelf and zlib of Debian. Rust's target for musl would need a libelf that is
# built for musl, which Debian lacks (docs/adr/0087).
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD

out=${DIST:-$here/target/dist-out}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Times in the packages are those of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
# The values that CI builds its tests with would make another program.
unset CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_CODEGEN_UNITS CARGO_INCREMENTAL
umask 022

die() { printf 'dist: %s\n' "$*" >&2; exit 1; }
[ $# -gt 0 ] || set -- amd64 arm64 armhf
[ -z "${SIGN_KEY:-}" ] || [ -r "$SIGN_KEY" ] || die "cannot read the key $SIGN_KEY (SIGN_KEY)"
mkdir -p "$out"
# Packages of other architectures stay if they are of this version.
find "$out" -maxdepth 1 -type f ! -name "weir[-_]$version[-_]*" -delete

for arch in "$@"; do
	scripts/cross.sh "$arch" cargo build --profile dist --locked -p weir -p weir-fs --features weir-bpf/static
	# shellcheck disable=SC2016 # The inner shell has the variables.
	read -r target root < <(scripts/cross.sh "$arch" sh -c 'echo "$CARGO_BUILD_TARGET $WEIR_SYSROOT"')
	programs=$out/$arch
	rm -rf "$programs"
	install -d "$programs"
	for program in weir weir-fs; do
		install -m 755 "target/$arch/$target/dist/$program" "$programs/$program"
		! readelf -d "$programs/$program" | grep -q NEEDED || die "$program of $arch needs shared libraries"
	done
	scripts/bill-of-materials.py --target "$target" --version "$version" --directory "$programs" --sysroot "$root"
	(
		cd "$out"
		tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
			--transform "s,^$arch,weir-$version-$arch," "$arch" | gzip -n9 >"weir-$version-linux-$arch.tar.gz"
	)
	scripts/packages.sh "$arch" "$version" "$programs" "$out"
done
cd "$out"
find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS
[ -z "${SIGN_KEY:-}" ] || ssh-keygen -q -Y sign -f "$SIGN_KEY" -n weir-release SHA256SUMS
cat SHA256SUMS

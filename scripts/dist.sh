#!/usr/bin/env bash
# Builds static programs without symbols, their bill of materials and licences, packages, and an image.
#   scripts/dist.sh
# The result is in $DIST (target/dist-out). scripts/test-dist.sh compares two builds of one commit in two directories.
#
# The programs are linked with glibc, libelf and zlib of this system. Rust's target for musl would need a libelf that is
# built for musl, which Debian lacks (docs/adr/0087).
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD

out=${DIST:-$here/target/dist-out}
cargo_home=${CARGO_HOME:-$HOME/.cargo}
arch=amd64 triplet=x86_64-linux-gnu target=x86_64-unknown-linux-gnu
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Times in the packages are those of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
# The values that CI builds its tests with would make another program.
unset CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_CODEGEN_UNITS CARGO_INCREMENTAL
umask 022

die() { printf 'dist: %s\n' "$*" >&2; exit 1; }

libraries=/usr/lib/$triplet
for library in libelf.a libz.a; do
	[ -e "$libraries/$library" ] || die "$libraries/$library is missing: scripts/install-deps.sh build"
done
# Paths of this machine are in no program.
map="-ffile-prefix-map=$here=/weir -ffile-prefix-map=$cargo_home=/cargo"
env CARGO_TARGET_DIR="$here/target/dist" CFLAGS_x86_64_unknown_linux_gnu="$map" \
	LIBBPF_SYS_LIBRARY_PATH_x86_64_unknown_linux_gnu="$libraries" \
	RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$here=/weir --remap-path-prefix=$cargo_home=/cargo" \
	cargo build --profile dist --locked --target "$target" -p weir -p weir-fs --features weir-bpf/static

programs=$out/$arch
rm -rf "$programs"
install -d "$programs"
for program in weir weir-fs; do
	install -m 755 "target/dist/$target/dist/$program" "$programs/$program"
	! readelf -d "$programs/$program" | grep -q NEEDED || die "$program needs shared libraries"
done
scripts/bill-of-materials.py --target "$target" --version "$version" --directory "$programs"
(
	cd "$out"
	tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		--transform "s,^$arch,weir-$version-$arch," "$arch" | gzip -n9 >"weir-$version-linux-$arch.tar.gz"
)
scripts/packages.sh "$arch" "$version" "$programs" "$out"
cd "$out"
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS
cat SHA256SUMS

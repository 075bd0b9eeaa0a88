#!/usr/bin/env bash
# Makes the deb, the rpm and the image from built programs. scripts/dist.sh calls it.
#   scripts/packages.sh ARCHITECTURE VERSION PROGRAMS OUT
# PROGRAMS holds weir, weir-fs, LICENSES and weir.cdx.json. SOURCE_DATE_EPOCH is the time of all files.
# FORMATS names those to make: deb, rpm and oci (all three).
set -euo pipefail
cd "$(dirname "$0")/.."
arch=$1 version=$2 programs=$3 out=$4
: "${SOURCE_DATE_EPOCH:?}"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
formats=${FORMATS:-deb rpm oci}

nfpm=$(scripts/nfpm.sh)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

# A program of another architecture runs in qemu.
weir() { scripts/cross.sh "$arch" sh -c 'if [ "$WEIR_SYSROOT" = / ]; then exec "$@"; else exec "$WEIR_QEMU" "$@"; fi' sh "$programs/weir" "$@"; }

# stage_tree ROOT FORMAT: what the package holds.
stage_tree() {
	local root=$1 format=$2 share=$1/usr/share doc=$1/usr/share/doc/weir
	install -Dm755 "$programs/weir" "$root/usr/bin/weir"
	install -Dm755 "$programs/weir-fs" "$root/usr/bin/weir-fs"
	for unit in weir.service weir-images.service; do
		install -d "$root/usr/lib/systemd/system"
		sed 's|/usr/local/bin|/usr/bin|' "packaging/$unit" >"$root/usr/lib/systemd/system/$unit"
	done
	install -Dm644 packaging/weir.sysusers "$root/usr/lib/sysusers.d/weir.conf"
	weir man "$share/man" >/dev/null
	install -d "$doc" "$share/bash-completion/completions" "$share/fish/vendor_completions.d"
	weir completions bash >"$share/bash-completion/completions/weir"
	weir completions fish >"$share/fish/vendor_completions.d/weir.fish"
	local zsh=$share/zsh/site-functions
	[ "$format" != deb ] || zsh=$share/zsh/vendor-completions
	install -d "$zsh"
	weir completions zsh >"$zsh/_weir"
	install -m 644 docs/weir.toml packaging/weir-engine-user.conf "$programs/weir.cdx.json" "$programs/LICENSES" "$doc"
	install -Dm644 -t "$doc/prometheus" packaging/prometheus/weir.*
	if [ "$format" = deb ]; then
		install -Dm644 packaging/weir.lintian "$share/lintian/overrides/weir"
		cp packaging/copyright "$doc/copyright"
		printf 'weir (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources lists the changes.\n\n -- %s  %s\n' \
			"$version" "$maintainer" "$(date --utc --date="@$SOURCE_DATE_EPOCH" --rfc-email)" >"$doc/changelog"
		gzip -n9 "$doc/changelog"
	fi
	find "$share/man" -type f -exec gzip -n9 {} +
	find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
	find "$root" -type d -exec chmod 755 {} +
}

maintainer="The weir developers <weir@weir.invalid>"
case $arch in
amd64) rpm_arch=x86_64 ;;
arm64) rpm_arch=aarch64 ;;
armhf) rpm_arch=armv7hl ;;
*) echo "packages: an architecture is amd64, arm64 or armhf, and not $arch" >&2; exit 1 ;;
esac
touch --date="@$SOURCE_DATE_EPOCH" packaging/weir.default
for format in deb rpm; do
	[[ " $formats " == *" $format "* ]] || continue
	stage_tree "$stage/$format" $format
	# Docker Engine is found if it is there; nothing else is needed to run.
	cat >"$stage/$format.yaml" <<END
name: weir
arch: $([ $format = deb ] && echo "$arch" || echo "$rpm_arch")
platform: linux
version: $version
version_schema: none
release: "$([ $format = deb ] || echo 1)"
section: net
priority: optional
maintainer: "$maintainer"
description: |
  quality of service for fog and edge nodes
  Weir divides the uplink of a node between its containers by weight, minimum
  and maximum. It promises bandwidth, shares one image cache between nodes, and
  sets the congestion control of connections by rule.
license: Apache-2.0
mtime: $(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
suggests: [iproute2]
contents:
  - src: $stage/$format/usr
    dst: /usr
    type: tree
  - src: packaging/weir.default
    dst: /etc/default/weir
    type: config|noreplace
    file_info: {mode: 0644}
  - dst: /etc/weir
    type: dir
    file_info: {mode: 0755}
scripts:
  postinstall: packaging/scripts/postinstall
  preremove: packaging/scripts/preremove
  postremove: packaging/scripts/postremove
deb:
  compression: xz
rpm:
  compression: xz
  buildhost: weir
END
	"$nfpm" package --config "$stage/$format.yaml" --packager $format --target "$out" >/dev/null
done

[[ " $formats " == *" oci "* ]] || exit 0
scripts/oci-image.py --architecture "$arch" --version "$version" --program "$programs/weir" \
	--licenses "$programs/LICENSES" --out "$out/weir-$version-oci-$arch.tar"

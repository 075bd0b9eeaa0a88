#!/usr/bin/env bash
# Installs the packages of `make dist` in a fresh Debian 12, uses them, upgrades, and purges them again: nothing may be
# left. It runs docs/install.md's commands. As root; all of it happens in a chroot in a mount namespace of its own.
#   scripts/test-packages.sh [DIST]      target/dist-out by default
# Of other architectures the programs run in qemu, and the packages are read.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "${1:-target/dist-out}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
deb=$dist/weir_${version}_amd64.deb
rpm=$dist/weir-$version-1.x86_64.rpm
[ -e "$deb" ] || { echo "test-packages: $deb is missing: make dist" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "test-packages: must be root, for a chroot" >&2; exit 1; }
for program in debootstrap lintian rpm dpkg-deb ssh-keygen qemu-aarch64-static qemu-arm-static; do
	command -v $program >/dev/null || { echo "test-packages: $program is missing: scripts/install-deps.sh dist" >&2; exit 1; }
done
if [ "${IN_NAMESPACE:-}" != 1 ]; then
	# The namespace has no way to a mirror.
	BASE=$(scripts/debian-root.sh)
	export IN_NAMESPACE=1 BASE
	exec unshare --mount --net --pid --fork --kill-child --propagation private "$0" "$dist"
fi

passed=0
pass() { passed=$((passed + 1)); echo "ok: $*"; }
fail() { echo "test-packages: $*" >&2; exit 1; }
work=$(mktemp -d)
root=$work/root
# Nothing below a mount point is removed, whatever happens.
trap 'for at in proc sys run; do umount "$root/$at" 2>/dev/null || true; done; rm -rf --one-file-system "$work"' EXIT

lintian --fail-on error --suppress-tags bad-distribution-in-changes-file "$dist"/*.deb || fail "lintian finds errors"
pass "lintian finds no error in $(cd "$dist" && echo *.deb)"

# Signed sums are those of the files, and no others.
cp "$dist/SHA256SUMS" "$work/SHA256SUMS"
ssh-keygen -q -t ed25519 -N "" -C "" -f "$work/key"
echo "weir-release $(cat "$work/key.pub")" >"$work/signers"
ssh-keygen -q -Y sign -f "$work/key" -n weir-release "$work/SHA256SUMS"
verified() { ssh-keygen -Y verify -f "$work/signers" -I weir-release -n weir-release -s "$work/SHA256SUMS.sig" >/dev/null 2>&1; }
verified <"$work/SHA256SUMS" || fail "the signature of SHA256SUMS is not taken"
! sed "s,^.,x," "$work/SHA256SUMS" | verified || fail "a signature is taken for other sums"
(cd "$dist" && sha256sum --check --quiet SHA256SUMS) || fail "SHA256SUMS are of other files"
pass "the sums are those of the files, and their signature is theirs alone"

for other in arm64:aarch64:qemu-aarch64-static armhf:armv7hl:qemu-arm-static; do
	IFS=: read -r arch rpm_arch qemu <<<"$other"
	[ "$("$qemu" "$dist/$arch/weir" --version)" = "weir $version" ] || fail "the program of $arch does not run in qemu"
	[ "$(dpkg-deb --field "$dist/weir_${version}_$arch.deb" Architecture)" = "$arch" ] || fail "the deb of $arch is of another"
	diff <(dpkg-deb --fsys-tarfile "$deb" | tar -t | sort) \
		<(dpkg-deb --fsys-tarfile "$dist/weir_${version}_$arch.deb" | tar -t | sort) || fail "the deb of $arch has other files"
	[ "$(rpm --query --package --queryformat '%{ARCH}' "$dist/weir-$version-1.$rpm_arch.rpm")" = "$rpm_arch" ] ||
		fail "the rpm of $arch is of another architecture"
	tar -xOf "$dist/weir-$version-oci-$arch.tar" index.json |
		python3 -c 'import json, sys; assert json.load(sys.stdin)["manifests"][0]["platform"]["architecture"] == sys.argv[1]' \
			"${arch/armhf/arm}" || fail "the image of $arch is of another architecture"
	pass "$arch: the program runs in qemu, and the packages have the same files"
done

mkdir "$root"
tar -C "$root" -xf "$BASE"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
# No service starts here.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

in_root() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@"; }
# Names, types, modes and owners of all files, but for those of the kernel, the records of dpkg and apt, and the
# backups that useradd and userdel make of the accounts.
files() {
	(cd "$root" && find . \( -path ./proc -o -path ./sys -o -path ./run -o -path ./var/lib/dpkg -o -path ./var/lib/apt \
		-o -path ./var/log -o -path ./var/cache -o -path ./etc/passwd- -o -path ./etc/shadow- -o -path ./etc/group- \
		-o -path ./etc/gshadow- \) -prune -o -printf '%p %y %m %u %g\n' | sort)
}
accounts() { cat "$root/etc/passwd" "$root/etc/group" "$root/etc/shadow" "$root/etc/gshadow"; }

files >"$work/before"
accounts >"$work/accounts-before"

# The earlier version has the same files, and a line more in its default file.
mkdir "$work/earlier"
dpkg-deb --raw-extract "$deb" "$work/earlier"
sed -i 's/^Version: .*/Version: 0.0.9/' "$work/earlier/DEBIAN/control"
echo "# a line of the earlier version" >>"$work/earlier/etc/default/weir"
(cd "$work/earlier" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Znone --build "$work/earlier" "$root/weir-earlier.deb" >/dev/null
cp "$deb" "$root/weir.deb"

in_root dpkg --install /weir-earlier.deb >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the earlier version cannot be installed"; }
[ "$(in_root weir --version)" = "weir $version" ] || fail "weir --version says $(in_root weir --version)"
pass "the earlier version is installed, and the program runs without a library"
in_root getent group weir >/dev/null && in_root getent passwd weir-images >/dev/null || fail "the accounts are missing"
in_root id -nG weir-images | grep -qw weir || fail "weir-images is no member of group weir"
pass "the group and the user are there"

# The first hour, as docs/install.md has it, on an uplink of this namespace.
ip link set lo up
ip link add eth0 type veth peer name peer0
ip link set eth0 up
ip route add default dev eth0
docs_commands=$(sed -n '/^<!-- test-packages -->/,/^```$/p' docs/install.md | sed -n '/^```sh$/,/^```$/p' | grep -v '^```')
[ -n "$docs_commands" ] || fail "docs/install.md has no commands to test"
while read -r line; do
	in_root sh -c "$line" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "docs/install.md: \`$line\` failed"; }
	pass "docs/install.md: $line"
done < <(sed 's/ *#.*//' <<<"$docs_commands")
in_root weir agent --check | grep -qx '/etc/weir/weir.toml is good' || fail "the agent refuses what weir init wrote"
lines=$(wc -l <"$root/etc/weir/weir.toml")
[ "$lines" -le 10 ] || fail "weir init wrote $lines lines"
pass "weir init wrote $lines lines, and the agent takes them"
# A check of a doctor may fail on a node; the doctor itself must work.
in_root weir doctor --json >"$work/doctor" || true
python3 -c 'import json, sys; checks = json.load(open(sys.argv[1]))["checks"]; assert len(checks) > 5, checks' "$work/doctor"
pass "weir doctor answers"
# nsswitch.conf names modules that are not there: a static program must not load them.
sed -i.was 's/^group:.*/group: nosuchmodule/; s/^passwd:.*/passwd: nosuchmodule/' "$root/etc/nsswitch.conf"
printf '\n[access]\nread = ["@weir", "weir-images"]\n' >>"$root/etc/weir/weir.toml"
in_root weir agent --check >/dev/null || fail "groups are not found without modules of nsswitch.conf"
mv "$root/etc/nsswitch.conf.was" "$root/etc/nsswitch.conf"
pass "users and groups are found without modules of nsswitch.conf"

# A file that the operator has changed stays as it is.
echo "WEIR_LOG=weir=debug" >>"$root/etc/default/weir"
cp "$root/etc/weir/weir.toml" "$work/kept.toml"
mkdir -p "$root/var/lib/weir"
echo state >"$root/var/lib/weir/weir.redb"
in_root apt-get install --yes --option Dpkg::Options::=--force-confold /weir.deb >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the upgrade failed"; }
in_root dpkg-query -W -f '${Version}' weir | grep -qx "$version" || fail "the version did not change"
grep -qx 'WEIR_LOG=weir=debug' "$root/etc/default/weir" || fail "the upgrade replaced /etc/default/weir"
cmp -s "$work/kept.toml" "$root/etc/weir/weir.toml" || fail "the upgrade changed /etc/weir/weir.toml"
[ "$(cat "$root/var/lib/weir/weir.redb")" = state ] || fail "the upgrade touched the state"
pass "the upgrade keeps the configuration and the state"
for page in man1/weir.1 man1/weir-set.1 man5/weir.toml.5 man8/weir-agent.8 man8/weir-init.8; do
	gzip -t "$root/usr/share/man/$page.gz" || fail "the page $page is missing"
done
for completion in bash-completion/completions/weir zsh/vendor-completions/_weir fish/vendor_completions.d/weir.fish; do
	grep -q bugreport "$root/usr/share/$completion" || fail "$completion lacks a verb"
done
pass "pages and completions are there"

in_root dpkg --remove weir >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the removal failed"; }
[ -e "$root/etc/weir/weir.toml" ] && [ -e "$root/var/lib/weir/weir.redb" ] || fail "a removal takes the configuration or the state"
pass "a removal keeps the configuration and the state"
in_root dpkg --purge weir >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the purge failed"; }
rm "$root/weir-earlier.deb" "$root/weir.deb"
files >"$work/after"
diff "$work/before" "$work/after" || fail "the purge leaves the files above, or takes them"
accounts | cmp -s - "$work/accounts-before" || { accounts | diff "$work/accounts-before" -; fail "the purge leaves accounts"; }
pass "a purge leaves no file and no account"

rpm --query --package --list "$rpm" >"$work/rpm"
grep -qx /usr/bin/weir "$work/rpm" && grep -qx /usr/lib/systemd/system/weir.service "$work/rpm" || fail "the rpm lacks files"
rpm --query --package --configfiles "$rpm" | grep -qx /etc/default/weir || fail "the rpm has no configuration file"
rpm --checksig --nosignature "$rpm" >/dev/null || fail "the rpm's digests are wrong"
[ -z "$(rpm --query --package --requires "$rpm" | grep -v -e '^rpmlib(' -e '^/bin/sh' || true)" ] || fail "the rpm requires a library"
pass "the rpm has the same files and needs no library"

# rpm installs into the same root. Its scripts run there, and its database is its own.
in_rpm() { rpm --root "$root" --nodeps "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "rpm $* failed"; }; }
mkdir -p "$root/var/lib/rpm"
rpm --root "$root" --initdb
# Directories that Fedora's own packages have, and Debian's do not, stay.
files_but_rpms() { files | grep -v -e /var/lib/rpm -e ' d [0-7]* root root$'; }
files_but_rpms >"$work/before-rpm"
in_rpm --install "$rpm"
[ "$(in_root weir --version)" = "weir $version" ] || fail "the rpm's program does not run"
in_root getent group weir >/dev/null && in_root getent passwd weir-images >/dev/null || fail "the rpm makes no accounts"
in_root weir init --capacity 10mbit --yes >/dev/null && in_root weir agent --check >/dev/null || fail "the rpm's agent refuses what weir init wrote"
echo "WEIR_LOG=weir=debug" >>"$root/etc/default/weir"
in_rpm --upgrade --force "$rpm"
grep -qx 'WEIR_LOG=weir=debug' "$root/etc/default/weir" || fail "the rpm's upgrade replaced /etc/default/weir"
in_rpm --erase weir
[ -e "$root/etc/weir/weir.toml" ] || fail "the rpm's removal takes the configuration"
# As docs/install.md says, these are removed by hand.
rm -rf "$root"/etc/weir "$root"/var/lib/weir "$root"/var/lib/weir-images "$root"/etc/default/weir.rpmsave
files_but_rpms >"$work/after-rpm"
diff "$work/before-rpm" "$work/after-rpm" || fail "the rpm leaves the files above, or takes them"
pass "the rpm is installed, upgraded and removed in a root, and keeps the configuration"

mkdir "$work/image" "$work/image-root"
tar -C "$work/image" -xf "$dist/weir-$version-oci-amd64.tar"
python3 - "$work/image" "$work/image-root" <<'END'
import hashlib, json, pathlib, sys, tarfile
image = pathlib.Path(sys.argv[1])
def blob(digest):
    data = (image / "blobs" / digest.replace(":", "/")).read_bytes()
    assert "sha256:" + hashlib.sha256(data).hexdigest() == digest, digest
    return data
index = json.loads((image / "index.json").read_text())
manifest = json.loads(blob(index["manifests"][0]["digest"]))
config = json.loads(blob(manifest["config"]["digest"]))
assert config["config"]["Entrypoint"] == ["/usr/bin/weir"], config
for layer in manifest["layers"]:
    blob(layer["digest"])
    with tarfile.open(image / "blobs" / layer["digest"].replace(":", "/")) as archive:
        archive.extractall(sys.argv[2])
END
[ "$(chroot "$work/image-root" /usr/bin/weir --version)" = "weir $version" ] || fail "the image's program does not run"
pass "the image's digests are right, and its program runs in its root"

echo "$passed passed, 0 failed"

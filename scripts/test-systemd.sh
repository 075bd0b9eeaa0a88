#!/usr/bin/env bash
# Boots a Debian 12 with systemd under qemu, installs weir's package there, and compares its units with docs/install.md.
# Among the steps are limits, the watchdog, a restart, a crash, a wrong file, an upgrade and a purge.
#   scripts/test-systemd.sh [DIST]      target/dist-out by default
# Without the deb of `make dist` a package is made of PROGRAM (target/debug/weir) and of weir-fs beside it.
# As root, for debootstrap. The guest has no way to any network.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
deb=${1:-target/dist-out}/weir_${version}_amd64.deb
: "${PROGRAM:=target/debug/weir}" "${VM:=target/debug/weir-vm}"

fail() { echo "test-systemd: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "must be root, for debootstrap"
[ "$(dpkg --print-architecture)" = amd64 ] || fail "the guest is of amd64, and this machine of $(dpkg --print-architecture)"
for program in debootstrap dpkg-deb qemu-system-x86_64; do
	command -v $program >/dev/null || fail "$program is missing: scripts/install-deps.sh vm dist"
done
[ -x "$VM" ] || fail "$VM is missing: make build"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root
mkdir "$root"
# Debug builds link libelf.
tar -C "$root" -xf "$(scripts/debian-root.sh systemd-sysv,dbus,udev,kmod,iproute2,bpftool,python3,libelf1)"
mkdir "$root/test"

# The package of a build that is no release has the same files, but for licences.
package_of() {
	local programs=$work/programs
	[ -x "$1" ] || fail "there is neither $deb (make dist) nor $1 (make build)"
	mkdir "$programs" "$work/out"
	strip -o "$programs/weir" "$1"
	strip -o "$programs/weir-fs" "$(dirname "$1")/weir-fs"
	echo "a build for tests" | tee "$programs/LICENSES" >"$programs/weir.cdx.json"
	FORMATS=deb SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) scripts/packages.sh amd64 "$version" "$programs" "$work/out"
	deb=$work/out/weir_${version}_amd64.deb
}
if [ -e "$deb" ]; then echo "test-systemd: the package is $deb"; else package_of "$PROGRAM"; fi
cp "$deb" "$root/test/weir.deb"
# The version after this one: the same program under a higher number. It is not compressed, which saves the guest's time.
dpkg-deb --raw-extract "$deb" "$work/later"
chroot_runs() { cp "$work/later/usr/bin/weir" "$root/test/weir" && chroot "$root" /test/weir --version >/dev/null && rm "$root/test/weir"; }
chroot_runs || fail "$PROGRAM does not run in Debian 12: build a static package (scripts/dist.sh amd64)"
sed -i 's/^Version: .*/Version: 99.0/' "$work/later/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$work/later" "$root/test/weir-later.deb" >/dev/null

cp testing/systemd/inside.sh testing/systemd/traffic.py "$root/test/"
# The commands of the documents, without their comments.
sed -n '/^<!-- test-packages -->/,/^```$/p' docs/install.md | sed -n '/^```sh$/,/^```$/p' | sed '/^```/d; s/ *#.*//' >"$root/test/first-minute"
[ -s "$root/test/first-minute" ] || fail "docs/install.md has no commands to test"
# The guest is no first boot, says on its console only what the test says, and has no terminal.
echo 5e1fda0b1c2d3e4f5061728394a5b6c7 >"$root/etc/machine-id"
echo weir-guest >"$root/etc/hostname"
mkdir -p "$root/etc/systemd/system.conf.d"
printf '[Manager]\nShowStatus=no\n' >"$root/etc/systemd/system.conf.d/test.conf"
# The kernel of cloud images has no autofs loaded here, and no disk needs a check.
for unit in serial-getty@ttyS0.service getty@tty1.service proc-sys-fs-binfmt_misc.automount apt-daily.timer \
	apt-daily-upgrade.timer dpkg-db-backup.timer; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
cat >"$root/etc/systemd/system/weir-test.service" <<END
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/bash /test/inside.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
[Install]
WantedBy=multi-user.target
END
ln -s ../weir-test.service "$root/etc/systemd/system/multi-user.target.wants/weir-test.service"
# Documents and translations only cost the guest time.
tar -C "$root" --exclude=./usr/share/doc --exclude=./usr/share/locale --exclude=./usr/share/man \
	--exclude=./usr/share/zoneinfo --exclude='./var/lib/apt/lists/*' --exclude='./var/cache/apt/*' -cf "$work/root.tar" .

code=0
"$VM" boot --timeout 2400 --root "$work/root.tar" | tee "$work/log" || code=$?
passed=$(grep -c '^ok: ' "$work/log" || true)
grep -qx "$passed passed, 0 failed" "$work/log" || fail "the guest did not reach its end: $passed steps passed, see above"
[ $code -eq 0 ] || fail "weir-vm ends with $code, see above"

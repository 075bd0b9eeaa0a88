# Functions for tests in a guest with systemd. Scripts source this file, after they have set $test to their name and
# $inside to the script that the guest runs.
#
# `guest_root` unpacks a Debian into $root, `guest_package` puts weir's package there, and `guest_boot` boots it.
# The guest has no way to any network.
: "${PROGRAM:=target/debug/weir}" "${VM:=target/debug/weir-vm}"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

fail() { echo "$test: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "must be root, for debootstrap"
[ "$(dpkg --print-architecture)" = amd64 ] || fail "the guest is of amd64, and this machine of $(dpkg --print-architecture)"
for program in debootstrap dpkg-deb qemu-system-x86_64; do
	command -v $program >/dev/null || fail "$program is missing: scripts/install-deps.sh vm dist"
done
[ -x "$VM" ] || fail "$VM is missing: make build"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

# guest_root SUITE PACKAGE,...
guest_root() {
	mkdir "$root"
	tar -C "$root" -xf "$(scripts/debian-root.sh "$2" "$1")"
	mkdir "$root/test"
	cp "$inside" testing/systemd/common.sh testing/systemd/traffic.py "$root/test/"
	# The guest is no first boot, says on its console only what the test says, and has no terminal.
	echo 5e1fda0b1c2d3e4f5061728394a5b6c7 >"$root/etc/machine-id"
	echo weir-guest >"$root/etc/hostname"
	mkdir -p "$root/etc/systemd/system.conf.d"
	printf '[Manager]\nShowStatus=no\n' >"$root/etc/systemd/system.conf.d/test.conf"
	# The kernel of cloud images has no autofs loaded here, and no disk needs a check.
	local unit
	for unit in serial-getty@ttyS0.service getty@tty1.service proc-sys-fs-binfmt_misc.automount apt-daily.timer \
		apt-daily-upgrade.timer dpkg-db-backup.timer; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
	cat >"$root/etc/systemd/system/weir-test.service" <<-END
		[Unit]
		After=multi-user.target
		[Service]
		ExecStart=/bin/bash /test/$(basename "$inside")
		StandardOutput=tty
		StandardError=tty
		TTYPath=/dev/console
		[Install]
		WantedBy=multi-user.target
	END
	mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
	ln -s ../weir-test.service "$root/etc/systemd/system/multi-user.target.wants/weir-test.service"
}

# guest_package [DEB]: puts the deb of `make dist` into the root, or a package of PROGRAM. The latter has the same files, but
# for licences. Sets $deb.
guest_package() {
	deb=$1
	if [ -e "$deb" ]; then
		echo "$test: the package is $deb"
	else
		local programs=$work/programs
		[ -x "$PROGRAM" ] || fail "there is neither $deb (make dist) nor $PROGRAM (make build)"
		mkdir "$programs" "$work/out"
		strip -o "$programs/weir" "$PROGRAM"
		strip -o "$programs/weir-fs" "$(dirname "$PROGRAM")/weir-fs"
		echo "a build for tests" | tee "$programs/LICENSES" >"$programs/weir.cdx.json"
		FORMATS=deb SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) scripts/packages.sh amd64 "$version" "$programs" "$work/out"
		deb=$work/out/weir_${version}_amd64.deb
	fi
	cp "$deb" "$root/test/weir.deb"
}

# guest_boot OPTION...: boots the root with these options of weir-vm, and fails unless all steps pass.
guest_boot() {
	# Documents and translations only cost the guest time.
	tar -C "$root" --exclude=./usr/share/doc --exclude=./usr/share/locale --exclude=./usr/share/man \
		--exclude=./usr/share/zoneinfo --exclude='./var/lib/apt/lists/*' --exclude='./var/cache/apt/*' -cf "$work/root.tar" .
	local code=0 passed
	"$VM" boot "$@" --root "$work/root.tar" | tee "$work/log" || code=$?
	passed=$(grep -c '^ok: ' "$work/log" || true)
	grep -qx "$passed passed, 0 failed" "$work/log" || fail "the guest did not reach its end: $passed steps passed, see above"
	[ $code -eq 0 ] || fail "weir-vm ends with $code, see above"
}

#!/bin/sh
# Installs what weir is built and tested with, on Debian 12 or later or Ubuntu 22.04 or later, as
# root: `scripts/install-deps.sh [build] [test] [vm] [demo] [lint] [uml] [fuzz] [dist] [cross] [runtimes]
# [dashboard] [client]`; all but uml, fuzz, dist, cross, runtimes, dashboard and client if none is named. Installed packages are left alone.
set -eu

say() { printf 'deps: %s\n' "$*"; }
die() { printf 'deps: %s\n' "$*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || die "weir runs on Linux only"
command -v apt-get >/dev/null || die "no apt-get here: install by hand clang >= 16, libelf, zlib, pkg-config, a C compiler, iproute2, iperf3, docker (see this script)"

# One at a time, as apt does not wait for another's lists.
if [ "$(id -u)" = 0 ]; then
    mkdir -p /run/lock
    exec 9>/run/lock/weir-deps
    flock 9
fi

wanted=${*:-build test vm demo lint}
packages=""
optional=""
add() { packages="$packages $*"; }
for part in $wanted; do
    case $part in
    build) add build-essential pkg-config libelf-dev zlib1g-dev linux-libc-dev ca-certificates curl git ;;
    test | demo)
        add iproute2 iputils-ping ethtool iperf3 iptables procps python3 util-linux busybox-static
        # Nodes of a site on a real one.
        [ $part = demo ] || add redis-server
        # Counts instructions.
        [ $part = demo ] || add valgrind
        # Keys of WireGuard devices.
        [ $part = demo ] || add wireguard-tools
        # The reference plugins of CNI, behind which `weir cni` stands.
        [ $part = demo ] || add containernetworking-plugins
        # Docker's own packages would conflict with the distribution's.
        command -v dockerd >/dev/null || add docker.io containerd runc
        # Not a package of its own everywhere; tests that want it say so where it is missing.
        command -v bpftool >/dev/null || optional=bpftool
        # A registry and a client of it; a network file system that caches share in the lab; the checks of metrics
        # and alerts.
        for program in docker-registry skopeo glusterfs:glusterfs-client glusterd:glusterfs-server promtool:prometheus; do
            command -v "${program%:*}" >/dev/null || optional="$optional ${program#*:}"
        done
        ;;
    # Other kernels under qemu: what fetches and unpacks them, and the guest's shell.
    vm) add qemu-system-x86 debian-archive-keyring xz-utils zstd binutils dash util-linux iptables wireguard-tools ;;
    # The kernel that scripts/uml-kernel.sh builds.
    uml) add build-essential bc flex bison dwarves xz-utils ;;
    fuzz) add xz-utils ;;
    # A browser and the program that drives it.
    dashboard)
        add chromium iproute2 python3
        # Debian's npm does not go with a Node.js of another maker.
        command -v npm >/dev/null || add nodejs npm
        ;;
    # Random requests and generated clients of the API: their tools come from PyPI.
    client) add python3 python3-venv iproute2 socat ;;
    # Programs of arm64 and armhf: compilers, what fetches Debian's libraries (scripts/sysroot.sh), and qemu.
    cross)
        add debootstrap debian-archive-keyring binutils gcc-aarch64-linux-gnu gcc-arm-linux-gnueabihf
        add qemu-system-arm qemu-user-static
        ;;
    # Container runtimes beside Docker.
    # Virtual machines: libvirt without its services.
    runtimes)
        add libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 podman runc containerd containernetworking-plugins slirp4netns lxc busybox-static iperf3
        # Elsewhere it is a snap, whose daemon takes no directory of a test.
        [ "$(. /etc/os-release && echo "$ID")" != debian ] || add lxd
        ;;
    # Packages and what judges them. nfpm needs Go, which scripts/nfpm.sh looks for.
    dist) add python3 binutils debootstrap lintian rpm xz-utils iproute2 util-linux openssh-client ;;
    # systemd measures how exposed the units are.
    lint) add pkg-config libssl-dev systemd ;;
    *) die "unknown part $part: build, test, vm, demo, lint, uml, fuzz, dist, cross, runtimes, dashboard or client" ;;
    esac
done

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done

# clang below 16 miscompiles what newer kernels' BPF needs; take the newest that the system has.
clang_missing=true
for version in 20 19 18 17 16; do
    command -v "clang-$version" >/dev/null && clang_missing=false
done

if [ -n "$missing$optional" ] || [ "$clang_missing" = true ]; then
    [ "$(id -u)" = 0 ] || die "must be root to install:$missing $optional clang"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    if [ "$clang_missing" = true ]; then
        for version in 20 19 18 17 16; do
            if apt-cache show "clang-$version" >/dev/null 2>&1; then
                missing="$missing clang-$version"
                break
            fi
        done
    fi
    for package in $optional; do
        if apt-cache policy "$package" | grep -q 'Candidate: [0-9]'; then missing="$missing $package"; fi
    done
    say "installing$missing"
    # A service that starts by itself would change the host's firewall: keep it from starting.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    # shellcheck disable=SC2086 # a list of words
    apt-get install -y -qq --no-install-recommends $missing >/dev/null 9>&-
fi

if ! command -v cargo >/dev/null && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
    say "installing the Rust toolchain with rustup"
    installer=$(mktemp)
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o "$installer" ||
        die "cannot fetch rustup: install a stable Rust toolchain by hand (https://rustup.rs), then try again"
    sh "$installer" -y -q --profile minimal -c clippy -c rustfmt
    rm -f "$installer"
fi
# The program that drives CNI plugins is written in Go, and Debian has no package of it.
case " $wanted " in
*" test "*)
    go=$(PATH=$PATH:/usr/local/go/bin command -v go || true)
    if ! command -v cnitool >/dev/null; then
        if [ -n "$go" ]; then
            say "building cnitool"
            GOBIN=/usr/local/bin "$go" install github.com/containernetworking/cni/cnitool@v1.3.0 ||
                say "cannot build cnitool: the test that wants it cannot run"
        else
            say "there is no Go to build cnitool (github.com/containernetworking/cni/cnitool): the test that wants it cannot run"
        fi
    fi
    ;;
esac
case " $wanted " in
*" fuzz "*)
    PATH=$HOME/.cargo/bin:$PATH
    cargo fuzz --version >/dev/null 2>&1 || {
        say "installing cargo-fuzz"
        cargo install --quiet --locked --debug cargo-fuzz
    }
    ;;
esac
say "all there"

#!/usr/bin/env python3
"""Runs a program under the limits of a systemd unit, without systemd.

    under-unit.py UNIT[:DROP-IN...] PROGRAM [ARGUMENT...]

The script reads the section [Service], limits its own process and executes the program, which keeps the
process id. The sets of system calls come from `systemd-analyze syscall-filter`, the filters from libseccomp.
Each setting is applied, is no limit, or stands in NOT_APPLIED; any other one is an error.

UNIT_WRITABLE: directories that stand for the unit's state and runtime directories, with colons between.
UNIT_ETC: a directory of files that stand for those of the same name in /etc.
UNIT_TAG: the name of the memory cgroup is this tag, a dash and the process id. The caller removes it.
"""

import ctypes
import errno
import grp
import os
import pwd
import resource
import struct
import subprocess
import sys

# Settings that say how systemd starts the program, and limit nothing.
NO_LIMIT = """EnvironmentFile Type ExecStart ExecReload KillMode Restart RestartSec RestartPreventExitStatus WatchdogSec
RuntimeDirectory RuntimeDirectoryMode RuntimeDirectoryPreserve StateDirectory StateDirectoryMode RemoveIPC""".split()
# Limits that only systemd or a cgroup of its own can apply. A process with no CAP_MKNOD opens what the private
# /dev has, so DevicePolicy= adds nothing here.
NOT_APPLIED = "TasksMax DevicePolicy DeviceAllow ProtectHostname".split()
LISTS = """CapabilityBoundingSet AmbientCapabilities RestrictAddressFamilies RestrictNamespaces SystemCallFilter
SupplementaryGroups""".split()

CAPABILITIES = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE
SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL
SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE""".split()
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
MAX_FAMILY = 64
# CLONE_NEW* of linux/sched.h.
NAMESPACES = {"cgroup": 0x02000000, "ipc": 0x08000000, "net": 0x40000000, "mnt": 0x00020000,
              "pid": 0x20000000, "user": 0x10000000, "uts": 0x04000000}

libc = ctypes.CDLL(None, use_errno=True)


def die(why):
    sys.exit(f"under-unit: {why}")


def check(result, what):
    if result < 0:
        die(f"cannot {what}: {os.strerror(ctypes.get_errno())}")
    return result


def read_unit(files):
    """The settings of [Service]: lists in the order of their lines, the last line of all others."""
    settings, section = {}, ""
    for file in files.split(":"):
        with open(file, encoding="utf-8") as text:
            for line in map(str.strip, text):
                if line.startswith("["):
                    section = line
                elif section == "[Service]" and line and line[0] not in "#;":
                    key, _, value = line.partition("=")
                    if key in LISTS:
                        settings[key] = settings.get(key, []) + [value] if value else []
                    else:
                        settings[key] = value
    return settings


def is_on(value):
    return value in ("yes", "true", "on", "1")


def words(settings, key):
    return " ".join(settings.get(key, [])).split()


# -- system calls ------------------------------------------------------------------------------------------------

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NE, EQ, GT, MASKED_EQ = 1, 4, 6, 7


class Comparison(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class Filter:
    """A filter of libseccomp, loaded by `load`."""

    lib = None

    def __init__(self, default=ALLOW):
        if Filter.lib is None:
            try:
                Filter.lib = ctypes.CDLL("libseccomp.so.2")
            except OSError as error:
                die(f"{error}: scripts/install-deps.sh lint installs systemd, which brings it")
            Filter.lib.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.seccomp_init(ctypes.c_uint32(default)))
        # SCMP_FLTATR_CTL_OPTIMIZE: a binary tree of calls, as systemd has it.
        self.lib.seccomp_attr_set(self.context, 8, ctypes.c_uint32(2))

    def rule(self, action, call, *comparisons):
        number = self.lib.seccomp_syscall_resolve_name(call.encode())
        # Other architectures have this call.
        if number < 0:
            return
        array = (Comparison * max(len(comparisons), 1))(*[Comparison(*c) for c in comparisons])
        bad = self.lib.seccomp_rule_add_array(
            self.context, ctypes.c_uint32(action), number, len(comparisons), array)
        # A rule that says what the default says is refused, and not needed.
        if bad and bad != -errno.EACCES:
            die(f"cannot filter {call}: {os.strerror(-bad)}")

    def load(self):
        bad = self.lib.seccomp_load(self.context)
        if bad:
            die(f"cannot load a filter of system calls: {os.strerror(-bad)}")


def sets_of_calls():
    """Each set of systemd by its name, which begins with @."""
    out = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    sets, name = {}, None
    for line in out.stdout.splitlines():
        word = line.strip()
        if line.startswith("@"):
            name = word
            sets[name] = []
        elif word.startswith("#") and not line.startswith(" "):
            name = None
        elif name and word and not word.startswith("#"):
            sets[name].append(word)
    if "@default" not in sets:
        die("`systemd-analyze syscall-filter` names no sets: scripts/install-deps.sh lint")
    return sets


def calls(sets, names):
    found = set()
    for name in names:
        if name.startswith("@"):
            if name not in sets:
                die(f"systemd knows no set {name} of system calls")
            found |= calls(sets, sets[name])
        else:
            found.add(name)
    return found


def filters(settings):
    """The filters that the settings ask for; the list of allowed calls comes last."""
    on = lambda key: is_on(settings.get(key, ""))
    sets = sets_of_calls()
    eperm = ERRNO | errno.EPERM
    made = []

    def filter(rules):
        made.append(Filter())
        for rule in rules:
            made[-1].rule(*rule)

    denied = [("ProtectClock", ["@clock"]), ("ProtectKernelModules", ["@module"]), ("ProtectKernelLogs", ["syslog"]),
              ("PrivateDevices", ["@raw-io"]), ("ProtectHostname", ["sethostname", "setdomainname"])]
    names = [name for key, some in denied if on(key) for name in some]
    if names:
        filter((eperm, call) for call in calls(sets, names))

    families = words(settings, "RestrictAddressFamilies")
    if families:
        if any(name not in FAMILIES for name in families):
            die(f"one of the address families {families} is not known here")
        allowed = [FAMILIES[name] for name in families]
        refused = ERRNO | errno.EAFNOSUPPORT
        filter([(refused, "socket", (0, EQ, family, 0)) for family in range(MAX_FAMILY + 1) if family not in allowed]
               + [(refused, "socket", (0, GT, MAX_FAMILY, 0))])

    spaces = words(settings, "RestrictNamespaces")
    if spaces and spaces != ["no"]:
        kept = [] if spaces == ["yes"] else spaces
        flags = [flag for name, flag in NAMESPACES.items() if name not in kept]
        filter([(ERRNO | errno.ENOSYS, "clone3")]
               + [(eperm, call, (0, MASKED_EQ, flag, flag)) for flag in flags for call in ("clone", "unshare")]
               + [(eperm, "setns", (1, MASKED_EQ, flag, flag)) for flag in flags]
               + [(eperm, "setns", (1, EQ, 0, 0))])

    if on("MemoryDenyWriteExecute"):
        write_and_execute, execute, attach_execute = 0x6, 0x4, 0o100000
        filter([(eperm, "mmap", (2, MASKED_EQ, write_and_execute, write_and_execute)),
                (eperm, "mprotect", (2, MASKED_EQ, execute, execute)),
                (eperm, "pkey_mprotect", (2, MASKED_EQ, execute, execute)),
                (eperm, "shmat", (2, MASKED_EQ, attach_execute, attach_execute))])

    if on("RestrictRealtime"):
        # SCHED_OTHER, SCHED_BATCH and SCHED_IDLE stay.
        idle = 5
        filter([(eperm, "sched_setscheduler", (1, EQ, policy, 0)) for policy in (1, 2, 4)]
               + [(eperm, "sched_setscheduler", (1, GT, idle, 0))])

    if on("RestrictSUIDSGID"):
        made_with = [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("mkdir", 1), ("mkdirat", 2),
                     ("mknod", 1), ("mknodat", 2), ("creat", 1)]
        create, bits = 0o100, (0o4000, 0o2000)
        filter([(eperm, call, (arg, MASKED_EQ, bit, bit)) for call, arg in made_with for bit in bits]
               + [(eperm, "open", (1, MASKED_EQ, create, create), (2, MASKED_EQ, bit, bit)) for bit in bits]
               + [(eperm, "openat", (2, MASKED_EQ, create, create), (3, MASKED_EQ, bit, bit)) for bit in bits]
               + [(ERRNO | errno.ENOSYS, "openat2")])

    if on("LockPersonality"):
        filter([(eperm, "personality", (0, NE, check(libc.personality(0xFFFFFFFF), "ask the personality"), 0))])

    lines = settings.get("SystemCallFilter", [])
    if lines:
        if lines[0].startswith("~"):
            die("SystemCallFilter= has to begin with what is allowed")
        allowed = calls(sets, ["@default"])
        for line in lines:
            some = calls(sets, line.lstrip("~").split())
            allowed = allowed - some if line.startswith("~") else allowed | some
        number = settings.get("SystemCallErrorNumber")
        # Without a number, the kernel kills the process.
        made.append(Filter(ERRNO | getattr(errno, number) if number else 0x80000000))
        for call in allowed:
            made[-1].rule(ALLOW, call)
    return made


# -- files -------------------------------------------------------------------------------------------------------

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_MOVE, MS_REC, MS_SLAVE = 0x1000, 0x2000, 0x4000, 0x80000


def mount(source, target, kind=None, flags=0, data=None):
    text = lambda s: s.encode() if s is not None else None
    check(libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)), f"mount {target}")


def set_read_only(path, read_only):
    # mount_setattr(AT_FDCWD, path, AT_RECURSIVE, {set, clear, propagation, userns}).
    attributes = struct.pack("QQQQ", int(read_only), int(not read_only), 0, 0)
    check(libc.syscall(442, -100, path.encode(), 0x8000, attributes, len(attributes)),
          f"make {path} {'read-only' if read_only else 'writable'}")


def bind(source, target):
    mount(source, target, flags=MS_BIND | MS_REC)


def hide(path):
    if os.path.isdir(path):
        mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0")
    elif os.path.exists(path):
        bind("/dev/null", path)


def private_devices():
    there = "/tmp/under-unit-dev"
    os.mkdir(there)
    mount("tmpfs", there, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        open(f"{there}/{name}", "w", encoding="ascii").close()
        bind(f"/dev/{name}", f"{there}/{name}")
    for name in ("shm", "pts"):
        os.mkdir(f"{there}/{name}")
        if os.path.isdir(f"/dev/{name}"):
            bind(f"/dev/{name}", f"{there}/{name}")
    for name, to in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(to, f"{there}/{name}")
    mount(there, "/dev", flags=MS_MOVE)
    os.rmdir(there)


def file_systems(settings):
    on = lambda key: is_on(settings.get(key, ""))
    writable = [path for path in os.environ.get("UNIT_WRITABLE", "").split(":") if path]
    check(libc.unshare(NAMESPACES["mnt"]), "make a mount namespace (as root)")
    mount(None, "/", flags=MS_REC | MS_SLAVE)
    for path in writable:
        bind(path, path)
    system = settings.get("ProtectSystem", "no")
    if system == "strict":
        set_read_only("/", True)
        for path in ["/dev", "/proc", "/sys", *writable]:
            set_read_only(path, False)
    elif system != "no":
        die(f"ProtectSystem={system} is not known here, strict is")
    if on("PrivateTmp"):
        for path in ("/tmp", "/var/tmp"):
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    if on("PrivateDevices"):
        private_devices()
    if on("ProtectHome"):
        for path in ("/home", "/root", "/run/user"):
            hide(path)
    if settings.get("ProtectProc", "default") != "default":
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"hidepid={settings['ProtectProc']}")
    if on("ProtectKernelTunables"):
        bind("/proc/sys", "/proc/sys")
        set_read_only("/proc/sys", True)
        set_read_only("/sys", True)
        for path in ("/proc/kallsyms", "/proc/kcore"):
            hide(path)
    for path in settings.get("ReadWritePaths", "").split():
        optional, path = path.startswith("-"), path.lstrip("-")
        if os.path.exists(path) or not optional:
            bind(path, path)
            set_read_only(path, False)
    if os.path.isdir("/sys/fs/cgroup"):
        bind("/sys/fs/cgroup", "/sys/fs/cgroup")
        set_read_only("/sys/fs/cgroup", on("ProtectControlGroups"))
    if on("ProtectKernelModules"):
        hide("/usr/lib/modules")
    if on("ProtectKernelLogs"):
        hide("/proc/kmsg")
    etc = os.environ.get("UNIT_ETC")
    for name in os.listdir(etc) if etc else ():
        bind(f"{etc}/{name}", f"/etc/{name}")


# -- the process -------------------------------------------------------------------------------------------------

def bounded_memory(most):
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    size = int(most[:-1]) * scale[most[-1]] if most[-1] in scale else int(most)
    # Version 1 has a hierarchy for memory; in version 2 the root has handed the controller down.
    base, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
    if not os.path.isdir(base):
        base, file = "/sys/fs/cgroup", "memory.max"
    group = f"{base}/{os.environ.get('UNIT_TAG', 'under-unit')}-{os.getpid()}"
    try:
        os.makedirs(group, exist_ok=True)
        for name, text in ((file, str(size)), ("cgroup.procs", str(os.getpid()))):
            with open(f"{group}/{name}", "w", encoding="ascii") as limit:
                limit.write(text)
    except OSError as error:
        die(f"cannot bound the memory: {error}")


def bounded_capabilities(settings):
    names = words(settings, "CapabilityBoundingSet")
    kept = {CAPABILITIES.index(name.removeprefix("CAP_")) for name in names}
    if "CapabilityBoundingSet" not in settings:
        return
    for key, name in (("PrivateDevices", "MKNOD"), ("PrivateDevices", "SYS_RAWIO"), ("ProtectClock", "SYS_TIME"),
                      ("ProtectKernelModules", "SYS_MODULE"), ("ProtectKernelLogs", "SYSLOG")):
        if is_on(settings.get(key, "")):
            kept.discard(CAPABILITIES.index(name))
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as text:
        last = int(text.read())
    for number in set(range(last + 1)) - kept:
        # PR_CAPBSET_DROP.
        check(libc.prctl(24, number, 0, 0, 0), "drop a capability")


def identity(settings):
    groups = []
    for name in words(settings, "SupplementaryGroups"):
        try:
            groups.append(grp.getgrnam(name).gr_gid)
        except KeyError:
            die(f"there is no group {name}")
    user = settings.get("User", "root")
    if user == "root":
        os.setgroups(groups)
        return
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        die(f"there is no user {user}")
    os.setgroups(groups)
    os.setresgid(*[entry.pw_gid] * 3)
    os.setresuid(*[entry.pw_uid] * 3)


def main():
    if len(sys.argv) < 3:
        die("usage: under-unit.py UNIT[:DROP-IN...] PROGRAM [ARGUMENT...]")
    settings = read_unit(sys.argv[1])
    known = set(NO_LIMIT + NOT_APPLIED + LISTS) | set("""User Group UMask LimitNOFILE LimitMEMLOCK MemoryMax ReadWritePaths
        NoNewPrivileges ProtectSystem ProtectHome PrivateTmp PrivateMounts PrivateDevices ProtectProc ProtectClock
        ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectControlGroups RestrictRealtime
        RestrictSUIDSGID LockPersonality MemoryDenyWriteExecute SystemCallArchitectures
        SystemCallErrorNumber""".split())
    strange = sorted(set(settings) - known)
    if strange:
        die(f"cannot apply {', '.join(strange)} of {sys.argv[1]}")
    ready = filters(settings)
    if "MemoryMax" in settings:
        bounded_memory(settings["MemoryMax"])
    file_systems(settings)
    for key, limit in (("LimitNOFILE", resource.RLIMIT_NOFILE), ("LimitMEMLOCK", resource.RLIMIT_MEMLOCK)):
        if key in settings:
            most = resource.RLIM_INFINITY if settings[key] == "infinity" else int(settings[key])
            hard = resource.getrlimit(limit)[1]
            # Only CAP_SYS_RESOURCE raises a hard limit, and systemd has it.
            try:
                resource.setrlimit(limit, (most, most))
            except ValueError:
                resource.setrlimit(limit, (hard, hard))
    os.umask(int(settings.get("UMask", "0022"), 8))
    bounded_capabilities(settings)
    identity(settings)
    if is_on(settings.get("NoNewPrivileges", "")):
        # PR_SET_NO_NEW_PRIVS.
        check(libc.prctl(38, 1, 0, 0, 0), "give up new privileges")
    for filter in ready:
        filter.load()
    os.execv(sys.argv[2], sys.argv[2:])


main()

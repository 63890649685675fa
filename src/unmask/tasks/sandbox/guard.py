"""A script that ``sandbox.py`` runs in its own process: it drops every right and becomes the interpreter of untrusted code.

It imports nothing of this package. What it sets survives ``execve`` and cannot be undone: rlimits, Landlock (files), seccomp
(sockets, processes, signals, calls that change files past Landlock), no capabilities, no new privileges and, where the kernel
allows them, namespaces of its own: no network, and a small file system in memory as its folder. Needs Linux on x86-64 or AArch64.

Its first argument is the JSON payload that ``sandbox.py`` writes.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SIGKILL, CAPABILITIES = 9, 64
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWNS = 0x10000000, 0x40000000, 0x08000000, 0x00020000
CLONE_THREAD = 0x00010000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
EPERM, ENOSYS = 1, 38
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
ACCESS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock's version → how many rights over files it knows; later versions know as many as the fifth."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ANYWHERE = {
    "clone3": 435, "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
    "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip
NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "accept4": 288, "clone": 56, "fork": 57, "vfork": 58,
        "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "truncate": 76, "chmod": 90,
        "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "fchmodat": 268, "utime": 132, "utimes": 235,
        "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
        "lremovexattr": 198, "fremovexattr": 199, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "setrlimit": 160, "prlimit64": 302, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272,
        "setns": 308, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249,
        "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "msgget": 68, "mq_open": 240, "mq_unlink": 241,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
        "setdomainname": 171, "init_module": 175, "delete_module": 176, "finit_module": 313, "kexec_load": 246,
        "kexec_file_load": 320, "acct": 163, "quotactl": 179, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
        "clock_adjtime": 305, "syslog": 103, "setpriority": 141, "ioprio_set": 251, "sched_setparam": 142,
        "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314, "migrate_pages": 256, "move_pages": 279,
        "personality": 135, "vhangup": 153, "iopl": 172, "ioperm": 173, "mknod": 133, "mknodat": 259, "fanotify_init": 300,
        "prctl": 157, "seccomp": 317, "fcntl": 72, "ioctl": 16,
    },
    "aarch64": {
        "socket": 198, "connect": 203, "accept": 202, "bind": 200, "listen": 201, "accept4": 242, "clone": 220, "kill": 129,
        "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "truncate": 45, "fchmod": 52,
        "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "ptrace": 117, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "setrlimit": 164, "prlimit64": 261, "mount": 40, "umount2": 39, "pivot_root": 41,
        "chroot": 51, "unshare": 97, "setns": 268, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "add_key": 217,
        "request_key": 218, "keyctl": 219, "shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190, "msgget": 186,
        "mq_open": 180, "mq_unlink": 181, "name_to_handle_at": 264, "open_by_handle_at": 265, "swapon": 224, "swapoff": 225,
        "reboot": 142, "sethostname": 161, "setdomainname": 162, "init_module": 105, "delete_module": 106, "finit_module": 273,
        "kexec_load": 104, "kexec_file_load": 294, "acct": 89, "quotactl": 60, "settimeofday": 170, "clock_settime": 112,
        "adjtimex": 171, "clock_adjtime": 266, "syslog": 116, "setpriority": 140, "ioprio_set": 30, "sched_setscheduler": 119,
        "sched_setparam": 118, "sched_setaffinity": 122, "sched_setattr": 274, "migrate_pages": 238, "move_pages": 239,
        "personality": 92, "vhangup": 58, "mknodat": 33, "fanotify_init": 262, "prctl": 167, "seccomp": 277, "fcntl": 25,
        "ioctl": 29,
    },
}  # fmt: skip
WITH_CONDITIONS = ("clone3", "clone", "kill", "tgkill", "prlimit64", "fcntl", "ioctl")
OWNERS = (8, 10, 15, 1024, 1026)
"""``fcntl``: F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, by which the kernel sends signals for a process."""
TERMINAL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""The only ``ioctl`` calls: whether it is a terminal and how large, how much can be read, blocking, closing on exec."""


class Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("filters", ctypes.POINTER(Filter)))


class PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version(libc: Any) -> int:
    """0 where there is none."""
    return max(0, libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def confine_files(libc: Any, readable: list[str], listed: list[str], folder: str) -> None:
    version = landlock_version(libc)
    if version == 0:
        raise OSError("this kernel has no Landlock")
    rights = (1 << ACCESS_BITS.get(version, 16)) - 1
    # Rights over files, and from the versions that know them: TCP, then abstract sockets and signals to processes outside.
    handled = [rights] + [3] * (version >= 4) + [3] * (version >= 6)
    attributes = (ctypes.c_uint64 * len(handled))(*handled)
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(8 * len(handled)), ctypes.c_uint32(0))
    _must(ruleset, "landlock_create_ruleset")
    rules = [(path, EXECUTE | READ_FILE | READ_DIR) for path in readable] + [(path, READ_DIR) for path in listed]
    rules += [(folder, rights), ("/dev/null", READ_FILE | WRITE_FILE), ("/dev/urandom", READ_FILE)]
    for path, allowed in rules:
        if not os.path.exists(path):
            continue
        if not os.path.isdir(path):
            allowed &= EXECUTE | READ_FILE | WRITE_FILE
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = PathBeneath(allowed, place)
        _must(libc.syscall(ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"landlock_add_rule {path}")
        os.close(place)
    _must(libc.syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def filter_for(machine: str, pid: int) -> list[tuple[int, int, int, int]]:
    """Classic BPF: the calls refused with EPERM, except threads, signals to the process itself and reading its own limits."""
    load, jump_equal, jump_at_least, jump_set, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000, 0x80000000
    numbers = {**ANYWHERE, **NUMBERS[machine]}

    def only_if(name: str, *conditions: tuple[int, int, int]) -> list[tuple[int, int, int, int]]:
        """Allow the call if every (word of the arguments, kind of test, value) holds."""
        body: list[tuple[int, int, int, int]] = []
        for n, (word, test, value) in enumerate(conditions):
            after = 2 * (len(conditions) - n) - 1  # from this jump to the refusal at the end
            body += [(load, 0, 0, 16 + 4 * word), (test, 0, after, value)]
        body += [(give, 0, 0, allow), (give, 0, 0, refuse | EPERM)]
        return [(jump_equal, 0, len(body), numbers[name]), *body]

    made = [(load, 0, 0, 4), (jump_equal, 1, 0, ARCHITECTURES[machine]), (give, 0, 0, kill), (load, 0, 0, 0)]
    made += [(jump_at_least, 0, 1, 0x40000000), (give, 0, 0, refuse | EPERM)]  # x32: the same calls by other numbers
    made += [
        (jump_equal, 0, 1, numbers["clone3"]),
        (give, 0, 0, refuse | ENOSYS),
    ]  # the C library then falls back on clone
    for name, number in numbers.items():
        if name not in WITH_CONDITIONS:
            made += [(jump_equal, 0, 1, number), (give, 0, 0, refuse | EPERM)]
    made += only_if("clone", (0, jump_set, CLONE_THREAD))
    made += only_if("kill", (0, jump_equal, pid))
    made += only_if("tgkill", (0, jump_equal, pid))
    made += only_if("prlimit64", (4, jump_equal, 0), (5, jump_equal, 0))
    for name, values, inside, outside in (
        ("fcntl", OWNERS, refuse | EPERM, allow),
        ("ioctl", TERMINAL, allow, refuse | EPERM),
    ):
        tests = [(jump_equal, len(values) - n, 0, value) for n, value in enumerate(values)]
        body = [(load, 0, 0, 16 + 8), *tests, (give, 0, 0, outside), (give, 0, 0, inside)]
        made += [(jump_equal, 0, len(body), numbers[name]), *body]
    return [*made, (give, 0, 0, allow)]


def confine_calls(libc: Any) -> None:
    filters = filter_for(os.uname().machine, os.getpid())
    array = (Filter * len(filters))(*(Filter(*item) for item in filters))
    program = Program(len(filters), array)
    _must(libc.prctl(PR_SET_SECCOMP, 2, ctypes.addressof(program), 0, 0), "seccomp")


def enter_namespaces(libc: Any, folder: str, space: dict[str, int]) -> None:
    """No network, no shared memory of others, and as its folder a file system in memory with a size, as far as the kernel allows.

    Without them seccomp still refuses sockets, and the parent watches the folder.
    """
    user, group = os.getuid(), os.getgid()
    alone = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC
    if libc.unshare(alone | CLONE_NEWNS):
        libc.unshare(alone)
        return
    try:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    except OSError:  # files of an unknown owner cannot be made in a new file system
        return
    if not libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None):
        options = ",".join(f"{name}={value}" for name, value in space.items())
        flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
        libc.mount(b"unmask", folder.encode(), b"tmpfs", flags, f"{options},mode=700".encode())


def drop_capabilities(libc: Any) -> None:
    for number in range(CAPABILITIES):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # fails where there is none to drop
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _must(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _must(result: int, what: str) -> None:
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    payload = json.loads(sys.argv[1])
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        for name, value in payload["limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))
        if payload["confined"]:
            _must(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "pdeathsig")
            if os.getppid() != payload["parent"]:
                raise OSError("the parent is gone")
            _must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
            enter_namespaces(libc, payload["folder"], payload["space"])
            os.chdir(payload["folder"])
            confine_files(libc, payload["readable"], payload["listed"], payload["folder"])
            drop_capabilities(libc)
            confine_calls(libc)
        os.chdir(payload["folder"])
        if payload["report"] not in payload["kept"]:
            os.set_inheritable(payload["report"], False)
        os.execve(payload["python"], payload["words"], payload["environment"])
    except Exception as error:
        os.write(payload["report"], f"{payload['token']}{error}".encode())
        os._exit(1)


if __name__ == "__main__":
    main()

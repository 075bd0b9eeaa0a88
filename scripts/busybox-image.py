#!/usr/bin/env python3
"""Makes a container image that holds a static busybox, as `docker save` writes it: a tar file for `ctr images import`.

    scripts/busybox-image.py /bin/busybox weir.test/busybox:1 weir.test/pause:1 > images.tar
    PROGRAM=target/debug/weir scripts/busybox-image.py /bin/busybox weir.test/weir:1 > image.tar

Each name means the same image. By itself it sleeps. PROGRAM is added with the libraries that it loads.
"""

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile


ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


def add(archive: tarfile.TarFile, name: str, data: bytes, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.type, entry.linkname = len(data), 0o755, kind, link
    archive.addfile(entry, io.BytesIO(data))


def libraries(program: str) -> list[str]:
    told = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.split()
    return [word for word in told if word.startswith("/")]


def add_program(archive: tarfile.TarFile, program: str) -> None:
    for file, name in [(program, "bin/" + os.path.basename(program)), *((x, x.lstrip("/")) for x in libraries(program))]:
        with open(file, "rb") as content:
            add(archive, name, content.read())


def main() -> None:
    busybox, *names = sys.argv[1:]
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for directory in ["bin", "etc", "tmp"]:
            add(archive, directory, b"", tarfile.DIRTYPE)
        with open(busybox, "rb") as program:
            add(archive, "bin/busybox", program.read())
        applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
        for applet in applets:
            if applet != "busybox":
                add(archive, f"bin/{applet}", b"", tarfile.SYMTYPE, "busybox")
        if program := os.environ.get("PROGRAM"):
            add_program(archive, program)
    data = layer.getvalue()
    config = json.dumps({
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest()]},
    }).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        add(archive, "layer.tar", data)
        add(archive, "config.json", config)
        add(archive, "manifest.json", manifest)


if __name__ == "__main__":
    main()

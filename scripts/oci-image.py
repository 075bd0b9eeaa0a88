#!/usr/bin/env python3
"""Makes an OCI image that holds one static program, without a daemon: a tar file for `docker load` and `skopeo`.

    scripts/oci-image.py --architecture amd64|arm64|armhf --version 0.1.0 --program weir --licenses LICENSES --out weir.tar

The archive is an OCI image layout, and has Docker's manifest.json too. SOURCE_DATE_EPOCH is the time of all files.
"""

import argparse
import hashlib
import io
import json
import os
import tarfile
import time


def add(archive: tarfile.TarFile, name: str, data: bytes, mode: int, moment: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), mode, moment
    archive.addfile(entry, io.BytesIO(data))


def add_directory(archive: tarfile.TarFile, name: str, mode: int, moment: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, mode, moment
    archive.addfile(entry)


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def main() -> None:
    arguments = argparse.ArgumentParser()
    for option in ["--architecture", "--version", "--program", "--licenses", "--out"]:
        arguments.add_argument(option, required=True)
    args = arguments.parse_args()
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    # Debian's names and those of OCI images.
    platform = {"architecture": args.architecture, "os": "linux"}
    if args.architecture == "armhf":
        platform |= {"architecture": "arm", "variant": "v7"}
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for directory, mode in [("etc", 0o755), ("etc/weir", 0o755), ("run", 0o755), ("tmp", 0o1777), ("usr", 0o755), ("usr/bin", 0o755), ("usr/share", 0o755), ("usr/share/doc", 0o755), ("usr/share/doc/weir", 0o755), ("var", 0o755), ("var/lib", 0o755), ("var/lib/weir", 0o700)]:
            add_directory(archive, directory, mode, moment)
        # glibc finds the groups that may use the socket here.
        add(archive, "etc/group", b"root:x:0:\nweir:x:900:\n", 0o644, moment)
        add(archive, "etc/passwd", b"root:x:0:0:root:/:/usr/bin/weir\n", 0o644, moment)
        with open(args.program, "rb") as program:
            add(archive, "usr/bin/weir", program.read(), 0o755, moment)
        with open(args.licenses, "rb") as licenses:
            add(archive, "usr/share/doc/weir/LICENSES", licenses.read(), 0o644, moment)
    data = layer.getvalue()
    config = json.dumps(
        {
            **platform,
            "created": created,
            "config": {"Entrypoint": ["/usr/bin/weir"], "Cmd": ["agent"], "Env": ["PATH=/usr/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(data)]},
            "history": [{"created": created, "created_by": "scripts/oci-image.py"}],
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config), "size": len(config)},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(data), "size": len(data)}],
            "annotations": {"org.opencontainers.image.version": args.version, "org.opencontainers.image.licenses": "Apache-2.0"},
        }
    ).encode()
    tag = f"weir:{args.version}"
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest(manifest),
                "size": len(manifest),
                "platform": platform,
                "annotations": {"org.opencontainers.image.ref.name": args.version, "io.containerd.image.name": f"docker.io/library/{tag}"},
            }
        ],
    }

    def blob(of: bytes) -> str:
        return f"blobs/sha256/{hashlib.sha256(of).hexdigest()}"

    legacy = [{"Config": blob(config), "RepoTags": [tag], "Layers": [blob(data)]}]
    with tarfile.open(args.out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644, moment)
        add(archive, "index.json", json.dumps(index).encode(), 0o644, moment)
        add(archive, "manifest.json", json.dumps(legacy).encode(), 0o644, moment)
        for content in [config, manifest, data]:
            add(archive, blob(content), content, 0o644, moment)


if __name__ == "__main__":
    main()

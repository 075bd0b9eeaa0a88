#!/usr/bin/env python3
"""Writes what the programs are made of: weir.cdx.json (CycloneDX 1.5) and LICENSES, with the text of each licence.

    scripts/bill-of-materials.py --target TRIPLE --version VERSION --directory DIR --sysroot ROOT

The crates are those that `cargo metadata` resolves for the target without build and development dependencies. The C
libraries are those of this machine (ROOT is /), or those that scripts/sysroot.sh has listed in ROOT/packages.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

PROGRAMS = ["weir", "weir-fs"]
# Linked into the programs, but no crate of their own.
NATIVE = [
    ("libbpf", "LGPL-2.1 OR BSD-2-Clause", None),
    ("glibc", "LGPL-2.1-or-later", "libc6-dev"),
    ("libelf", "GPL-2.0-or-later OR LGPL-3.0-or-later", "libelf-dev"),
    ("zlib", "Zlib", "zlib1g-dev"),
]
TEXTS = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def crates(target: str) -> list[dict]:
    """The packages that the programs contain, by name."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [p["id"] for p in packages.values() if p["name"] in PROGRAMS and p["source"] is None]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            # A kind of null is an ordinary dependency.
            if dependency["pkg"] in seen or not any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                continue
            seen.add(dependency["pkg"])
            waiting.append(dependency["pkg"])
    return sorted((packages[i] for i in seen), key=lambda package: (package["name"], package["version"]))


def checksums() -> dict[tuple[str, str], str]:
    """The checksums of Cargo.lock."""
    text = pathlib.Path("Cargo.lock").read_text(encoding="utf-8")
    found = re.findall(r'name = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"', text)
    return {(name, version): checksum for name, version, checksum in found}


def native(sysroot: pathlib.Path) -> list[tuple[str, str, str]]:
    """Name, licence and version of each C library."""
    found = []
    listed = sysroot / "packages" if sysroot != pathlib.Path("/") else None
    versions = dict(line.split() for line in listed.read_text(encoding="utf-8").splitlines()) if listed else {}
    for name, licence, package in NATIVE:
        if package is None:
            lock = pathlib.Path("Cargo.lock").read_text(encoding="utf-8")
            version = re.search(r'name = "libbpf-sys"\nversion = ".*\+v(.*)"', lock)[1]
        elif listed:
            version = versions[package]
        else:
            command = ["dpkg-query", "--show", "--showformat", "${Version}", package]
            version = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found.append((name, licence, version))
    return found


def component(package: dict, sums: dict[tuple[str, str], str]) -> dict:
    name, version = package["name"], package["version"]
    made = {
        "type": "library",
        "bom-ref": f"pkg:cargo/{name}@{version}",
        "name": name,
        "version": version,
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
    }
    # Crates of weir itself are in no registry.
    if (name, version) in sums:
        made["purl"] = f"pkg:cargo/{name}@{version}"
        made["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
    return made


def main() -> None:
    arguments = argparse.ArgumentParser()
    for option in ["--target", "--version", "--directory", "--sysroot"]:
        arguments.add_argument(option, required=True)
    args = arguments.parse_args()
    packages = crates(args.target)
    unlicensed = [package["name"] for package in packages if not package["license"]]
    if unlicensed:
        sys.exit(f"bill-of-materials: no licence is named by {', '.join(unlicensed)}")
    sums = checksums()
    # The charts of the dashboard, which crates/weir-agent holds.
    libraries = [*native(pathlib.Path(args.sysroot)), ("uPlot", "MIT", "1.6.32")]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": "weir", "name": "weir", "version": args.version},
            "properties": [{"name": "rust:target", "value": args.target}],
        },
        "components": [component(package, sums) for package in packages if package["name"] not in PROGRAMS]
        + [
            {"type": "library", "bom-ref": name, "name": name, "version": version, "licenses": [{"expression": licence}]}
            for name, licence, version in libraries
        ],
    }
    directory = pathlib.Path(args.directory)
    (directory / "weir.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")

    lines = ["The programs of weir contain these parts. The texts of their licences follow.", ""]
    lines += [f"{package['name']} {package['version']}: {package['license']}" for package in packages]
    lines += [f"{name} {version}: {licence}" for name, licence, version in libraries]
    texts: dict[str, list[str]] = {}
    for package in packages:
        root = pathlib.Path(package["manifest_path"]).parent
        root = root if package["source"] else pathlib.Path.cwd()
        for entry in sorted(os.listdir(root)):
            if TEXTS.match(entry) and (root / entry).is_file():
                text = (root / entry).read_text(encoding="utf-8", errors="replace").strip()
                texts.setdefault(text, []).append(f"{package['name']} {package['version']} ({entry})")
    charts = pathlib.Path("crates/weir-agent/dashboard/LICENSE.uplot").read_text(encoding="utf-8").strip()
    texts.setdefault(charts, []).append("uPlot, the charts of the dashboard")
    for text, owners in texts.items():
        lines += ["", "=" * 78, "\n".join(owners), "-" * 78, text]
    (directory / "LICENSES").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"bill of materials: {len(packages)} crates, {len(libraries)} libraries, {len(texts)} licence texts")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Builds tests, and prints where they are: PACKAGE TEST EXECUTABLE DIRECTORY, one per line.

Arguments choose tests as those of `cargo test` do. Without any, all tests of the workspace are built.

TEST is the name of a file in `tests`, `lib` for the unit tests of a library, or `bin` for those of a program.
DIRECTORY is the package's, in which cargo runs a test. Cargo builds crates again for each other choice of packages,
as their features differ. Callers therefore build all tests that they run at once.
"""

import json
import os
import subprocess
import sys

cargo = [os.environ.get("CARGO", "cargo"), "test", *(sys.argv[1:] or ["--workspace"]), "--locked", "--no-run"]
build = subprocess.run([*cargo, "--message-format=json-render-diagnostics"], stdout=subprocess.PIPE, text=True)
if build.returncode != 0:
    sys.exit(build.returncode)
for line in build.stdout.splitlines():
    message = json.loads(line)
    if message.get("executable") is None or not message["profile"]["test"]:
        continue
    # `path+file:///DIRECTORY#NAME@VERSION`, or `...#VERSION` where the directory has the package's name.
    directory, _, name = message["package_id"].partition("://")[2].partition("#")
    package = name.partition("@")[0] if "@" in name else os.path.basename(directory)
    kind = message["target"]["kind"][0]
    test = message["target"]["name"] if kind == "test" else "bin" if kind == "bin" else "lib"
    print(package, test, message["executable"], directory)

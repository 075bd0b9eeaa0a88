"""Takes the tutorial apart: `python3 steps.py TUTORIAL DIRECTORY`.

Each block of commands becomes NN.sh. A transcript's becomes NN.CC.sh and NN.CC.expected, for each command with its output.
A block of TOML with a second word becomes the file of that name.
"""

import pathlib
import re
import sys

text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
directory = pathlib.Path(sys.argv[2])
directory.mkdir(parents=True, exist_ok=True)
blocks = re.findall(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
for number, (kind, name, body) in enumerate(blocks):
    if kind == "sh":
        (directory / f"{number:02}.sh").write_text(body, encoding="utf-8")
    elif kind == "console":
        parts = re.split(r"^\$ (.*)\n", body, flags=re.MULTILINE)
        if parts[0]:
            sys.exit(f"block {number} does not begin with a command: {parts[0]!r}")
        for i in range(1, len(parts), 2):
            stem = directory / f"{number:02}.{i // 2:02}"
            stem.with_name(stem.name + ".sh").write_text(parts[i] + "\n", encoding="utf-8")
            stem.with_name(stem.name + ".expected").write_text(parts[i + 1], encoding="utf-8")
    elif kind == "toml" and name:
        (directory / f"{name}.toml").write_text(body, encoding="utf-8")
print(f"{len(blocks)} blocks")

#!/usr/bin/env python3
"""Reads answers of `weir ps --json`, one after the other, and prints what the classes of containers were.

    weir ps --json | scripts/classes-seen.py [NAME]

A line is `SOURCE:NAME HANDLE`, once for all answers that show it. weir's own classes and groups are left out. With
NAME only classes of that name, or with an interface of a class of that name, are shown.
"""

import json
import sys


def answers(text: str):
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        try:
            answer, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            # The last one was cut.
            return
        yield answer
        at = end + len(text[end:]) - len(text[end:].lstrip())


def main() -> None:
    name = "".join(sys.argv[1:]) or None
    seen: dict[str, None] = {}
    for classes in answers(sys.stdin.read().lstrip()):
        own = {i for c in classes if c["name"] == name for i in c["interfaces"]}
        for c in classes:
            is_shown = name is None or c["name"] == name or own & set(c["interfaces"])
            if c["source"] not in ("weir", "group") and is_shown:
                seen[f"{c['source']}:{c['name']} {c['handle']}"] = None
    print("\n".join(seen))


if __name__ == "__main__":
    main()

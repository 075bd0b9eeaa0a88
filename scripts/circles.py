#!/usr/bin/env python3
"""Fails if files of a crate import each other in a circle, and names them.

An import is a `use` of a module of the same crate. A file may import what its own parents define: those name it as
their module, so that each such pair would be a circle.
"""

import pathlib
import re
import sys

USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+((?:crate|super|self)\b[^;]*);", re.M)


def paths(tree):
    """The paths of `a::{b, c::{d, e}}`, each as a list of names."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        return [[name.strip() for name in tree.split(" as ")[0].split("::") if name.strip()]]
    head = [name.strip() for name in tree[:brace].split("::") if name.strip()]
    found, depth, begin = [], 0, brace + 1
    for at in range(brace, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[at], 0)
        if (depth == 1 and tree[at] == ",") or (depth == 0 and tree[at] == "}"):
            if tree[begin:at].strip():
                found += [head + path for path in paths(tree[begin:at])]
            begin = at + 1
            if depth == 0:
                break
    return found


def module(source, file):
    """The path of a file's module, from the crate's root."""
    parts = list(file.relative_to(source).with_suffix("").parts)
    return tuple(parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts)


def imports(source):
    """Each module of a crate, with those that it imports."""
    files = {module(source, file): file for file in source.rglob("*.rs") if "tests" not in file.stem}
    edges = {}
    for own, file in files.items():
        text = re.sub(r"//[^\n]*", "", file.read_text())
        # Tests may import what they test.
        text = text.split("#[cfg(test)]\nmod ")[0]
        edges[own] = set()
        for path in (path for tree in USE.findall(text) for path in paths(tree)):
            at = own
            for name in path:
                at = {"crate": (), "super": at[:-1], "self": at}.get(name, at + (name,))
            while at and at not in files:
                at = at[:-1]
            if at != own and own[: len(at)] != at:
                edges[own].add(at)
    return files, edges


def circles(edges):
    """Groups of modules that reach each other (Kosaraju)."""
    order, seen = [], set()
    for start in edges:
        stack = [(start, iter(sorted(edges[start])))] if start not in seen else []
        seen.add(start)
        while stack:
            one, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                order.append(one)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(sorted(edges[following]))))
    back = {one: [] for one in edges}
    for one, others in edges.items():
        for other in others:
            back[other].append(one)
    found, taken = [], set()
    for start in reversed(order):
        group, stack = [], [start]
        while stack:
            one = stack.pop()
            if one not in taken:
                taken.add(one)
                group.append(one)
                stack += back[one]
        if len(group) > 1:
            found.append(sorted(group))
    return found


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    sources = [path.parent / "src" for path in root.rglob("Cargo.toml") if "target" not in path.parts]
    count = 0
    for source in filter(pathlib.Path.is_dir, sources):
        files, edges = imports(source)
        for group in circles(edges):
            count += 1
            print("these files import each other in a circle:")
            for one in group:
                into = ", ".join("::".join(other) for other in sorted(edges[one]) if other in group)
                print(f"  {files[one].relative_to(root)} imports {into}")
    return 1 if count else 0


sys.exit(main())

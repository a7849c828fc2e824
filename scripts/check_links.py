#!/usr/bin/env python3
"""Checks that what our documents and sources point to exists: relative links and #anchors of every Markdown file (anchors by GitHub's rules),
and every path to a document that a source, script or configuration names or prints.

usage: check_links.py [--self-test]
Prints file:line and what is missing for each finding; exit code 1 when there is one.
"""

import collections
import functools
import os
import pathlib
import re
import sys
import tempfile
import urllib.parse

SKIPPED_FOLDERS = {"build", "runs", "carry", "__pycache__"}  # and those that begin with a dot, but for .ci
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".in", ".py", ".cmake", ".toml", ".txt", ".html", ".js", ".css", ".json", ""}

FENCE = re.compile(r"^\s{0,3}(```+|~~~+)")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
LINK = re.compile(r"\]\(\s*<?([^()\s>]*(?:\([^()\s]*\)[^()\s>]*)*)>?(?:\s+[\"'(][^\n]*?)?\s*\)")  # [text](target "title"), images too
DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?([^\s>]+)")
HTML_TARGET = re.compile(r"<[a-z][^>]*?\b(?:href|src)\s*=\s*[\"']([^\"']*)[\"']", re.IGNORECASE)
HTML_ANCHOR = re.compile(r"<[a-z][^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)
HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:|^//")
# A path to a document as sources write it: docs/… with an ending, or a document at the root.
DOCUMENT = re.compile(r"(?<![\w/.-])(docs/[\w./-]*\w|(?:README|CONTRIBUTING|CHANGELOG)\.md)(#[\w-]+)?")


def slug(heading):
    """The anchor that GitHub gives a heading, but for the number behind a repeated one."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # links keep their text
    text = re.sub(r"<[^>]+>", "", text)
    spans = CODE_SPAN.split(text)
    # Of plain text the marks of emphasis go, of code nothing: split gives text, backticks, code, text, …
    text = "".join(re.sub(r"\*|(?<!\w)_|_(?!\w)", "", part) if i % 3 == 0 else part if i % 3 == 2 else "" for i, part in enumerate(spans))
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def lines_of(path):
    """Yields (number, line) of what is no fenced code."""
    fence = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None:
            if mark and mark[1].startswith(fence) and not line.strip().strip("`~"):
                fence = None
        else:
            yield number, line


@functools.lru_cache(maxsize=None)
def anchors_of(path):
    """All anchors of a Markdown file."""
    seen = collections.Counter()
    anchors = set()
    for _, line in lines_of(path):
        anchors.update(HTML_ANCHOR.findall(line))
        heading = HEADING.match(line)
        if heading:
            name = slug(heading[1])
            anchors.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return anchors


def complaint(root, base, target):
    """What is wrong with a target, seen from a folder; None where nothing is."""
    if not target:
        return "a link without a target"
    if SCHEME.match(target):
        return None
    name, _, anchor = target.partition("#")
    name, anchor = urllib.parse.unquote(name), urllib.parse.unquote(anchor)
    path = pathlib.Path(os.path.normpath(root / name.lstrip("/") if name.startswith("/") else base / name))
    if root not in (path, *path.parents):
        return f"{target} leads out of the repository"
    if not path.exists():
        return f"{target} does not exist"
    if anchor and path.suffix == ".md" and anchor not in anchors_of(path):
        return f"{target}: there is no heading #{anchor} in {path.relative_to(root)}"
    return None


def markdown_findings(root, path):
    for number, line in lines_of(path):
        text = CODE_SPAN.sub(lambda span: "`" * len(span[0]), line)
        targets = LINK.findall(text) + HTML_TARGET.findall(text)
        definition = DEFINITION.match(text)
        for target in targets + ([definition[1]] if definition else []):
            here = path if target.startswith("#") else None
            problem = complaint(root, path.parent, f"{here.name}{target}" if here else target)
            if problem:
                yield number, problem


def source_findings(root, path):
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), start=1):
        for name, anchor in DOCUMENT.findall(line):
            problem = complaint(root, root, name + anchor)
            if problem:
                yield number, problem


def files_below(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and (name == ".ci" or not name.startswith(".")))
        yield from (pathlib.Path(folder, name) for name in sorted(names))


def findings(root):
    """Yields (path, line, problem), and counts the files in `findings.files`."""
    findings.files = 0
    for path in files_below(root):
        if path == pathlib.Path(__file__).resolve():
            continue  # its broken examples are meant
        if path.suffix == ".md":
            found = markdown_findings(root, path)
        elif path.suffix in SOURCE_SUFFIXES and not path.is_symlink():
            found = source_findings(root, path)
        else:
            continue
        findings.files += 1
        for number, problem in found:
            yield path, number, problem


def check(root):
    """Prints the findings below root and returns how many there are."""
    count = 0
    for path, number, problem in findings(root):
        print(f"{path.relative_to(root)}:{number}: {problem}")
        count += 1
    print(f"links: {findings.files} files, {count} findings")
    return count


def self_test():
    """Each broken line must be found, each good one must pass."""
    page = "# One title\n\n## What `a_b` does, and *why*?\n\n## Twice\n\n## Twice\n\n```\n## no heading\n```\n\n<a id=\"mark\"></a>\n"
    bad = {
        "missing.md": "[a](docs/nowhere.md)",
        "anchor.md": "[a](docs/page.md#nothing)",
        "own_anchor.md": "[a](#nothing)",
        "fenced_heading.md": "[a](docs/page.md#no-heading)",
        "third.md": "[a](docs/page.md#twice-2)",
        "image.md": "![a](docs/none.png)",
        "html.md": '<img src="docs/none.svg">',
        "definition.md": "[a]: docs/none.md",
        "outside.md": "[a](../elsewhere.md)",
        "empty.md": "[a]()",
        "printed.cpp": 'std::cout << "see docs/old.md";',
        "printed_anchor.cpp": "// docs/page.md#gone",
        "scripts/help": "# docs/gone.md has the commands",
        "root.toml": "# CONTRIBUTING.md says how",
    }
    good = {
        "links.md": "[a](docs/page.md) [b](docs/page.md#one-title) ![c](docs/page.md) <a href='docs/page.md'>d</a> [e](docs \"folder\")",
        "slugs.md": "[a](docs/page.md#what-a_b-does-and-why) [b](docs/page.md#twice) [c](docs/page.md#twice-1) [d](docs/page.md#mark)",
        "own.md": "## Here\n[a](#here) [`code`](docs/page.md) [web](https://example.org/x#y) [mail](mailto:a@example.org)",
        "code.md": "`[a](docs/nowhere.md)`\n```\n[a](docs/nowhere.md)\n```",
        "good.cpp": '// docs/page.md#one-title and "docs/page.md."; docs/ alone; other/docs/none.md',
    }
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in ({"docs/page.md": page} | bad | good).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        found = collections.Counter(path.relative_to(root).as_posix() for path, _, _ in findings(root))
        for name in ["docs/page.md", *bad, *good]:
            if found[name] != (1 if name in bad else 0):
                print(f"self-test: {name} gave {found[name]} findings")
                failures += 1
    print(f"links self-test: {len(bad)} broken and {len(good)} good files, {failures} failures")
    return failures


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--self-test"]):
        sys.exit(__doc__)
    sys.exit(1 if (self_test() if sys.argv[1:] else check(pathlib.Path(__file__).resolve().parent.parent)) else 0)

# SPDX-License-Identifier: Apache-2.0
"""C++ text for the checks of this folder: files, comments and strings taken out, includes."""
import re
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')

_TOKEN = re.compile(
    r'//[^\n]*'
    r'|/\*.*?\*/'
    r'|R"([^()\s\\]{0,16})\(.*?\)\1"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'",
    re.DOTALL)


def _blank(match):
    return re.sub(r'[^\n]', ' ', match.group(0))


def code_only(text):
    """`text` with comments, strings and characters as blanks; every line keeps its number."""
    return _TOKEN.sub(_blank, text)


def without_preprocessor(code):
    """`code` with # lines and their continuations as blanks."""
    lines, inside = [], False
    for line in code.split('\n'):
        directive = inside or line.lstrip().startswith('#')
        inside = directive and line.rstrip().endswith('\\')
        lines.append('' if directive else line)
    return '\n'.join(lines)


def includes(text):
    """(line number, '<' or '"', path) of every include that is not in a comment."""
    found = []
    # Comments alone are blanked here: the path of an include is itself a string.
    bare = re.sub(r'/\*.*?\*/', _blank, text, flags=re.DOTALL)
    for number, line in enumerate(bare.split('\n'), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match.group(1), match.group(2)))
    return found


def sources(root, folders, suffixes=('.h', '.cc')):
    """Files below root/folder, in a fixed order."""
    found = []
    for folder in folders:
        base = Path(root) / folder
        found += [p for p in base.rglob('*') if p.suffix in suffixes and p.is_file()]
    return sorted(found)


def is_test(path):
    """Tests and what only tests include: x_test.cc, testing.h, x_test_support.h, testing/."""
    words = path.stem.split('_')
    return 'test' in words or words[-1] == 'testing' or bool({'tests', 'testing'} & set(path.parts))

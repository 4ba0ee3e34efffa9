"""The package as a house: each name stands for one module, no file is too long to read, and imports run one way."""

import re
from collections import Counter
from pathlib import Path

import grimp

import rftui

PACKAGE = Path(rftui.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 300


def test_no_module_name_occurs_twice():
    names = Counter(file.stem if file.stem != "__init__" else file.parent.name for file in FILES)
    del names["__main__"]
    assert [name for name, count in names.items() if count > 1] == []


def test_no_file_is_too_long():
    lines = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in FILES}
    assert {file: count for file, count in lines.items() if count > LONGEST} == {}


def test_there_is_no_import_circle():
    """Imports for types count, too."""
    graph = grimp.build_graph("rftui", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    before = None
    while before != imports:  # what imports nothing, or is imported by nothing, of what is left is in no circle
        before, used = imports, set().union(*imports.values())
        imports = {module: found & imports.keys() for module, found in imports.items() if found and module in used}
    assert imports == {}


def test_the_map_names_every_module_and_no_other():
    there = {str(file.relative_to(PACKAGE).with_suffix("")) for file in FILES if file.read_text().strip()}
    assert set(re.findall(r"^\| `([\w/]+)` \|", (PACKAGE / "README.md").read_text(), re.MULTILINE)) == there

"""Totals of the whole repository: docs, settings, docstrings, lines, names, findings, exceptions.

Reads files under a root, which may be another checkout. Each row is one figure.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.house import ceilings, counting, names, passages, prose
from tests.house.trees import Module, Tree

Totals = dict[str, int]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def totals(tree: Tree) -> Totals:
    """Return every total of a tree's root by name."""
    tests = list(test_modules(tree.root))
    return {
        **of_docs(tree.root),
        "settings": settings(tree.root),
        **of_code("product", tree.product),
        **of_code("tests", tests),
        **of_names("product", names.counts(tree.product)),
        **of_names("tests", names.counts(tests)),
        **of_findings(tree.root),
        **of_exceptions(tree.root / "tests" / "house"),
    }


def of_docs(root: Path) -> Totals:
    """Return words and pages: README.md, CONTRIBUTING.md and all below docs/."""
    texts = {page: page.read_text() for page in passages.pages(root)}
    words = {page: len(text.split()) for page, text in texts.items()}
    made = [page for page, text in texts.items() if passages.GENERATED.search(text[:900])]
    return {
        "words of docs": sum(words.values()),
        "  of them in generated pages": sum(words[page] for page in made),
        "pages": len(texts),
        "decisions": sum("decisions" in page.parts for page in texts),
    }


def settings(root: Path) -> int:
    """Return how many settings conf/default.toml has."""

    def leaves(table: Mapping[str, object]) -> int:
        return sum(leaves(value) if isinstance(value, dict) else 1 for value in table.values())

    return leaves(tomllib.loads((root / "conf" / "default.toml").read_text()))


def test_modules(root: Path) -> Iterator[Module]:
    """Yield the parsed files below tests/."""
    for file in sorted((root / "tests").rglob("*.py")):
        text = file.read_text()
        yield Module(file.stem, file.relative_to(root).as_posix(), text, ast.parse(text))


def of_code(name: str, modules: list[Module]) -> Totals:
    """Return lines without docstrings, comments and blanks; docstrings and their lines."""
    texts = [
        text
        for module in modules
        for node in module.nodes
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))
    ]
    return {
        f"lines of {name}": sum(map(counting.code_lines, modules)),
        f"docstrings of {name}": len(texts),
        f"lines of docstrings of {name}": sum(text.count("\n") + 1 for text in texts),
    }


def of_names(name: str, counts: ceilings.Counts) -> Totals:
    """Return the bindings of the seven names, each and together, and functions like them."""
    seven = Counter[str]()
    for figures in counts.values():
        seven.update(figures)
    each = {f"  {word}": seven[word] for word in names.SEVEN} if name == "product" else {}
    return {
        f"bindings of the seven names, {name}": sum(seven[word] for word in names.SEVEN),
        **each,
        f"functions named by a participle, {name}": seven[names.FUNCTIONS],
    }


def of_findings(root: Path) -> Totals:
    """Return the findings of the prose checker, together and by rule."""
    rules = Counter(finding.rule for finding in prose.check(root))
    by_rule = {f"  {rule}": n for rule, n in sorted(rules.items())}
    return {"findings of the prose checker": rules.total(), **by_rule}


def of_exceptions(folder: Path) -> Totals:
    """Return the entries of each list of exceptions, and the sums of the files of ceilings."""
    found: Totals = {}
    for node in ast.parse((folder / "exceptions.py").read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            found[f"exceptions: {ast.unparse(node.target)}"] = len(node.value.keys)
    for file in ("ceilings.toml", "prose_exceptions.toml"):
        figures = [n for rules in ceilings.read(folder / file).values() for n in rules.values()]
        found[f"exceptions: {file}, entries"] = len(figures)
    return found


def table(now: Totals, before: Totals) -> str:
    """Return a line for each total: before, now and the change."""
    lines = [f"{'':44}{'before':>9}{'now':>9}{'change':>9}"]
    for name in dict.fromkeys((*now, *before)):
        was, figure = before.get(name), now.get(name, 0)
        change = "" if was is None else f"{figure - was:+d}"
        lines.append(f"{name:44}{'' if was is None else was:>9}{figure:>9}{change:>9}".rstrip())
    return "\n".join(lines)

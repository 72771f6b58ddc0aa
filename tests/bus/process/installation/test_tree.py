from __future__ import annotations

from pathlib import Path

from bus.process.installation.tree import installed_code, running_code, tree_of


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_tree_is_told_by_its_contents_not_by_when_or_where_it_was_installed(
    tmp_path: Path,
) -> None:
    for root in (tmp_path / "a", tmp_path / "b"):
        write(root, "bus/x.py", "x = 1\n")
        write(root, "conf/defaults.toml", "a = 1\n")
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")


def test_what_changes_moves_comes_or_goes_makes_another_tree(tmp_path: Path) -> None:
    path = write(tmp_path, "bus/x.py", "x = 1\n")
    seen = [tree_of(tmp_path)]
    path.write_text("x = 2\n")
    seen.append(tree_of(tmp_path))
    write(tmp_path, "worker/y.py", "")
    seen.append(tree_of(tmp_path))
    path.rename(tmp_path / "bus" / "z.py")
    seen.append(tree_of(tmp_path))
    assert len(set(seen)) == 4
    write(tmp_path, "bus/__pycache__/z.pyc", "compiled")
    write(tmp_path, "tests/t.py", "not ours")
    assert tree_of(tmp_path) == seen[-1]


def test_a_process_runs_what_was_installed_when_it_started() -> None:
    assert running_code() == installed_code()
    version, _, tree = running_code().partition("/")
    assert version and len(tree) == 8

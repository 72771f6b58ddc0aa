"""Every law, broken on purpose in a tree that is made up, and seen to fail."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.house import (
    ceilings,
    circles,
    counts,
    distributions,
    laws,
    names,
    pages,
    private_names,
    purity,
    walk,
    walked,
)
from tests.house.judging import Breach, Excused, faults
from tests.house.loads import importing, loaded_by, pure_rooms
from tests.house.trees import Tree


def house(root: Path, **files: str) -> Tree:
    """Write files, `bus__wire__ids` for bus/wire/ids.py and `bus__wire_door` for the `__init__.py`
    of bus/wire, beside those that are there; return the tree of all."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        if name.endswith("_door"):
            path = root / name.removesuffix("_door").replace("__", "/") / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


def subjects(breaches: list[Breach]) -> list[str]:
    return [breach.subject for breach in breaches]


LAZY = '''"""A room."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from bus.wire.ids import NodeId
__all__ = ["NodeId"]
_HOMES = {"NodeId": "bus.wire.ids"}
def __getattr__(name): ...
'''


def test_a_package_of_seven_files_breaks_the_floor_and_its_own_init_does_not_count(
    tmp_path: Path,
) -> None:
    six = {f"bus__f{i}": "" for i in range(6)}
    assert laws.floors(house(tmp_path, bus_door="", **six)) == []
    assert subjects(laws.floors(house(tmp_path, bus__f6=""))) == ["bus files"]


def test_a_room_of_thirteen_files_and_a_package_of_thirteen_rooms_break_the_floor(
    tmp_path: Path,
) -> None:
    twelve = {f"bus__wire__f{i}": "" for i in range(12)}
    rooms = {f"bus__r{i}__a": "" for i in range(11)}
    assert laws.floors(house(tmp_path, **twelve, **rooms)) == []
    more = house(tmp_path, bus__wire__f12="", bus__r11__a="")
    assert subjects(laws.floors(more)) == ["bus folders", "bus.wire files"]


def test_a_room_of_nine_rooms_breaks_the_floor(tmp_path: Path) -> None:
    rooms = {f"bus__wire__r{i}__a": "" for i in range(8)}
    assert laws.floors(house(tmp_path, bus__wire_door="", **rooms)) == []
    assert subjects(laws.floors(house(tmp_path, bus__wire__r8__a=""))) == ["bus.wire folders"]


@pytest.mark.parametrize("door", ["from bus.wire.ids import NodeId\n__all__ = ['NodeId']\n", LAZY])
def test_who_goes_past_a_door_is_seen_and_who_enters_by_it_is_not(
    tmp_path: Path, door: str
) -> None:
    ids = "class NodeId: ...\nclass Inner: ...\n"
    polite = "from bus.wire import NodeId\nimport bus.wire\n"
    tree = house(tmp_path, bus__wire_door=door, bus__wire__ids=ids, master__a=polite)
    assert laws.doors(tree, ["bus.wire"]) == []
    for line in (
        "from bus.wire.ids import NodeId\n",
        "from bus.wire import ids\n",
        "from bus.wire import Inner\n",
        "import bus.wire.ids\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bus.wire.ids import Inner\n",
        "def late():\n    from bus.wire.ids import Inner\n",
        "from bus.wire import ids as inner\n",
    ):
        tree = house(tmp_path, master__a=line)
        assert len(laws.doors(tree, ["bus.wire"])) == 1, line


@pytest.mark.parametrize(
    ("door", "flaw"),
    [
        ('"""A room."""\n', "names nothing"),
        ("__all__ = ['NodeId']\n", "does not have"),
        (LAZY.replace("def __getattr__(name): ...\n", ""), "no __getattr__"),
        (LAZY.replace('"bus.wire.ids"}', '"bus.wire.names"}'), "says otherwise"),
        (LAZY.replace('_HOMES = {"NodeId": "bus.wire.ids"}\n', ""), "no _HOMES"),
    ],
)
def test_a_door_that_does_not_hold_what_it_names_is_seen(
    tmp_path: Path, door: str, flaw: str
) -> None:
    tree = house(tmp_path, bus__wire_door=door, bus__wire__ids="class NodeId: ...\n")
    [breach] = laws.doors(tree, ["bus.wire"])
    assert flaw in breach.what


def test_a_door_may_have_a_module_of_its_room(tmp_path: Path) -> None:
    door = "from bus.wire import ids\n__all__ = ['ids']\n"
    line = "from bus.wire import ids\n"
    tree = house(tmp_path, bus__wire_door=door, bus__wire__ids="", master__a=line)
    assert laws.doors(tree, ["bus.wire"]) == []


@pytest.mark.parametrize(
    ("line", "is_polite"),
    [
        ("from bus.wire.ids import NodeId\n", True),
        ("from bus.wire.ids import _secret\n", False),
        ("from bus.wire.pool import Lease\n", True),
        ("from bus.wire import pool\n", True),
        ("from bus.wire.names import Name\n", False),
        ("from bus.wire.shut import Inner\n", False),
    ],
)
def test_a_door_may_name_modules_and_rooms_that_have_doors(
    tmp_path: Path, line: str, is_polite: bool
) -> None:
    tree = house(
        tmp_path,
        bus__wire_door='__all__ = ["ids", "pool", "shut"]\n',
        bus__wire__ids="class NodeId: ...\n_secret = 1\n",
        bus__wire__names="class Name: ...\n",
        bus__wire__pool_door="from bus.wire.pool.leases import Lease\n__all__ = ['Lease']\n",
        bus__wire__pool__leases="class Lease: ...\n",
        bus__wire__shut_door="from bus.wire.shut.a import Inner\n",
        bus__wire__shut__a="class Inner: ...\n",
        master__a=line,
    )
    assert (laws.doors(tree, ["bus.wire", "bus.wire.pool"]) == []) == is_polite
    past = house(tmp_path, master__a="from bus.wire.pool.leases import Lease\n")
    assert subjects(laws.doors(past, ["bus.wire", "bus.wire.pool"])) == ["bus.wire.pool"]


def test_a_room_that_is_named_for_a_door_and_is_not_there_is_seen(tmp_path: Path) -> None:
    assert subjects(laws.doors(house(tmp_path, bus__a=""), ["bus.wire"])) == ["bus.wire"]


def test_a_new_room_without_a_door_is_seen_until_it_has_one(tmp_path: Path) -> None:
    tree = house(tmp_path, bus__wire_door="", bus__wire__ids="class NodeId: ...\n")
    assert subjects(laws.without_a_door(tree, [])) == ["bus.wire"]
    assert laws.without_a_door(house(tmp_path, bus__wire_door=LAZY), []) == []
    assert laws.without_a_door(tree, ["bus.wire"]) == []


def test_a_class_name_in_two_modules_is_seen_but_not_of_two_dialects(tmp_path: Path) -> None:
    one = "class Seat: ...\nclass _Own: ...\n"
    tree = house(
        tmp_path,
        gateway__dialects__openai__body=one,
        gateway__dialects__ollama__body=one,
        bus__a="class Port: ...\nclass _Own: ...\n",
    )
    assert laws.names(tree) == []
    assert subjects(laws.names(house(tmp_path, conf__a="class Port: ...\n"))) == ["Port"]
    assert subjects(laws.names(house(tmp_path, master__a=one))) == ["Port", "Seat"]
    twice = house(tmp_path / "other", gateway__dialects__a=one, gateway__dialects__b=one)
    assert subjects(laws.names(twice)) == ["Seat"]


def test_a_class_of_twenty_one_methods_is_seen_properties_counted(tmp_path: Path) -> None:
    twenty = "".join(f"    def m{i}(self): ...\n" for i in range(20))
    tree = house(tmp_path, bus__a=f"class Wide:\n{twenty}")
    assert laws.wide_classes(tree) == []
    tree = house(tmp_path, bus__a=f"class Wide:\n{twenty}    @property\n    def p(self): ...\n")
    assert [breach.size for breach in laws.wide_classes(tree)] == [21]


def test_a_constructor_of_nine_parameters_is_seen_and_nine_fields_are_not(tmp_path: Path) -> None:
    nine = ", ".join("abcdefghi")
    fields = "".join(f"    {name}: int\n" for name in "abcdefghi")
    eight = f"class Wide:\n    def __init__(self, {nine[:-3]}): ...\n"
    record = f"@dataclass\nclass Record:\n{fields}"
    assert laws.wide_constructors(house(tmp_path, bus__a=eight, bus__b=record)) == []
    wide = f"class Wide:\n    def __init__(self, *, {nine}): ...\n"
    assert subjects(laws.wide_constructors(house(tmp_path, bus__a=wide))) == ["Wide"]


BAG = "@dataclass(frozen=True)\nclass Bag:\n" + "".join(f"    {n}: int\n" for n in "abcdefgh")
TAKER = "class Wide:\n    def __init__(self, bag: Bag, name: str): ...\n"


@pytest.mark.parametrize(
    ("use", "counts"),
    [
        ("w = Wide(Bag(1, 2), 'x')\n", True),
        ("w = Wide(bag=Bag(1, 2), name='x')\n", True),
        ("bag = Bag(1, 2)\nw = Wide(bag, 'x')\n", True),
        ("bag = Bag(1, 2)\nw = Wide(bag, 'x')\nprint(bag)\n", False),
        ("w = Wide(Bag(1, 2), 'x')\nother = Bag(3, 4)\n", False),
        ("w = Wide(Bag(1, 2), 'x')\ndef other(bag: Bag): ...\n", False),
        ("", False),
    ],
)
def test_a_bag_made_to_pass_the_limit_counts_as_its_fields(
    tmp_path: Path, use: str, counts: bool
) -> None:
    tree = house(tmp_path, bus__a=BAG + TAKER, bus__b=use)
    assert [breach.size for breach in laws.wide_constructors(tree)] == ([9] if counts else [])


@pytest.mark.parametrize(
    "line",
    [
        "import time\n",
        "from os import path\n",
        "x = datetime.now()\n",
        "y = open('f')\n",
        "class A:\n    def b(self):\n        return self.clock.now()\n",
        "x = reactor.now()\n",
        "import sqlite3\n",
        "from http.client import HTTPConnection\n",
        "from urllib import request\n",
        "print('a line')\n",
        "x = path.read_text()\n",
        "x = np.random.shuffle(rows)\n",
        "x = np.random.default_rng(1)\n",
        "from bus.shell import Reactor\n",
        "import bus.shell\n",
        "from bus.door import Reactor\n",
        "def late():\n    from bus.shell import Reactor\n",
    ],
)
def test_a_module_that_reads_or_runs_what_reads_is_seen(tmp_path: Path, line: str) -> None:
    shell = '"""Talks to clocks."""\nimport time\nclass Reactor: ...\n'
    door = "from bus.shell import Reactor\n__all__ = ['Reactor']\n"
    tree = house(tmp_path, bus__shell=shell, bus__door_door=door, bus__a=line)
    assert "bus.a" in subjects(purity.purity(tree))


@pytest.mark.parametrize(
    "text",
    [
        "from bus.wire.ids import NodeId\nx = journal.open()\n",
        "from urllib.parse import quote\nfrom http import HTTPStatus\nx = row.print()\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bus.shell import Reactor\n",
        '"""Talks to the disk."""\nimport os\nfrom bus.shell import Reactor\n',
        "from bus.door import NodeId\n",
    ],
)
def test_a_pure_module_a_type_alone_and_a_shell_are_left_alone(tmp_path: Path, text: str) -> None:
    shell = '"""Talks to clocks."""\nimport time\nclass Reactor: ...\n'
    door = "from bus.wire.ids import NodeId\n__all__ = ['NodeId']\n"
    tree = house(tmp_path, bus__shell=shell, bus__door_door=door, bus__ids="", bus__a=text)
    assert purity.purity(tree) == []


def test_a_module_without_a_law_and_one_of_401_lines_are_seen(tmp_path: Path) -> None:
    good = '"""A law."""\n'
    tree = house(tmp_path, bus__a=good + "\n" * 399)
    assert purity.openings(tree) == []
    tree = house(tmp_path, bus__a=good + "\n" * 400, bus__b="x = 1\n")
    assert subjects(purity.openings(tree)) == ["bus.a", "bus.b"]


@pytest.mark.parametrize(
    ("said", "subject"),
    [
        ("in `bus/gone.py`", "docs/a.md: bus/gone.py"),
        ("in `bus/gone/`", "docs/a.md: bus/gone/"),
        ("in `bus/a.py/`", "docs/a.md: bus/a.py/"),
        ("in `bus/gone.py:12`", "docs/a.md: bus/gone.py"),
        ("see docs/gone.md.", "docs/a.md: docs/gone.md"),
        ("see [it](gone.md#here)", "docs/a.md: gone.md"),
        ("its `gone_*.py`", "docs/a.md: **/gone_*.py"),
        ("all of `bus/g*.py`", "docs/a.md: bus/g*.py"),
    ],
)
def test_a_page_that_names_what_does_not_exist_is_seen(
    tmp_path: Path, said: str, subject: str
) -> None:
    house(tmp_path, bus__a="")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "a.md"
    page.write_text(
        "`bus/a.py`, `bus/`, `a.py`, `*.py`, [me](a.md), [web](https://x/y), /docs/b.md"
    )
    assert pages.missing_paths(tmp_path) == []
    page.write_text(said)
    assert subjects(pages.missing_paths(tmp_path)) == [subject]


def test_a_word_with_two_rows_is_seen_also_beside_another() -> None:
    head = "| word | meaning |\n|---|---|\n"
    assert pages.words_twice(head + "| node | a |\n| pipeline, stage | b |\n") == []
    assert subjects(pages.words_twice(head + "| stage | a |\n| pipeline, stage | b |\n")) == [
        "stage"
    ]


@pytest.mark.parametrize(
    ("contract", "holds"),
    [
        ("type = layers\ncontainers = bus\nexhaustive = True\nlayers =\n    wire\n", True),
        ("type = layers\ncontainers = bus\nlayers =\n    wire\n", False),
        ("type = layers\ncontainers = conf\nexhaustive = True\nlayers =\n    wire\n", False),
        ("type = independence\nmodules = bus\n", False),
    ],
)
def test_a_package_with_rooms_and_no_exhaustive_layers_is_seen(
    tmp_path: Path, contract: str, holds: bool
) -> None:
    tree = house(tmp_path, bus__wire__ids="", conf__a="")
    text = f"[importlinter]\nroot_packages =\n    bus\n\n[importlinter:contract:x]\n{contract}"
    assert subjects(pages.without_layers(tree, text)) == ([] if holds else ["bus"])


def test_a_library_that_a_module_loads_is_seen_and_a_broken_module_says_why() -> None:
    assert loaded_by("import json\n") == []
    assert loaded_by("import msgpack\n") == ["msgpack"]
    with pytest.raises(RuntimeError, match="no_such_module"):
        loaded_by(importing(["no_such_module"]))


def test_a_room_is_all_pure_until_one_of_its_modules_is_a_shell(tmp_path: Path) -> None:
    tree = house(tmp_path, bus__wire__ids="", bus__wire__codec='"""Bytes."""\n')
    assert pure_rooms(tree) == {"bus.wire": ["bus.wire.codec", "bus.wire.ids"]}
    assert pure_rooms(house(tmp_path, bus__wire__codec='"""Talks to a disk."""\n')) == {}


def test_an_excuse_holds_its_figure_and_fails_when_it_is_used_up() -> None:
    wide = [Breach("Wide", "21 methods", 21)]
    assert faults(wide, {"Wide": Excused("for now", 21)}) == []
    assert faults(wide, {}) == ["Wide: 21 methods"]
    assert faults(wide, {"Wide": Excused("for now", 20)}) == ["Wide: 21 methods: grown beyond 20"]
    [used_up] = faults([], {"Wide": Excused("for now", 21)})
    assert "remove it" in used_up
    assert faults(wide, {"Wide": Excused("", 21)}) == ["Wide: excused without a reason"]


def test_a_missing_docstring_a_question_and_a_riddle_are_seen(tmp_path: Path) -> None:
    plain = '"""A law."""\ndef ask(): ...\nclass _Own: ...\ndef ask_again():\n    """Ask."""\n'
    door = "from bus.wire.ids import render\n__all__ = ['render']\n"
    ids = 'def render():\n    """Return text."""\ndef inner(): ...\n'
    tree = house(tmp_path, bus__a=plain, bus__wire_door=door, bus__wire__ids=ids)
    assert purity.docstrings(tree) == []
    asks = 'def _ask():\n    """Whether it is so."""\n'
    riddles = '"""A law that nobody keeps."""\nclass Seat:\n    """Whoever sits."""\n'
    seam = "class Clock(Protocol):\n    def now(self): ...\n"
    more = house(
        tmp_path, bus__b=asks, bus__c=riddles, bus__d=seam, bus__wire__ids="def render(): ...\n"
    )
    assert [breach.what for breach in purity.docstrings(more)] == [
        "is at a door and has no docstring",
        "is at a door and has no docstring",
        "begins with a question: Whether it is so.",
        "says nobody",
        "says Whoever",
    ]


def test_a_circle_is_seen_also_through_a_door_and_under_type_checking(tmp_path: Path) -> None:
    door = "from bus.wire.ids import NodeId\n__all__ = ['NodeId']\n"
    tree = house(
        tmp_path,
        bus__wire_door=door,
        bus__wire__ids="",
        bus__a="from bus.wire import NodeId\nimport bus.b\n",
        bus__b="import bus.wire.ids\n",
    )
    assert circles.found(tree) == []
    back = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bus.a import A\n"
    tree = house(tmp_path, bus__wire__ids=back)
    assert circles.found(tree) == [["bus.a", "bus.b", "bus.wire.ids"]]
    assert circles.circles(tree) == {"circles of imports": {"bus.a": 3}}


def test_sizes_near_a_limit_are_seen_and_sizes_well_below_are_not(tmp_path: Path) -> None:
    def wide(name: str, methods: int) -> str:
        body = "".join(f"    def m{i}(self): ...\n" for i in range(methods))
        return f"class {name}:\n{body}"

    few = {f"bus__f{i}": wide(f"C{i}", 3) + "\n" * 90 for i in range(5)}
    tree = house(tmp_path, **few)
    assert distributions.beyond_aims(tree) == {"sizes": {}, "arrows between rooms": {}}
    eleven = {f"bus__full__f{i}": "" for i in range(12)}
    tree = house(tmp_path, bus__long="\n" * 385, bus__wide=wide("Wide", 19), **eleven)
    assert distributions.beyond_aims(tree)["sizes"] == {
        "methods of a class, p95": 19,
        "lines of a file, p95": 385,
        "classes near the limit, per 1000": 167,
        "files near the limit, per 1000": 53,
        "rooms near the limit, per 1000": 1000,
    }


def test_arrows_between_rooms_beyond_the_aim_are_seen(tmp_path: Path) -> None:
    rooms = [f"r{i}" for i in range(6)]
    files = {
        f"master__{room}__a": "".join(f"import master.{other}.a\n" for other in rooms[:at])
        for at, room in enumerate(rooms)
    }
    tree = house(tmp_path, **files)
    assert distributions.beyond_aims(tree)["arrows between rooms"] == {"master": 15}


def test_a_folder_of_two_files_is_no_room_but_a_folder_of_rooms_is(tmp_path: Path) -> None:
    three = {f"bus__full__f{i}": "" for i in range(3)}
    tree = house(tmp_path, bus__small__a="", bus__small__b="", bus__of_rooms__full__c="", **three)
    assert distributions.small_rooms(tree) == {
        "rooms of fewer than three files": {"bus.small": 1, "bus.of_rooms.full": 1}
    }
    tree = house(tmp_path, bus__small_door="def f(): ...\n")
    assert "bus.small" not in distributions.small_rooms(tree)["rooms of fewer than three files"]


def test_bindings_and_functions_named_by_a_participle_are_counted(tmp_path: Path) -> None:
    text = """
one: int = 1
for _told in range(3): ...
def f(asked, *, known=2): ...
rows = [found for found in ()]
with open("f") as said: ...
class Row:
    kept: int
    def told_of(self): ...
    def _asked(self): ...
    def kept_rows(self): ...
    def read(self): ...
match rows:
    case [one, *_]: ...
print(one, found.one)
"""
    assert names.of_product(house(tmp_path, bus__a=text)) == {
        "bus": {**dict.fromkeys(names.SEVEN, 1), "one": 2, "participle functions": 2}
    }


def test_a_private_name_of_a_library_is_seen_outside_of_its_file(tmp_path: Path) -> None:
    use = "from mlx_lm import utils\nutils._get_classes()\n"
    own = "import os\nclass A:\n    def _own(self): ...\na = A()\na._own()\nos._exit(1)\n"
    tree = house(tmp_path, runner__library=use, runner__a=own)
    assert private_names.scattered(tree) == []
    for line in (use, "from mlx_lm._inner import x\n", "def f(w):\n    return w._tokenizer\n"):
        tree = house(tmp_path, runner__b=line)
        [breach] = private_names.scattered(tree)
        assert breach.subject.startswith("runner/b.py"), line


def test_a_new_version_a_loose_pin_and_a_private_name_that_is_gone_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"mlx-lm": private_names.Held("runner/library.py", "0.32.2")}
    monkeypatch.setattr(private_names, "HELD", held)
    use = "from mlx_lm import utils\nutils._get_classes()\n"
    tree = house(tmp_path, runner__library=use)
    good, installed = {"pyproject.toml": '  "mlx-lm==0.32.2",\n'}, {"mlx-lm": "0.32.2"}
    assert private_names.stale(tree, good, installed) == []
    assert private_names.stale(tree, {"pyproject.toml": '  "mlx-lm>=0.32.2",\n'}, installed)
    assert private_names.stale(tree, {"requirements.lock": "mlx-lm==0.32.21\n"}, installed)
    assert private_names.stale(tree, good, {"mlx-lm": "0.32.3"})
    assert private_names.stale(house(tmp_path, runner__library=""), good, installed)


def test_each_counting_law_is_held_to_its_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "CEILINGS", tmp_path / "ceilings.toml")
    tree = house(tmp_path, bus__a="one = 1\nimport bus.b\n", bus__b="import bus.a\n")
    assert counts.faults(tree, "names") and counts.faults(tree, "circles")
    ceilings.write(counts.CEILINGS, counts.counted(tree), "tool", lift=True)
    assert [counts.faults(tree, law) for law in counts.LAWS] == [[]] * len(counts.LAWS)
    assert counts.faults(house(tmp_path, bus__a="one = 1\none = 2\n"), "names")


Entered = dict[str, dict[tuple[str, int, str], int]]


def entered(gateway: int, runner: int, calls: int) -> Entered:
    """Calls of functions, each in a file of its own, by process."""
    return {
        "gateway": {(f"gateway/f{i}.py", 1, "f"): 1 for i in range(gateway)},
        "runner": {(f"runner/f{i}.py", 1, "f"): calls for i in range(runner)},
    }


def test_a_walk_counts_what_every_request_enters_and_a_longer_walk_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = walk.LONG - walk.SHORT
    first = walk.first_pair(entered(5, 2, 10), entered(7, 2, 10 + 2 * tokens))
    assert first.figures()["gateway, files"] == 5
    both = first.with_pair(entered(4, 2, 9), entered(9, 3, 10 + 4 * tokens))
    assert both.figures() == {
        "files": 6,
        "functions": 6,
        "gateway, files": 4,
        "gateway, functions": 4,
        "gateway, calls of a token": 1,
        "runner, files": 2,
        "runner, functions": 2,
        "runner, calls of a token": 5,
    }
    monkeypatch.setattr(walk, "CEILINGS", tmp_path / "walk.toml")
    assert len(walk.write(both.figures(), {}, lift=False)) == 3
    walk.write(both.figures(), {}, lift=True)
    limits = ceilings.read(walk.CEILINGS)
    assert limits == {"walk": {"files": 7, "functions": 7, "runner, calls of a token": 6}}
    grown = walk.held({**both.figures(), "files": 8})
    assert ceilings.faults(grown, limits, "tool") and "aim 100" in walk.report(
        both.figures(), limits
    )
    assert walk.write({**both.figures(), "files": 7}, limits, lift=False) == []
    assert ceilings.read(walk.CEILINGS) == limits, "3 % of room is no reason to lift"


def test_the_hook_counts_calls_in_threads_that_run_already_and_stops() -> None:
    names: list[str] = []
    go, ended = threading.Event(), threading.Event()

    def inner() -> None: ...

    def loop() -> None:
        go.wait(10)
        inner()
        ended.set()

    thread = threading.Thread(target=loop)
    thread.start()
    walked.set_in_all_threads(lambda frame, event, _: names.append(frame.f_code.co_name))
    go.set()
    ended.wait(10)
    walked.set_in_all_threads(None)
    thread.join(10)
    inner()
    assert names.count("inner") == 1

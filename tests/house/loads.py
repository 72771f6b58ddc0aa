"""What a module loads: the libraries that come with an import, seen in a process of its own.

Starts one python process per row. Seen are the libraries that shoal itself names (`WATCHED`),
found by the name that is imported; what those bring with them differs between systems.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.house.trees import ROOT, Tree

WATCHED = (
    "falcon", "gunicorn", "httpcore", "httpx", "huggingface_hub", "jinja2", "llguidance", "mlx",
    "mlx_lm", "msgpack", "msgspec", "numpy", "orjson", "platformdirs", "prometheus_client",
    "psutil", "pydantic", "pydantic_settings", "resiliparse", "rich", "safetensors", "setproctitle",
    "supervisor", "tokenizers", "torch", "transformers", "typer", "uvloop", "zeroconf", "zmq",
    "zstandard",
)  # fmt: skip
"""What costs time or memory to load, or is to stay in its one home."""
SAY = f"""
import sys
print("loaded:", *[name for name in {WATCHED!r} if name in sys.modules])
"""
HELP = """
import contextlib, io, sys
from gateway.cli.app import main
sys.argv = ["shoal", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
"""
"""What the `shoal` command does when it is asked for its help."""


def loaded_by(code: str) -> list[str]:
    """Return the watched libraries that are loaded after `code` ran in a new process.

    Raises RuntimeError with what the process said when it does not end well.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", code + SAY],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    last = done.stdout.splitlines()[-1:] or [""]
    if done.returncode != 0 or not last[0].startswith("loaded:"):
        raise RuntimeError(done.stderr[-2000:] or done.stdout[-2000:])
    return last[0].removeprefix("loaded:").split()


def importing(modules: Sequence[str]) -> str:
    """Return the code that imports some modules."""
    return "".join(f"import {module}\n" for module in modules)


def pure_rooms(tree: Tree) -> dict[str, list[str]]:
    """Return the rooms in which every module is pure, each with its modules."""
    found: dict[str, list[str]] = {}
    for room in tree.rooms:
        inside = [m for m in tree.product if m.name == room or m.name.startswith(room + ".")]
        if all(not module.is_shell for module in inside):
            found[room] = [module.name for module in inside]
    return found

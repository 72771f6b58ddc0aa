"""shoal as people install it: from the wheel, with uv, pipx and pip, outside of any checkout.

Each installation has its own HOME and empty caches, so everything is downloaded. Its node starts in
an empty home, answers, and leaves nothing behind. Then shoal is upgraded by the very commands that
`shoal upgrade` prints.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conf.paths import find_paths
from tests.harness.built_wheel import copied_tree
from tests.harness.downloads import CountingProxy
from tests.harness.endings import end, living
from tests.harness.nodes import free_base_port

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.timeout(1800)]

INSTALL_S = 900.0
NODE_S = 240.0
UP_S = 660.0
"""A first start compiles every module, on a busy machine for minutes."""
NEXT = "0.1.1"
UV = str(Path(sys.executable).with_name("uv"))
CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT")
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class Dist:
    """Two wheels, each beside its tested versions: the tree's, and the same as a later version."""

    now: Path
    later: Path

    @property
    def pins(self) -> str:
        return str(self.now.with_name("constraints.txt"))


@dataclass(frozen=True, slots=True)
class Installed:
    """An installation: its folder, the variables of its shell, and the path of `shoal`."""

    folder: Path
    env: dict[str, str]
    shoal: str

    @property
    def home(self) -> Path:
        return self.folder / "node"

    def run(self, *words: str, timeout_s: float = NODE_S) -> subprocess.CompletedProcess[str]:
        """Run a verb of the installed shoal in this installation's shell."""
        return subprocess.run(
            [self.shoal, *words], env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """Build both wheels with `make wheel`."""
    made: list[Path] = []
    for version in ("", NEXT):
        tree = copied_tree(tmp_path_factory.mktemp("tree"), version)
        subprocess.run(["make", "wheel"], cwd=tree, check=True, capture_output=True, timeout=300)
        assert not (tree / "build").exists()
        made.append(next((tree / "dist").glob("*.whl")))
    return Dist(*made)


def shell_of(folder: Path, tools: Path) -> dict[str, str]:
    """Return the variables of a shell with an own HOME; only certificates come from this one."""
    (folder / "user").mkdir(parents=True)
    path = (folder / "user/.local/bin", tools, "/usr/local/bin", "/usr/bin", "/bin")
    return {
        "HOME": str(folder / "user"),
        "PATH": os.pathsep.join(map(str, path)),
        "LANG": "C.UTF-8",
        "SHOAL_HOME": str(folder / "node"),
        "SPT_NOENV": "1",
        "PIP_CONFIG_FILE": os.devnull,
        **{name: os.environ[name] for name in CERTIFICATES if name in os.environ},
    }


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the commands uv and pipx."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    pip = str(folder / "bin" / "pip")
    subprocess.run([pip, "install", "--quiet", "uv", "pipx"], check=True, timeout=INSTALL_S)
    only = folder / "only"
    only.mkdir()
    for name in ("uv", "pipx"):
        (only / name).symlink_to(folder / "bin" / name)
    return only


def lines_of(tool: str, wheel: Path, pins: str, folder: Path) -> list[list[str]]:
    """Return the commands of the page `installation.md` for a tool."""
    match tool:
        case "uv":
            return [["uv", "tool", "install", "--constraints", pins, str(wheel)]]
        case "pipx":
            return [["pipx", "install", f"--pip-args=--constraint {pins}", str(wheel)]]
        case _:
            venv = str(folder / "venv")
            return [
                ["python3", "-m", "venv", venv],
                [f"{venv}/bin/pip", "install", "--constraint", pins, str(wheel)],
            ]


@pytest.fixture(scope="module", params=["uv", "pipx", "pip"])
def installed(
    request: pytest.FixtureRequest, dist: Dist, tools: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installed]:  # fmt: skip
    """Install the wheel with one tool into empty caches; print seconds and megabytes."""
    folder = tmp_path_factory.mktemp(request.param)
    env = shell_of(folder, tools)
    shoal = folder / ("venv" if request.param == "pip" else "user/.local") / "bin" / "shoal"
    began = time.monotonic()
    with CountingProxy() as proxy:
        for line in lines_of(request.param, dist.now, dist.pins, folder):
            run_line(line, {**env, "HTTPS_PROXY": proxy.url}, folder)
    print(f"\n{request.param}: installed in {time.monotonic() - began:.0f} s,", end=" ")
    print(f"{proxy.downloaded_bytes / 1e6:.0f} MB downloaded")
    made = Installed(folder, env, str(shoal))
    try:
        yield made
    finally:
        end(made.home, find_paths(made.home))


def run_line(line: list[str], env: dict[str, str], folder: Path) -> None:
    """Run a command in an installation's shell; it must succeed."""
    done = subprocess.run(
        line, env=env, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


def served(made: Installed) -> None:
    """Start the node, ask it, look at it, and stop it; nothing of it may be left."""
    before = files_of(made)
    began = time.monotonic()
    up = made.run("up", "--wait", "600", "--base-port", str(free_base_port()), timeout_s=UP_S)
    assert up.returncode == 0, up.stdout + up.stderr
    print(f"up in {time.monotonic() - began:.0f} s")
    answer = made.run("run", "shoal-tiny", "What is shoal?", "--temperature", "0")
    assert answer.stdout.startswith("Shoal runs large language models"), answer.stderr
    doctor = made.run("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(doctor.stdout)["checks"]}
    wrong = [finding for finding in findings.values() if finding["level"] == "error"]
    assert not wrong and "installed" in findings["packages"]["found"], findings
    overview = made.run()
    assert overview.returncode == 0 and "is up at" in overview.stdout, overview.stderr
    assert made.run("down").returncode == 0
    assert not list(living(made.home)), "processes are left"
    assert not find_paths(made.home).runtime.exists() or not any(
        find_paths(made.home).runtime.glob("*.sock")
    )
    assert files_of(made) == before, "files outside the home are left"


def files_of(made: Installed) -> set[str]:
    """Return the files of the installation outside the node's home, but for compiled modules."""
    return {
        str(path)
        for path in made.folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and made.home not in path.parents
    }


def test_a_node_of_the_wheel_answers_and_leaves_nothing(installed: Installed) -> None:
    served(installed)


def test_a_service_runs_the_python_of_the_installation(installed: Installed) -> None:
    done = installed.run("service", "install", "--dry-run", "--user", "root", "--json")
    text = json.loads(done.stdout)["text"]
    python = next(line for line in text.splitlines() if "ExecStart" in line).split('"')[1]
    assert Path(python).is_relative_to(installed.folder) and Path(python).exists(), text


def test_the_printed_commands_upgrade(installed: Installed, dist: Dist) -> None:
    assert installed.run("version").stdout == "shoal 0.1.0\n"
    done = installed.run("upgrade", str(dist.later), "--json")
    plan = json.loads(done.stdout)
    assert plan["commands"], done.stdout + done.stderr
    for line in plan["commands"]:
        run_line(line, installed.env, installed.folder)
    assert installed.run("version").stdout == f"shoal {NEXT}\n"
    served(installed)


def test_a_node_of_another_user_runs_from_a_folder_that_it_cannot_write(
    dist: Dist, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if os.geteuid() != 0 or not os.access(SYSTEM_PYTHON, os.X_OK):
        pytest.skip("needs root, to start a process of another user, and the system's Python")
    folder = Path("/tmp") / tmp_path_factory.mktemp("read-only").name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "user").mkdir(parents=True)
    venv = folder / "venv"
    run_line([SYSTEM_PYTHON, "-m", "venv", "--without-pip", str(venv)], dict(os.environ), folder)
    site = next((venv / "lib").glob("python3*/site-packages"))
    line = [UV, "pip", "install", "--python", str(venv / "bin/python"), "--compile-bytecode"]
    pip = [*line, "--constraints", dist.pins]
    try:
        run_line([*pip, str(dist.now)], dict(os.environ), folder)
        os.chown(folder / "user", NOBODY, NOBODY)
        run_as_nobody(venv / "bin" / "shoal", folder, site)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_as_nobody(shoal: Path, folder: Path, site: Path) -> None:
    """Start, ask and stop a node of the default home as a user who can only read the package."""
    env = {
        "HOME": str(folder / "user"), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8",
        "SHOAL_BASE_PORT": str(free_base_port()),
    }  # fmt: skip

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(shoal), *words], env=env, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=UP_S, check=False,
        )  # fmt: skip

    try:
        up = run("up", "--wait", "600")
        assert up.returncode == 0, up.stdout + up.stderr
        answer = run("run", "shoal-tiny", "What is shoal?", "--temperature", "0")
        assert answer.stdout.startswith("Shoal runs large language models"), answer.stderr
    finally:
        down = run("down")
    assert down.returncode == 0, down.stderr
    assert not (site.parents[2] / "etc").exists()

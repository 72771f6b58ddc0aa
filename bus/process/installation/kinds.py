"""How shoal was installed, according to the files that installers leave.

Pure. In the environment that they make, `uv tool` leaves `uv-receipt.toml`, and pipx leaves
`pipx_metadata.json`. Both pip and uv write `INSTALLER` beside the metadata of each package, and
`direct_url.json` (PEP 610) if the package came from a file or a folder. `uvx` and `pipx run` make
environments inside a cache, which `CACHEDIR.TAG` marks.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "shoal-llm"
"""The name of shoal's package for pip and uv. PyPI's `shoal` is another project."""
Kind = Literal["clone", "uv tool", "pipx", "environment", "temporary", "unknown"]
PATHS = ("path", "url", "directory", "editable", "git")
"""Keys of a requirement in uv's receipt that say where a package comes from."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts from which `installation_of` derives how shoal was installed.

    `python` is the environment's interpreter, `prefix` its folder. `in_cache`: a folder above
    `prefix` is marked as a cache, so the environment is temporary. The other fields are the
    contents of files that installers leave; empty if a file does not exist.
    """

    python: str
    prefix: str
    in_cache: bool = False
    installer: str = ""
    direct_url: str = ""
    uv_receipt: str = ""
    pipx_metadata: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """How shoal was installed. `source` is a path or a URL; empty for a package index.

    `is_folder`: the source is a folder with shoal's code. `is_editable`: shoal runs from there.
    `name` is pipx's name of the environment. `extras`, `added`: shoal's extras and further
    packages, which each `uv tool install` must name again.
    """

    kind: Kind
    python: str
    prefix: str
    installer: str = ""
    source: str = ""
    is_folder: bool = False
    is_editable: bool = False
    name: str = DISTRIBUTION
    extras: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return how shoal was installed, as text for messages."""
        return {
            "clone": f"from the clone {self.source}",
            "uv tool": "with `uv tool install`",
            "pipx": "with `pipx install`",
            "environment": f"with {self.installer} into {self.prefix}",
            "temporary": f"for one run into the cache {self.prefix}",
            "unknown": f"with {self.installer or 'an unknown tool'}",
        }[self.kind]


def installation_of(evidence: Evidence) -> Installation:
    """Return how shoal was installed. A file that cannot be parsed counts as missing."""
    direct = _json(evidence.direct_url)
    folder: Mapping[str, Any] | None = direct.get("dir_info")
    made = Installation(
        kind="environment" if evidence.installer in ("pip", "uv") else "unknown",
        python=evidence.python,
        prefix=evidence.prefix,
        installer=evidence.installer,
        source=_place(str(direct.get("url", "")), direct.get("vcs_info")),
        is_folder=folder is not None,
        is_editable=bool(folder and folder.get("editable")),
    )
    if evidence.in_cache:
        return replace(made, kind="temporary")
    receipt = _receipt(evidence.uv_receipt)
    if receipt:
        return _uv_tool(made, receipt)
    pipx = _json(evidence.pipx_metadata).get("main_package")
    if pipx:
        source = str(pipx.get("package_or_url") or "")
        is_index = source.startswith(DISTRIBUTION)
        name = f"{DISTRIBUTION}{pipx.get('suffix') or ''}"
        return replace(made, kind="pipx", source="" if is_index else source, name=name)
    if made.is_editable:
        return replace(made, kind="clone")
    return made


def _uv_tool(made: Installation, requirements: Sequence[Mapping[str, Any]]) -> Installation:
    mine = next(entry for entry in requirements if entry.get("name") == DISTRIBUTION)
    places = [key for key in PATHS if mine.get(key)]
    source = str(mine[places[0]]) if places else ""
    return replace(
        made,
        kind="uv tool",
        source=f"git+{source}" if places[:1] == ["git"] else source,
        is_folder=places[:1] in (["directory"], ["editable"]),
        is_editable=places[:1] == ["editable"],
        extras=tuple(mine.get("extras", ())),
        added=tuple(_requirement(entry) for entry in requirements if entry is not mine),
    )


def _requirement(entry: Mapping[str, Any]) -> str:
    """Return an entry of uv's receipt in the form of the command line."""
    place = next((str(entry[key]) for key in PATHS if entry.get(key)), "")
    extras = f"[{','.join(entry['extras'])}]" if entry.get("extras") else ""
    return place or f"{entry.get('name', '')}{extras}{entry.get('specifier', '')}"


def _receipt(text: str) -> list[Mapping[str, Any]]:
    """Return the requirements in the text of uv's receipt; none if shoal is not among them."""
    try:
        requirements = tomllib.loads(text)["tool"]["requirements"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        return []
    return requirements if any(r.get("name") == DISTRIBUTION for r in requirements) else []


def _json(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return cast(Mapping[str, Any], document) if isinstance(document, dict) else {}


def _place(url: str, vcs: Mapping[str, Any] | None) -> str:
    """Return the path of a `file:` URL, and any other URL as pip takes it."""
    if vcs is not None:
        revision = vcs.get("requested_revision")
        return f"{vcs.get('vcs', 'git')}+{url}{f'@{revision}' if revision else ''}"
    return unquote(urlsplit(url).path) if url.startswith("file:") else url

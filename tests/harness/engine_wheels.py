"""Wheels of nothing but one module, for environments of engines: no network, and kilobytes."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_wheel(
    folder: Path, name: str, version: str, *, script: str = "", code: str = "", needs: str = ""
) -> Path:
    """Write a wheel with the module NAME, whose text is `code`. `script`: a program that it
    installs, which calls the module's `main`. `needs`: another package that it requires."""
    facts = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": code,
        f"{facts}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{facts}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        f"{facts}/entry_points.txt": f"[console_scripts]\n{script}={name}:main\n" if script else "",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{facts}/RECORD"))
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for file, text in {**files, f"{facts}/RECORD": record}.items():
            wheel.writestr(file, text)
    return made

"""What a process takes of what the system grants it, read as Linux tells it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bus.process.memory import data_bytes, granted_data

STATUS = """Name:\tshoal runner:00
VmPeak:\t 2015296 kB
VmSize:\t 1713784 kB
VmLck:\t       0 kB
VmHWM:\t  613964 kB
VmRSS:\t  411372 kB
RssAnon:\t  308504 kB
VmData:\t  786432 kB
VmStk:\t     132 kB
"""
GRANTED = """
import resource
from bus.process.memory import granted_data
limit = 900 << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
before = granted_data()
held = [bytearray(50_000_000) for _ in range(4)]
after = granted_data()
del held[1:]
less = granted_data()
assert before.limit_bytes == after.limit_bytes == limit
assert 190_000_000 < after.used_bytes - before.used_bytes < 230_000_000, (before, after)
assert after.used_bytes - less.used_bytes > 140_000_000, (after, less)
"""


def test_private_memory_is_read_from_what_linux_tells_of_a_process() -> None:
    assert data_bytes(STATUS) == 768 << 20
    assert data_bytes(STATUS.replace("VmData", "VmOther")) is None


def test_where_nothing_is_limited_nothing_is_told() -> None:
    assert granted_data() is None


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is told by Linux alone")
def test_what_is_taken_and_given_back_shows_beside_the_limit() -> None:
    done = subprocess.run([sys.executable, "-c", GRANTED], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()

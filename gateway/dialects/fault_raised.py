"""The one exception that carries a fault to the edge of HTTP.

Pure. Raised where a request cannot be served and no bytes of an answer have been sent; the
shell renders it in the envelope of the path's dialect.
"""

from __future__ import annotations

from bus.wire.errors import ShoalError
from gateway.dialects.faults import Fault


class Faulted(ShoalError):
    """This request ends with `fault`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault

"""Starts a real gateway with options from a JSON text instead of a home."""

from __future__ import annotations

import json
import os
import sys

from bus.links.tls_files import TlsFiles
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.service import role_lock
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId
from gateway.http.server import serve
from gateway.view.options import Options


def main() -> int:
    given = json.loads(sys.argv[1])
    given["endpoints"] = Endpoints(given["endpoints"])
    given["node"] = NodeId(given["node"])
    for name in ("keys", "names", "origins", "trusted_proxies", "fetch_allow", "fetch_types"):
        if name in given:
            given[name] = tuple(given[name])
    if "tls" in given:
        given["tls"] = TlsFiles(*given["tls"])
    try:
        with role_lock(given["endpoints"], f"gateway-{os.getpid()}") as role:
            serve(Options(**given), role)
    except ShoalError as error:
        Log(node=given["node"], process="gateway").critical(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

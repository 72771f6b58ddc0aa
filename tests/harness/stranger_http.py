"""Asks a gateway as another user of this machine would; run as a script of its own.

    python -I stranger_http.py UID PORT < questions

It needs nothing but Python, and becomes the user UID of the machine. Each question is a line of
JSON: method, path, headers and a body (a text, or null). For each it prints a line of JSON: the
status, and what came with it, as text.
"""

from __future__ import annotations

import http.client
import json
import os
import sys

PATIENCE_S = 20.0


def main() -> None:
    """Ask each question over a connection of its own, and print its answer."""
    user, port = map(int, sys.argv[1:])
    "".encode("idna")  # another user may not read this installation later on
    if os.getuid() != user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    for line in sys.stdin:
        method, path, headers, body = json.loads(line)
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        asked.request(method, path, body, headers)
        answer = asked.getresponse()
        told = answer.read().decode() if answer.length is not None else ""
        asked.close()
        sys.stdout.write(json.dumps([answer.status, told]) + "\n")


if __name__ == "__main__":
    main()

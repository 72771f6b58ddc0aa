"""Another node's gateway at the switchboard of a testbed, as if the two were linked, with records
of its own."""

from __future__ import annotations

import signal
from typing import Any

from bus.wire.ids import NodeId
from tests.harness.gateway_testbed import GatewayTestbed
from tests.harness.ports import free_port

ELSEWHERE = NodeId("n2")


class SecondGateway:
    """The gateway of `ELSEWHERE`, with these options beside its own."""

    def __init__(self, made: GatewayTestbed, **options: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        first, log = made.port, made.log
        made.port = self.port
        try:
            self.process = made.start_gateway(
                node=ELSEWHERE,
                metrics_folder=f"{made.folder}/metrics2",
                records_file=f"{made.folder}/records2.sqlite",
                **options,
            )
        finally:
            made.log.close()
            made.port, made.log = first, log
        made.publish_node(ELSEWHERE, "elsewhere")

    def close(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(15)

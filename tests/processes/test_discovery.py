"""Two whole nodes, with real processes, that were told nothing of each other.

`tests/bus/membership/test_discovery.py` has the switchboards alone find each other by mDNS.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.clusters import Cluster, view_of
from tests.harness.nodes import eventually


@pytest.mark.proof
@pytest.mark.slow
def test_two_nodes_find_each_other_by_mdns_and_measure_the_link_between_them() -> None:
    cluster = Cluster(2, SHOAL_CLUSTER__DISCOVERY="true")
    for node in cluster.nodes:
        node.env["SHOAL_CLUSTER__PEERS"] = ""
    try:
        cluster.up()

        def links() -> dict[str, Any] | None:
            view = view_of(cluster.nodes[0])
            found = {} if view is None else view["telemetry"]["links"]
            both = len(found) == 2 and all(one["links"] for one in found.values())
            return found if both else None

        found = eventually(links, 60, "both have measured")
        assert all(one["links"][0]["host"] == "127.0.0.1" for one in found.values())
        said = json.loads(cluster.nodes[0].shoal("nodes", "--json").stdout)
        other = next(one for one in said["nodes"] if not one["asked"])
        assert other["found_by"] in ("mdns", "hello")
        assert other["measured"][0]["bytes_per_s"] > 0
    finally:
        cluster.close()

"""Talks to the operating system: measures the node, its processes and its files for readings."""

from telemetry.node.alike import are_alike
from telemetry.node.meter import GATEWAY, Keep, ListProcesses, NodeMeter
from telemetry.node.probes import children

__all__ = ["GATEWAY", "Keep", "ListProcesses", "NodeMeter", "are_alike", "children"]

"""Talks to the gateways of other nodes: which nodes there are, and what one of them is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from bus.wire.errors import BadRequest, ShoalError
from bus.wire.ids import NodeId
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.dialects import faults
from gateway.dialects.body import bad_field
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.service import HttpService


def names_of(service: HttpService) -> dict[NodeId, str]:
    """Return the nodes that the cluster has, by id, with their names (the id where none is
    known)."""
    names = {card.node: card.name for card in service.readings.cards(service.reactor.now())}
    names |= {NodeId(one): facts.name for one, facts in service.bus.state.nodes.items()}
    names[service.options.node] = service.options.node_name
    return {node: names.get(node) or node for node in service.record_lists.nodes()}


def chosen(names: Mapping[NodeId, str], wanted: Sequence[str], field: str) -> list[NodeId]:
    """Return the nodes that are wanted, by id or name, each once; all where none is named. Raises
    BadRequest, with the field, for one that the cluster does not have."""
    found: list[NodeId] = []
    for one in wanted:
        nodes = [node for node, name in names.items() if one in (node, name)]
        if not nodes:
            known = ", ".join(sorted(set(names.values())))
            raise bad_field(field, f"the cluster has no node {one!r}; it has {known}")
        found += [node for node in nodes if node not in found]
    return sorted(found) or sorted(names)


def node_named(service: HttpService, name: str) -> NodeId:
    """Return the node of that id or name; our own for an empty one. Raises HttpFaultRaised, a 404,
    for one that the cluster does not have."""
    if not name:
        return service.options.node
    try:
        return chosen(names_of(service), [name], "node")[0]
    except BadRequest as error:
        raise HttpFaultRaised(HttpFault(404, "node_not_found", str(error))) from error


async def asked_there(
    service: HttpService, node: NodeId, verb: str, arguments: list[Any], within_s: float
) -> dict[str, Any]:
    """Return what another node's gateway found. Raises HttpFaultRaised: the fault that it told, or
    that it was not reached."""
    try:
        found = await service.record_lists.questions.ask(node, verb, arguments, within_s=within_s)
    except RecordsElsewhere as error:
        fault = faults.records_elsewhere(error.why, str(error), error.waited_s)
        raise HttpFaultRaised(fault) from error
    except ShoalError as error:
        raise HttpFaultRaised(HttpFault(502, "bad_answer", str(error))) from error
    if not isinstance(found, dict):
        raise HttpFaultRaised(HttpFault(502, "bad_answer", f"node {node} sent no answer"))
    told = cast(dict[str, Any], found)
    if "status" in told:
        raise HttpFaultRaised(
            HttpFault(
                int(told["status"]),
                str(told["code"]),
                str(told["message"]),
                retry_after_s=told["retry_after_s"],
            )
        )
    return told


def fault_told(fault: HttpFault) -> dict[str, Any]:
    """Return a fault in the form in which it is told to another node."""
    return {
        "status": fault.status,
        "code": fault.code,
        "message": fault.message,
        "retry_after_s": fault.retry_after_s,
    }

"""Talks to the gateways of other nodes: lists nodes, and sends one of them a call."""

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
    """Return the names of the cluster's nodes, by id; a node without a name has its id."""
    names = {card.node: card.name for card in service.readings.cards(service.reactor.now())}
    names |= {NodeId(node_id): facts.name for node_id, facts in service.bus.state.nodes.items()}
    names[service.options.node] = service.options.node_name
    return {node: names.get(node) or node for node in service.record_lists.nodes()}


def chosen(names: Mapping[NodeId, str], wanted: Sequence[str], field: str) -> list[NodeId]:
    """Return the `wanted` nodes (ids or names), each once, sorted; all nodes if `wanted` is empty.
    Raises BadRequest with the field for an unknown node."""
    nodes: list[NodeId] = []
    for word in wanted:
        matches = [node for node, name in names.items() if word in (node, name)]
        if not matches:
            there = ", ".join(sorted(set(names.values())))
            raise bad_field(field, f"the cluster has no node {word!r}; it has {there}")
        nodes += [node for node in matches if node not in nodes]
    return sorted(nodes) or sorted(names)


def node_named(service: HttpService, name: str) -> NodeId:
    """Return the node of an id or name; "" is this node. Raises HttpFaultRaised (404) for an
    unknown node."""
    if not name:
        return service.options.node
    try:
        return chosen(names_of(service), [name], "node")[0]
    except BadRequest as error:
        raise HttpFaultRaised(HttpFault(404, "node_not_found", str(error))) from error


async def ask_node(
    service: HttpService, node: NodeId, verb: str, arguments: list[Any], within_s: float
) -> dict[str, Any]:
    """Return the answer of another node's gateway to a call. Raises HttpFaultRaised with the fault
    that it sent, or if it was not reached."""
    try:
        reply = await service.record_lists.questions.ask(node, verb, arguments, within_s=within_s)
    except RecordsElsewhere as error:
        fault = faults.records_elsewhere(error.why, str(error), error.waited_s)
        raise HttpFaultRaised(fault) from error
    except ShoalError as error:
        raise HttpFaultRaised(HttpFault(502, "bad_answer", str(error))) from error
    if not isinstance(reply, dict):
        raise HttpFaultRaised(HttpFault(502, "bad_answer", f"node {node} sent no answer"))
    answer = cast(dict[str, Any], reply)
    if "status" in answer:
        raise HttpFaultRaised(
            HttpFault(
                int(answer["status"]),
                str(answer["code"]),
                str(answer["message"]),
                retry_after_s=answer["retry_after_s"],
            )
        )
    return answer


def fault_fields(fault: HttpFault) -> dict[str, Any]:
    """Return a fault as the answer to another node's call; that node's `ask_node` raises it."""
    return {
        "status": fault.status,
        "code": fault.code,
        "message": fault.message,
        "retry_after_s": fault.retry_after_s,
    }

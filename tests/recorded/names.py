"""Lists the names that users, other nodes and other programs know, as plain tables.

What a table holds is a promise: topics, sockets, ports, routes, settings, variables, programs,
verbs, exit codes, error codes. Wording for people (summaries, help texts, descriptions) is left
out, and so are the names of modules. Every table is plain JSON data, in a fixed order.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import falcon.inspect
from falcon.asgi import App

from bus.__main__ import peer_settings
from bus.calls import CALLS
from bus.membership.mdns_hints import SERVICE, Advert
from bus.models.model_folders import STAGING as STAGES
from bus.process.endpoints import Endpoints
from bus.process.identity import FILE
from bus.service import EXIT_FAILED, EXIT_ORPHANED, EXIT_ROLE_TAKEN
from bus.wire.errors import (
    BadRequest,
    ContextOverflow,
    FailReason,
    FinishReason,
    Refusal,
    RefusalReason,
)
from bus.wire.ids import Boot, NodeId, RequestId, owner_of, request_id
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Failed
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN
from bus.wire.topics import TABLE as TOPICS
from bus.wire.topics import event_topic, reading_topic
from conf.keys import environment_of
from conf.paths import HOME_VARIABLE, Paths, find_paths
from conf.ports import PORTS, port_of
from conf.settings import (
    DEFAULTS_FILE,
    FOREIGN_PREFIXES,
    LAUNCHED_BY,
    NOT_SETTINGS,
    load_settings,
)
from conf.supervisord import render
from gateway.cli.interrupts import INTERRUPTED
from gateway.cli.output.errors import (
    FAILED,
    NO_NODE,
    NOT_FOUND,
    REFUSED,
    USAGE,
    refusal,
)
from gateway.cli.verbs.models.chat import HISTORY_FILE
from gateway.dialects import faults
from gateway.dialects.dialect import headers_of
from gateway.dialects.faults import HttpFault
from gateway.dialects.ollama.render import error_object as ollama_error
from gateway.dialects.openai.shapes import error_object as openai_error
from gateway.http.openapi import document
from gateway.http.routes import ROUTES, add_routes
from gateway.service import ServiceHandle
from gateway.view.options import Options
from master.__main__ import master_settings
from runner.group.group_config import jaccl_environment, ring_environment
from runner.lifecycle import EXIT_CODES
from tests.recorded.answers import answers
from tests.recorded.commands import commands, help_exit_codes
from worker.__main__ import weights_settings

HOME = Path("/srv/shoal-home")
WORDING = ("description", "summary")
STATUSES = (400, 401, 403, 404, 408, 409, 413, 429, 500, 503, 504, 507)


def topics() -> list[dict[str, Any]]:
    """List the rows of the table of topics."""
    return [
        {
            "topic": row.prefix,
            "plane": row.plane,
            "kind": row.message.model_fields["kind"].default,
            "retained": row.retained,
            "ttl_s": row.ttl_s,
            "on_demand": row.on_demand,
        }
        for row in TOPICS
    ]


def calls() -> list[dict[str, Any]]:
    """List the rows of the table of calls between gateways."""
    return [
        {"call": call.name, "right": call.right, "is_slow": call.is_slow} for call in CALLS.values()
    ]


def wire_names() -> dict[str, Any]:
    """List what nodes and processes call each other by."""
    ids = request_id(NodeId("n0123456789"), "h0", Boot("b00f0001"), 26)
    advert = Advert(NodeId("n0123456789"), "lab", ("ab" * 8, "cd" * 8), "b00f0001")
    return {
        "protocol": [PROTOCOL_MIN, PROTOCOL_MAX],
        "event topic": event_topic("term_opened"),
        "reading topics": [reading_topic("node", "n1"), reading_topic("runner", "n1", "runner:03")],
        "request id": [ids, list(owner_of(ids) or ())],
        "mdns": {
            "service": SERVICE,
            "name": advert.service_name,
            "properties": advert.properties(),
        },
        "ports": {use: [row.offset, row.count] for use, row in PORTS.items()},
        "first ports": {use: [port_of(use, None), port_of(use, 20_000)] for use in PORTS},
        "fail": sorted(get_args(FailReason)),
        "finish": sorted(get_args(FinishReason)),
        "refusal": sorted(get_args(RefusalReason)),
        "mlx": [
            sorted(ring_environment(1, "/hosts")),
            sorted(jaccl_environment(1, "/devices", "10.0.0.1:24182")),
        ],
    }


def sockets() -> dict[str, str]:
    """List where a node's local sockets lie."""
    at = Endpoints("/run")
    return {
        "control in": at.plane_in("control"),
        "telemetry out": at.plane_out("telemetry"),
        "tap": at.tap,
        "candidate": at.candidate,
        "worker": at.worker,
        "telemetry": at.telemetry,
        "runner": at.runner("03"),
        "gateway": at.gateway(2),
        "stacks": at.stacks("runner:03"),
        "supervisor": at.supervisor,
    }


def files() -> dict[str, Any]:
    """List where a home's folders and files lie, and which of them each service is told."""
    paths = find_paths(HOME)
    names = [name for name, value in vars(Paths).items() if isinstance(value, property)]
    found = {getattr(paths, name) for name in (*names, *Paths.__dataclass_fields__)}
    placed = {_unplaced(str(path), paths) for path in found if isinstance(path, Path)}
    chosen = load_settings(home=HOME, remembered=False)
    weights = weights_settings(chosen)
    told = {
        "node id": paths.state / FILE,
        "term": master_settings(chosen).candidate.term_file,
        "journal": master_settings(chosen).candidate.journal,
        "peers": peer_settings(chosen, has_key=False).file,
        "models": weights.models,
        "hashes": weights.hashes,
        "stages": weights.models / STAGES,
        "history of chats": paths.state / HISTORY_FILE,
    }
    return {
        "folders": sorted(placed),
        "told": {name: _unplaced(str(path), paths) for name, path in told.items()},
    }


def routes() -> list[list[str]]:
    """List every method of every path that is answered."""
    options = Options(
        node=NodeId("n1"), node_name="n", endpoints=Endpoints("/run"), metrics_folder="/run"
    )
    app: App[Any, Any] = App()
    add_routes(app, ServiceHandle(options))
    return sorted(
        [route.path, method.method]
        for route in falcon.inspect.inspect_routes(app)
        for method in route.methods
        if not method.internal
    )


def openapi() -> dict[str, Any]:
    """Tell the OpenAPI document without its wording."""
    made = document(ROUTES, title="shoal", version="0")
    return {"paths": _bare(made["paths"]), "components": _bare(made["components"])}


def settings() -> dict[str, Any]:
    """List every setting with its default and its variable, and the variables that are none."""
    chosen = load_settings(home=HOME, remembered=False)
    keys = [key for key, _, _ in chosen.rows()]
    return {
        "variables": {key: next(iter(environment_of({key: ""}))) for key in keys},
        "defaults": tomllib.loads(DEFAULTS_FILE.read_text()),
        "not settings": sorted(NOT_SETTINGS),
        "foreign": FOREIGN_PREFIXES,
        "home": HOME_VARIABLE,
        "launched by": LAUNCHED_BY,
    }


def supervisord() -> list[str]:
    """List the lines of supervisord's configuration for one home; modules are not named."""
    flags = {"node_name": "box", "http_port": 50_001, "slots": 3, "runner.blas_threads": 2}
    chosen = load_settings(home=HOME, flags=flags, remembered=False)
    blas = {"LD_PRELOAD": "/opt/libopenblas.so.0", "OPENBLAS_NUM_THREADS": "2"}
    text = render(chosen, python="/opt/python", blas=blas, user="keeper")
    text = re.sub(r" -m [a-z_.]+$", " -m <module>", text, flags=re.M)
    return _unplaced(text, chosen.paths).splitlines()


def exit_codes() -> dict[str, Any]:
    """List what processes and verbs exit with."""
    statuses = {str(status): refusal(status, "no").code for status in STATUSES}
    return {
        "services": [EXIT_FAILED, EXIT_ROLE_TAKEN, EXIT_ORPHANED],
        "runners": sorted(EXIT_CODES),
        "verbs": [FAILED, USAGE, NO_NODE, NOT_FOUND, REFUSED, INTERRUPTED],
        "verbs, asked for help": help_exit_codes(),
        "verbs, by the node's answer": statuses,
    }


def errors() -> dict[str, Any]:
    """List how each failure is told to clients: status, headers, and both dialects' bodies."""
    found = {f"refused: {reason}": faults.of_refusal(_refused(reason)) for reason in _refusals()}
    found |= {f"failed: {reason}": faults.of_failed(_failed(reason)) for reason in _failures()}
    found |= {
        "bad request": faults.of_bad_request(BadRequest("wrong", field="n")),
        "overflow": faults.of_overflow(ContextOverflow(prompt_tokens=9, limit_tokens=8)),
        "unknown model": faults.unknown_model("x"),
        "not found": faults.not_found("x"),
        "owner silent": faults.owner_silent("x", 1.0),
        "records down": faults.records_elsewhere(True, "x"),
        "records refused": faults.records_elsewhere(False, "x"),
        "records unavailable": faults.records_unavailable("x"),
        "method": faults.method_not_allowed("PUT", ["GET"]),
        "unauthorized": faults.unauthorized("no"),
        "forbidden": faults.forbidden("no"),
        "insufficient scope": faults.insufficient_scope("inference", "admin", "GET /state"),
        "over budget": faults.over_budget("rate_limit_exceeded", "no", 5, 2.5),
        "key not found": faults.key_not_found("x"),
        "too large": faults.too_large(5),
        "internal": faults.internal("x"),
    }
    return {name: _told(fault) for name, fault in found.items()}


TABLES: Mapping[str, Callable[[], Any]] = {
    "topics": topics,
    "calls": calls,
    "wire": wire_names,
    "sockets": sockets,
    "files": files,
    "routes": routes,
    "openapi": openapi,
    "settings": settings,
    "supervisord": supervisord,
    "commands": commands,
    "exit_codes": exit_codes,
    "errors": errors,
    "answers": answers,
}
"""Every table by the name of its file."""


def _unplaced(text: str, paths: Paths) -> str:
    """Text with marks in place of the folders that differ from machine to machine."""
    runtime = text.replace(str(paths.runtime), "<runtime>")
    shared = runtime.replace(str(paths.runtime.parent), "<runtimes>")
    return shared.replace(str(paths.home), "<home>")


def _bare(value: Any) -> Any:
    """JSON data without the texts for people. A property may be called as they are."""
    if isinstance(value, dict):
        return {
            key: _bare(inner)
            for key, inner in value.items()
            if not (key in WORDING and isinstance(inner, str))
        }
    return [_bare(inner) for inner in value] if isinstance(value, list | tuple) else value


def _refusals() -> Iterable[RefusalReason]:
    return get_args(RefusalReason)


def _failures() -> Iterable[FailReason]:
    return get_args(FailReason)


def _refused(reason: RefusalReason) -> Refusal:
    return Refusal(reason=reason, message="no", field="model", position=4, facts={"free": 1})


def _failed(reason: FailReason) -> Failed:
    return Failed(RequestId("r"), 1, reason, "it ended", Usage(), {"field": "n"})


def _told(fault: HttpFault) -> dict[str, Any]:
    wordless = asdict(fault) | {"message": "..."}
    fault = HttpFault(**wordless)
    return {
        "status": fault.status,
        "headers": dict(headers_of(fault)),
        "openai": openai_error(fault),
        "ollama": ollama_error(fault),
    }

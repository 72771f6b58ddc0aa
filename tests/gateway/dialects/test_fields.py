"""What the page of fields says of each field is what the parsers do with it.

Every field of every object is put into a body that a parser takes, in each place where the object
may stand, with values that its type allows, and compared with a body that lacks it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import orjson
import pytest
from pydantic import BaseModel

from bus.wire.errors import BadRequest
from bus.wire.messages.commands import PlaceModel, RunCollectiveTest
from bus.wire.messages.control import AskDiagnosis
from gateway.dialects.api_table import AsksOfModel, DerivesModel, Embeds, Generates, ReadsPrompt
from gateway.dialects.body import EXTRAS, Closed, read_body
from gateway.dialects.dialect import Limits, Parsed
from gateway.dialects.openai.responses import ConversationBody, ConversationItemsBody
from gateway.dialects.openai.responses.conversations import reading
from gateway.dialects.openai.stored import labels
from gateway.dialects.registry import APIS
from gateway.http import diagnostics
from gateway.http.diagnostics import capture, processes, runners
from gateway.http.resources import collectives, instances, nodes, quantizing
from gateway.http.resources.access import api_keys
from gateway.http.resources.figures import traces
from gateway.http.resources.jobs import submit
from gateway.http.resources.pool import leases, pool
from gateway.http.resources.pulls import card, listing, pull, store, sync, verify
from gateway.http.resources.tools import web
from gateway.http.settings import SettingsBody
from gateway.http.settings import resource as settings_resource
from gateway.http.settings import tasks as settings
from tests.gateway.dialects.field_bodies import BODIES, HINTS, SAME_EITHER_WAY
from tests.harness.field_claims import Claim, bodies, claims_of, objects
from tests.harness.field_samples import same, samples_of, schema_of

OURS: dict[type[BaseModel], tuple[Any, type[BaseModel] | None]] = {
    instances.PlaceBody: (instances, PlaceModel),
    instances.InstanceBody: (instances, PlaceModel),
    collectives.CollectiveTestBody: (collectives, RunCollectiveTest),
    nodes.NodeBody: (nodes, None),
    diagnostics.ProfileOrder: (processes, AskDiagnosis),
    diagnostics.RowCancelBody: (runners, None),
    diagnostics.CaptureBody: (capture, None),
    traces.TracingBody: (traces, None),
    traces.TracesRemovedBody: (traces, None),
    labels.StoredLabelsBody: (labels, None),
    ConversationBody: (reading, None),
    ConversationItemsBody: (reading, None),
    api_keys.NewKeyBody: (api_keys, None),
    api_keys.RotationBody: (api_keys, None),
    submit.JobBody: (submit, None),
    pull.PullBody: (pull, None),
    pull.AddBody: (pull, None),
    sync.SyncBody: (sync, None),
    listing.PullChangeBody: (listing, None),
    verify.VerifyBody: (verify, None),
    card.CardBody: (card, card.CardBody),
    store.DownloadBody: (store, None),
    store.PurgeBody: (store, None),
    quantizing.QuantizeBody: (quantizing, None),
    pool.PinBody: (pool, None),
    settings.ConfigBody: (settings, None),
    SettingsBody: (settings_resource, None),
    leases.LeaseBody: (leases, None),
    leases.RenewalBody: (leases, None),
    web.OpenUrlBody: (web, None),
    web.ExtractPageBody: (web, None),
    web.WebSearchBody: (web, None),
}
"""Bodies that ask for no answer of a model: the module that reads them, the message that takes
their fields whole."""
ENDPOINTS = {
    endpoint.body: endpoint
    for api in APIS
    for endpoint in api.endpoints
    if isinstance(endpoint, Generates | ReadsPrompt | Embeds | AsksOfModel | DerivesModel)
}
Steps = tuple[int | str, ...]


@dataclass(frozen=True)
class Place:
    """Where an object stands: in which body, at which steps, and the path that a refusal names."""

    body: type[BaseModel]
    sent: dict[str, Any]
    steps: Steps
    owner: type[BaseModel]


class Refused(str):
    """The path that a refusal named, beside what was understood of bodies."""

    __slots__ = ()


def understood(desk: Any, body: type[BaseModel], sent: Any) -> Any:
    """What is made of a body, or the path of its refusal."""
    endpoint, raw = ENDPOINTS[body], json.dumps(sent).encode()
    try:
        if isinstance(endpoint, AsksOfModel | DerivesModel):
            return endpoint.parse(raw, Limits())
        return endpoint.dialect.parse(raw, desk.context())
    except BadRequest as refusal:
        return Refused(refusal.field or "")


def with_value(place: Place, name: str, value: Any) -> dict[str, Any]:
    """The body with a field of the object at a place; without it where the value is `LEFT_OUT`."""
    sent = orjson.loads(orjson.dumps(place.sent))
    found: Any = sent
    for step in place.steps:
        found = found[step]
    if value is LEFT_OUT:
        found.pop(name, None)
    else:
        found[name] = value
    return sent


LEFT_OUT = object()


def path_of(steps: Steps) -> str:
    said = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return said.removeprefix(".")


def _places_in(value: Any, steps: Steps) -> Iterator[tuple[Steps, type[BaseModel]]]:
    """Yield where each object of a validated body stands, as the client wrote it."""
    if isinstance(value, BaseModel):
        yield steps, type(value)
        apart = getattr(type(value), "apart", {})
        for name, info in type(value).model_fields.items():
            inner = getattr(value, name)
            if name in apart and inner is not None:
                yield (*steps, name), apart[name]
            else:
                yield from _places_in(inner, (*steps, info.alias or name))
    elif isinstance(value, list):
        for index, inner in enumerate(cast(list[Any], value)):
            yield from _places_in(inner, (*steps, index))


def places() -> dict[tuple[type[BaseModel], type[BaseModel]], list[Place]]:
    """Every object in every body of `BODIES`, by body and type; at the same steps, with the same
    keys, twice at most."""
    found: dict[tuple[type[BaseModel], type[BaseModel]], list[Place]] = {}
    for body, sents in BODIES.items():
        for sent in sents:
            assert issubclass(body, Closed)
            made, _ = read_body(body, json.dumps(sent).encode(), Limits())
            for steps, owner in _places_in(made, ()):
                there = found.setdefault((body, owner), [])
                place = Place(body, sent, steps, owner)
                alike = [
                    one for one in there if one.steps == steps and keys_of(one) == keys_of(place)
                ]
                if not steps or len(alike) < 2:
                    there.append(place)
    return found


def keys_of(place: Place) -> set[str]:
    """The keys of the object at a place."""
    found: Any = place.sent
    for step in place.steps:
        found = found[step]
    return set(cast(dict[str, Any], found))


PLACES = places()
CLAIMED = [(there, claim) for (_, owner), there in PLACES.items() for claim in claims_of(owner)]


def _name(given: Any) -> str:
    if isinstance(given, list):
        place = cast(list[Place], given)[0]
        return f"{place.body.__name__}-{path_of(place.steps) or 'body'}"
    return f"{given.owner.__name__}.{given.name}"


def values_of(place: Place, claim: Claim) -> list[Any]:
    """The values to try: those that the type allows, hints, and what the body has already."""
    made = samples_of(claim.owner, claim.name) if claim.typed else ["x", 1, True, {"a": 1}, [1]]
    made += HINTS.get((claim.owner.__name__, claim.name), [])
    found: Any = place.sent
    for step in place.steps:
        found = found[step]
    made += [found[claim.name]] if claim.name in found else []
    return made


def effect_of(parsed: Any) -> Any:
    """What a parsed body comes to, without what is said back of it and kept with it."""
    return replace(parsed, echoed_fields={}, to_keep=None) if isinstance(parsed, Parsed) else parsed


@pytest.mark.parametrize(("there", "claim"), CLAIMED, ids=_name)
def test_a_field_does_what_is_said_of_it(desk: Any, there: list[Place], claim: Claim) -> None:
    if claim.standing == "honoured":
        assert_changes(desk, there, claim)
        return
    for place in there:
        made_of = partial(_made_of, desk, place, claim.name)
        path = path_of((*place.steps, claim.name))
        accepted = [json.loads(json.dumps(one)) for one in claim.accepted]
        values = values_of(place, claim)
        if isinstance(made_of(LEFT_OUT), Refused) and claim.standing != "refused":
            continue
        match claim.standing:
            case "no effect":
                assert_changes_nothing(made_of, values)
            case "refused unless":
                assert_changes_nothing(made_of, accepted)
                assert_refused(made_of, [*values, "other", 12345], accepted, path)
            case "refused":
                assert_refused(made_of, values, [], path)


def _made_of(desk: Any, place: Place, name: str, value: Any) -> Any:
    return understood(desk, place.body, with_value(place, name, value))


def assert_changes(desk: Any, there: list[Place], claim: Claim) -> None:
    """Two values of a field that is honoured, or one and none, come to different things."""
    differs = False
    for place in there:
        made_of = partial(_made_of, desk, place, claim.name)
        if _is_one_word(claim):
            # it tells what kind of object it is in: any other word is refused, or of another kind
            whole = understood(desk, place.body, place.sent)
            assert isinstance(whole, Refused) or made_of("of another kind") != whole
        elif not differs:
            outcomes = (made_of(value) for value in (LEFT_OUT, *values_of(place, claim)))
            taken = (outcome for outcome in outcomes if not isinstance(outcome, Refused))
            first = next(taken, None)
            differs = any(outcome != first for outcome in taken)
    excused = (claim.owner.__name__, claim.name) in SAME_EITHER_WAY
    assert differs or excused or _is_one_word(claim), "no value changes what is asked for"
    assert not (differs and excused), "the reason why it changes nothing is old"


def _is_one_word(claim: Claim) -> bool:
    schema = schema_of(claim.owner)["properties"].get(claim.name, {})
    words = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    return all("const" in one for one in words)


def assert_changes_nothing(made_of: Callable[[Any], Any], values: list[Any]) -> None:
    """The values are taken, one at least, and come to what a body without the field comes to."""
    without = effect_of(made_of(LEFT_OUT))
    assert effect_of(made_of(None)) == without
    outcomes = {json.dumps(value): effect_of(made_of(value)) for value in values}
    taken = {value: one for value, one in outcomes.items() if not isinstance(one, Refused)}
    assert bool(taken) is bool(values), f"all were refused: {outcomes}"
    assert {value: one for value, one in taken.items() if one != without} == {}


def assert_refused(
    made_of: Callable[[Any], Any], values: list[Any], but: list[Any], path: str
) -> None:
    """The values are refused, naming the field or the object that it is in; empty ones may ask for
    nothing."""
    asking = [
        value
        for value in values
        if value not in ([], {}) and not any(same(value, one) for one in but)
    ]
    assert asking
    for value in asking:
        refused = made_of(value)
        assert isinstance(refused, Refused), f"{value} was taken"
        assert refused and (path.startswith(refused) or refused.startswith(path)), refused


def test_every_object_of_every_body_is_tried() -> None:
    tried = {owner for _, owner in PLACES} | set(OURS)
    assert {owner.__name__ for owner in set(objects()) - tried} == set()
    assert set(BODIES) | set(OURS) == set(bodies())


@pytest.mark.parametrize("body", OURS, ids=lambda body: body.__name__)
def test_every_field_of_our_own_bodies_is_read_by_what_answers(body: type[BaseModel]) -> None:
    module, message = OURS[body]
    source = inspect.getsource(module)
    passed = set[str](message.model_fields if message and "model_dump(" in source else ())
    read = set(re.findall(r"\b(?:body|order|parsed_body|submission)\.(\w+)", source))
    assert {claim.name for claim in claims_of(body)} - read - passed == set()
    assert all(claim.standing == "honoured" for claim in claims_of(body))


@pytest.mark.parametrize(
    "body", [one for one in BODIES if one in ENDPOINTS], ids=lambda b: b.__name__
)
def test_our_own_fields_are_honoured_in_every_body(desk: Any, body: type[BaseModel]) -> None:
    sent = BODIES[body][0]
    values: dict[str, Any] = {"x_client_id": "me", "x_priority": "low", "x_stay_warm": 5}
    values |= {"x_timeout_s": 5, "x_trace": True, "x_cooldown": 5, "x_resume": False}
    values |= {"x_reattach_s": 5, "x_speculate": "ngram"}
    assert set(values) == set(EXTRAS)
    without = understood(desk, body, sent)
    for name, value in values.items():
        made = understood(desk, body, {**sent, name: value})
        assert not isinstance(made, Refused)
        assert made != without or not isinstance(made, Parsed)
        assert understood(desk, body, {**sent, name: "no such value" * 50}) == Refused(name)

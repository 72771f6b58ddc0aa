"""What is made of the bodies and the Modelfiles that make models of others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId
from bus.wire.messages.derived import DerivedModel, derived_named
from gateway.dialects.api_table import ModelListing
from gateway.dialects.dialect import Limits
from gateway.dialects.ollama.api import render_show
from gateway.dialects.ollama.derive import derived_of, parse_copy, parse_create
from gateway.dialects.ollama.modelfile import read_modelfile

BASE = ModelId("m")
LINES = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=20)
TEXTS = LINES.filter(lambda text: '"' not in text and text.strip() == text and text != "")
WORDS = st.sampled_from(["FROM", "parameter", "SYSTEM", "MESSAGE", "LICENSE", "TEMPLATE", "#", ""])


def made(source: DerivedModel | None = None, **fields: Any) -> DerivedModel:
    body = json.dumps({"model": "n", "from": "m", **fields}).encode()
    return derived_of(parse_create(body, Limits()), BASE, source, 7.0)


def refusal(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        made(**fields)
    return caught.value


def test_what_is_said_is_kept_and_nothing_else_counts() -> None:
    parameters = {"temperature": 0, "num_predict": 9, "stop": "x", "num_ctx": 4096}
    model = made(parameters=parameters, system="Be brief.")
    assert (model.name, model.base, model.parent, model.made_at_s) == ("n", "m", "m", 7.0)
    assert model.sampled == ("temperature",) and model.sampling.temperature == 0
    assert (model.max_tokens, model.stop, model.system) == (9, ("x",), "Be brief.")
    assert model.parameters == {**parameters, "stop": ["x"]}


def test_what_is_made_of_a_made_model_has_what_it_does_not_say_itself() -> None:
    turn = [{"role": "user", "content": "Hello"}]
    first = made(parameters={"top_k": 3, "seed": 1}, system="s", messages=turn, license="free")
    second = made(first, parameters={"top_k": 4})
    assert (second.sampling.top_k, second.sampling.seed) == (4, 1)
    assert (second.system, second.turns, second.license) == ("s", first.turns, "free")
    assert (second.base, second.parent) == ("m", "n")
    other = made(first, system="t", messages=[{"role": "assistant", "content": "Hi"}])
    assert (other.system, [turn.content for turn in other.turns]) == ("t", ["Hi"])


GO_TEMPLATE = "{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}"


@pytest.mark.parametrize(
    "said", [{"template": GO_TEMPLATE}, {"modelfile": f'FROM m\nTEMPLATE """{GO_TEMPLATE}"""'}]
)
def test_a_template_is_refused_with_what_to_do_instead(said: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match=r"runs no Go templates.*own chat template") as refused:
        parse_create(json.dumps({"model": "n", "from": "m", **said}).encode(), Limits())
    assert refused.value.field == "template"


def test_a_model_of_an_earlier_build_makes_models_without_its_template() -> None:
    first = made(system="s").model_copy(update={"template": GO_TEMPLATE})
    assert made(first).template == ""
    listing = ModelListing(id="n", size_bytes=1, modified_at_s=7.0, template="jinja", derived=first)
    shown = json.loads(render_show(listing))
    assert shown["template"] == "jinja" and "TEMPLATE" not in shown["modelfile"]


def test_a_copy_is_what_its_source_is() -> None:
    asked = parse_copy(b'{"source":"n:latest","destination":"o:latest"}', Limits())
    assert (asked.name, asked.source) == ("o", "n:latest")
    first = made(system="s", parameters={"seed": 1})
    copied = derived_of(asked, BASE, first, 8.0)
    assert copied == first.model_copy(update={"name": "o", "made_at_s": 8.0})
    plain = derived_of(asked, BASE, None, 8.0)
    assert plain == DerivedModel(name=ModelId("o"), base=BASE, made_at_s=8.0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": ""}, "model"),
        ({"from": ""}, "from"),
        ({"model": "../n"}, "model"),
        ({"adapters": {"a": "b"}}, "adapters"),
        ({"files": {"a": "b"}}, "files"),
        ({"quantize": "q4_0"}, "quantize"),
        ({"parameters": {"temperature": "hot"}}, "parameters.temperature"),
        ({"parameters": {"temprature": 1}}, "parameters.temprature"),
        ({"parameters": {"stop": [""]}}, "parameters.stop[0]"),
        ({"messages": [{"role": "tool"}]}, "messages[0].role"),
        ({"modelfile": "FROM m\nADAPTER ./a"}, "adapter"),
        ({"adapter": "../a"}, "adapter"),
        ({"modelfile": "FROM m\nJUMP"}, "modelfile"),
        ({"modelfile": 'FROM m\nSYSTEM """x'}, "modelfile"),
        ({"modelfile": "PARAMETER top_k many"}, "modelfile"),
        ({"modelfile": "PARAMETER"}, "modelfile"),
        ({"modelfile": "PARAMETER num_ctx inf"}, "modelfile"),
        ({"modelfile": "PARAMETER seed " + "9" * 9000}, "modelfile"),
        ({"modelfile": "PARAMETER seed " + "9" * 4000}, "modelfile"),
        ({"parameters": {"num_ctx": {"a": 1}}}, "parameters.num_ctx"),
        ({"parameters": {"seed": [1]}}, "parameters.seed"),
        ({"modelfile": "MESSAGE"}, "modelfile"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    assert refusal(**fields).field == field


def test_a_modelfile_says_what_the_fields_would() -> None:
    text = (
        "# a comment\nfrom m\n\nPARAMETER temperature 0.5\nPARAMETER stop \"a b\"\n"
        "PARAMETER stop c\nPARAMETER seed 7\nPARAMETER num_ctx 4096\n"
        "SYSTEM \"\"\"\nBe\n\n  brief.\"\"\"\n"
        "MESSAGE user Hello there\nMESSAGE assistant \"\"\"Hi\nyou\"\"\"\nLICENSE MIT\n"
    )  # fmt: skip
    assert read_modelfile(text) == {
        "from": "m",
        "parameters": {"temperature": 0.5, "stop": ["a b", "c"], "seed": 7, "num_ctx": 4096},
        "system": "\nBe\n\n  brief.",
        "messages": [
            {"role": "user", "content": "Hello there"},
            {"role": "assistant", "content": "Hi\nyou"},
        ],
        "license": ["MIT"],
    }
    assert repr(read_modelfile(text)["parameters"]["num_ctx"]) == "4096", "no point is shown"
    body = json.dumps({"name": "n", "modelfile": text, "system": "Other."}).encode()
    assert parse_create(body, Limits()).system == "Other."


def test_a_made_model_is_found_in_other_letters_where_only_one_has_them() -> None:
    one, other = (
        made().model_copy(update={"name": ModelId(name)}) for name in ("Mine:1B", "mine:1b")
    )
    alone = {one.name: one}
    for name in ("Mine:1B", "mine:1b", "library/MINE:1b", "Mine:1B:latest"):
        assert derived_named(name, alone) is one
    assert derived_named("mine", alone) is None
    both = {**alone, other.name: other}
    assert derived_named("mine:1b", both) is other
    assert derived_named("MINE:1B", both) is None


@given(st.lists(st.tuples(WORDS, LINES | st.just('"""'))))
def test_any_modelfile_is_read_or_refused(lines: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{word} {rest}" for word, rest in lines)
    try:
        parse_create(json.dumps({"model": "n", "modelfile": text}).encode(), Limits())
    except BadRequest as refused:
        assert refused.field


@given(TEXTS, st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXTS)), TEXTS)
def test_the_modelfile_that_is_shown_makes_the_same_model_again(
    system: str, turns: list[tuple[str, str]], stop: str
) -> None:
    said = [{"role": role, "content": content} for role, content in turns]
    first = made(system=system, messages=said, parameters={"stop": [stop], "top_p": 0.5})
    listing = ModelListing(id="n", size_bytes=1, modified_at_s=7.0, derived=first)
    file = json.loads(render_show(listing))["modelfile"]
    asked = parse_create(json.dumps({"model": "n", "modelfile": file}).encode(), Limits())
    again = derived_of(asked, BASE, None, 7.0)
    assert (again.system, again.turns) == (first.system, first.turns)
    assert again.sampling == first.sampling
    if "\\" not in stop:
        assert again.stop == first.stop

"""Each setting of a model, and where it comes from."""

from __future__ import annotations

from bus.models.cards import CARD, KNOWN_KEYS, all_settings, notes_from, resolved
from bus.wire.cards import AdapterCard, ModelCard
from bus.wire.ids import ModelId
from tests.recorded.specimens import least

M = ModelId("m")
FOR_PEOPLE = {"name", "summary", "license"}


def settings(**said: object) -> dict[str, tuple[object, str]]:
    notes = notes_from(said)
    card = least(ModelCard).model_copy(
        update={
            "capabilities": ("completion", "thinking"),
            "defaults": notes.defaults(M, can_think=True),
            "noted": notes.said,
            "aliases": notes.aliases,
            "pin": notes.pin,
            "memory_bytes": notes.memory_bytes,
            "tool_parser": notes.tool_parser,
            "reasoning_parser": notes.reasoning_parser,
            "special_tokens_in_messages": notes.special_tokens_in_messages,
            "speculate": notes.speculate,
            "draft": notes.draft_model,
            "prefill_on": notes.prefill_on,
            "weights_bytes": 1_000,
            "adapters": (AdapterCard(name="pirate", rank=4, size_bytes=1),),
        }
    )
    return {name: (value, source) for name, value, source, _ in all_settings(card)}


def test_every_key_has_a_row_once_it_is_said_and_nearly_all_before() -> None:
    assert set(KNOWN_KEYS) - FOR_PEOPLE - set(settings()) == {"aliases", "template"}
    assert set(settings(aliases=["a"])) == set(KNOWN_KEYS) - FOR_PEOPLE - {"template"}
    assert settings(template="{{ .Prompt }}")["template"] == ("{{ .Prompt }}", CARD)


def test_a_row_tells_the_value_and_whether_the_card_says_it() -> None:
    found = settings(temperature=0.2, system="Be kind.", pin=True)
    assert found["temperature"] == (0.2, CARD)
    assert found["system"] == ("Be kind.", CARD) and found["pin"] == (True, CARD)
    assert found["top_p"] == (1.0, "shoal's default") and found["stop"] == (None, "shoal's default")
    assert found["keep_alive_s"][1] == "the node's settings"
    assert settings()["pin"] == (False, "shoal's default")


def test_what_counts_before_a_load_is_told_with_who_says_it() -> None:
    found = settings(memory_bytes=5_000, tool_parser="none", priority="low", adapter="pirate")
    assert found["memory_bytes"] == (5_000, CARD) and found["tool_parser"] == ("none", CARD)
    assert found["priority"] == (20, CARD) and found["adapter"] == ("pirate", CARD)
    assert found["adapters"] == (["pirate"], "the model's files")
    assert settings(prefill_on="mini")["prefill_on"] == ("mini", CARD)
    spelled = "special_tokens_in_messages"
    assert settings(**{spelled: True})[spelled] == (True, CARD)
    plain = settings()
    assert plain[spelled] == (False, "shoal's default")
    assert plain["memory_bytes"] == (1_000, "the model's files")
    assert plain["priority"] == (10, "shoal's default")
    assert plain["metal_fast_synch"] == (False, "shoal's default")
    for by, source in (("node", "the node's settings"), ("card", CARD)):
        card = least(ModelCard).model_copy(
            update={"metal_fast_synch": True, "metal_fast_synch_by": by}
        )
        rows = {name: (value, said) for name, value, said, _ in resolved(card)}
        assert rows["metal_fast_synch"] == (True, source)

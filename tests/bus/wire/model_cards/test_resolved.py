"""Each setting of a model, and where it comes from."""

from __future__ import annotations

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from bus.wire.model_cards import CARD, KNOWN_KEYS, all_settings, notes_from
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
        }
    )
    return {name: (value, source) for name, value, source, _ in all_settings(card)}


def test_every_key_has_a_row_once_it_is_said_and_nearly_all_before() -> None:
    assert set(KNOWN_KEYS) - FOR_PEOPLE - set(settings()) == {"aliases"}
    assert set(settings(aliases=["a"])) == set(KNOWN_KEYS) - FOR_PEOPLE


def test_a_row_tells_the_value_and_whether_the_card_says_it() -> None:
    found = settings(temperature=0.2, system="Be kind.", pin=True)
    assert found["temperature"] == (0.2, CARD)
    assert found["system"] == ("Be kind.", CARD) and found["pin"] == (True, CARD)
    assert found["top_p"] == (1.0, "shoal's default") and found["stop"] == (None, "shoal's default")
    assert found["keep_alive_s"][1] == "the node's settings"
    assert found["template"] == (None, "the model's files")
    assert settings()["pin"] == (False, "shoal's default")

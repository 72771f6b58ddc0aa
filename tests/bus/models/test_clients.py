"""What `clients.toml` may say, and how it is refused."""

from __future__ import annotations

import pytest

from bus.models.tasks import ClientName, capped, read_clients
from bus.wire.errors import ConfigError


def test_a_profile_is_its_clients_whichever_name_that_has() -> None:
    table = read_clients(
        """
[clients.ann]
priority = "high"
model = "chat"
[clients."192.168.1.4"]
priority = 7
keep_alive_s = 5
keep_alive_most_s = 60
cooldown_s = 0.5
max_waiting = 2
"""
    )
    ann, desk = (ClientName("key", "ann"), ClientName("address", "192.168.1.4"))
    assert table.profile(ann) == table.profile(ClientName("client_id", "ann"))
    assert (table.profile(ann).priority, table.profile(ann).model) == (5, "chat")
    assert table.profile(desk).priority == 7 and table.profile(desk).max_waiting == 2
    assert not table.profile(ClientName("key", "ben")).model_fields_set
    assert table.has_models and not read_clients("[clients.ann]").has_models


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[clients.a]\ncooldown = 3", "line 2: unknown key clients.a.cooldown; did you mean cool"),
        ("[client.a]\n", "line 1: unknown key client; did you mean clients?"),
        ('[clients.a]\npriority = "asap"', "line 2: clients.a.priority: use one of urgent, high"),
        ("[clients.a]\npriority = 1001", "line 2: clients.a.priority: "),
        ("[clients.a]\npriority = true", "line 2: clients.a.priority: "),
        ("[clients.a]\n\ncooldown_s = -1", "line 3: clients.a.cooldown_s: "),
        ("[clients.a]\nkeep_alive_s = inf", "line 2: clients.a.keep_alive_s: "),
        ("[clients.a]\nmax_waiting = 0", "line 2: clients.a.max_waiting: "),
        ('[clients.a]\nmodel = ""', "line 2: clients.a.model: "),
        ('[clients."10.0.0.1"]\nmax_waiting = 0', "line 2: clients.10.0.0.1.max_waiting: "),
        ('[clients."a\\u0007"]', "use 1 to 200 printable characters"),
        (
            "[clients.a]\nkeep_alive_s = 9\nkeep_alive_most_s = 8",
            "line 2: clients.a.keep_alive_s: more than keep_alive_most_s",
        ),
        ("[clients.a", "clients.toml is not valid TOML"),
        ("#" * (257 << 10), "clients.toml is too large; the limit is 256 KiB"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_clients(text)
    assert said in str(refused.value) and "clients.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("wish_s", "most_s", "stays_s"),
    [(5, -1, 5), (-1, -1, -1), (5, 9, 5), (15, 9, 9), (-1, 9, 9), (float("inf"), 9, 9), (0, 9, 0),
     (5, 0, 0)],
)  # fmt: skip
def test_a_wish_is_capped(wish_s: float, most_s: float, stays_s: float) -> None:
    assert capped(wish_s, most_s) == stays_s

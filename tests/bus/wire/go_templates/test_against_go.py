"""What Go's own `text/template` made of templates is what we make of them."""

from __future__ import annotations

from tests.bus.wire.go_templates.against_go import ours, recorded


def test_templates_make_what_go_made_of_them() -> None:
    runs = list(recorded())
    assert len(runs) == 1000
    assert sum(text is not None and text.strip() != "" for _, text in runs) > 300
    differ = [(template, text, ours(template)) for template, text in runs if ours(template) != text]
    assert not differ, differ[:3]

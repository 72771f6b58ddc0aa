"""A card names a draft model, which must be beside its target."""

from __future__ import annotations

from pathlib import Path

from bus.wire.ids import ModelId
from tests.worker.models.test_weights import CONFIG, write_model
from worker.models.files.draft_models import with_draft
from worker.models.weights import Shelf, Weights


def test_a_draft_model_is_found_on_the_node_or_missed_with_a_notice(tmp_path: Path) -> None:
    weights = Weights(Shelf({}, (tmp_path,), None, float32=True))
    write_model(tmp_path / "big", CONFIG)
    (tmp_path / "big" / "card.toml").write_text('draft_model = "small"\n')
    (big,) = weights.look()
    assert big.draft is not None and big.draft.path == "" and big.draft.weights_bytes == 0
    assert "it is not on this node" in big.draft.why_not
    (notice,) = weights.passed_over
    assert (
        notice.taken
        and "small is not on this node; it drafts only while it is loaded" in notice.why
    )
    write_model(tmp_path / "small", CONFIG)
    by_name = {card.model: card for card in weights.look()}
    draft, small = by_name[ModelId("big")].draft, by_name[ModelId("small")]
    assert draft is not None and "not smaller" in draft.why_not
    lighter = small.model_copy(update={"weights_bytes": small.weights_bytes // 2})
    found = with_draft(by_name[ModelId("big")], {ModelId("small"): lighter})
    assert found is not None and found[1] is None
    draft = found[0].draft
    assert draft is not None and draft.path == str(tmp_path / "small") and not draft.why_not
    assert draft.weights_bytes == lighter.weights_bytes
    assert draft.kv_bytes_per_token == lighter.kv_bytes_per_token

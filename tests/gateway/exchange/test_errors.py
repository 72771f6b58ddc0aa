"""Errors of calls keep their status and code on the way to the client."""

from bus.calls.failures import CallFailed, Why, refusal_error, silence
from bus.wire.errors import BadRequest, OwnerSilent, ShoalError, Unavailable
from gateway.dialects import faults
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange import call_refusal, fault_of
from gateway.records import RecordsUnavailable


def there_and_back(error: ShoalError) -> HttpFault:
    """Return the HTTP error for a call that another node refused because of `error`."""
    fault = fault_of(refusal_error("two", call_refusal(error)))
    assert fault is not None
    return fault


def test_an_error_of_another_nodes_handler_keeps_its_status_and_code() -> None:
    for error, status, code in (
        (OwnerSilent("HTTP process 1 of this node", 5.0), 504, "owner_silent"),
        (RecordsUnavailable("the disk is full"), 503, "records_unavailable"),
        (BadRequest("wrong", field="limit"), 400, "invalid_value"),
        (HttpFaultRaised(faults.not_found("a job")), 404, "not_found"),
        (Unavailable("no answer"), 503, "records_unavailable"),
    ):
        fault = there_and_back(error)
        assert (fault.status, fault.code) == (status, code)


def test_an_error_of_a_server_names_its_node_and_one_of_the_client_does_not() -> None:
    silent = there_and_back(OwnerSilent("HTTP process 1 of this node", 5.0, "try again"))
    text = "node two: HTTP process 1 of this node did not answer within 5 s; try again"
    assert silent.message == text and silent.retry_after_s is not None
    wrong = there_and_back(BadRequest("limit must be positive", field="limit"))
    assert (wrong.message, wrong.field) == ("limit must be positive", "limit")


def test_a_node_without_an_answer_is_told_apart_by_the_reason() -> None:
    silent = fault_of(silence("two", 5.0))
    assert silent is not None and silent.facts == {"waited_s": 5.0}
    assert (silent.status, silent.code) == (504, "owner_silent")
    whys: tuple[tuple[Why, str], ...] = (("down", "owner_down"), ("refused", "records_unavailable"))
    for why, code in whys:
        fault = fault_of(CallFailed("two", why, "no answer"))
        assert fault is not None and (fault.status, fault.code) == (503, code)


def test_an_error_that_no_code_raises_on_purpose_has_no_http_error() -> None:
    assert fault_of(RuntimeError("broken")) is None

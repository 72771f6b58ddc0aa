"""The page for people: every route, its fields, and a form whose body is one that is taken."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from gateway.http.openapi import Route
from gateway.http.resources.pages import docs
from gateway.http.routes import ROUTES

PAGE = docs(ROUTES, "0").decode()
FORM = re.compile(r"<form data-method=(\w+) data-path='([^']*)'>(.*?)</form>", re.DOTALL)
BODY = re.compile(r"<textarea[^>]*>(.*?)</textarea>", re.DOTALL)
FORMS = {(method, path): inside for method, path, inside in FORM.findall(PAGE)}


def _key(route: Route) -> tuple[str, str]:
    return route.method, re.sub(r":\w+}", "}", route.path)


def test_every_route_has_its_line_and_its_form() -> None:
    assert PAGE.count("<summary>") == len(ROUTES)
    assert set(FORMS) == {_key(route) for route in ROUTES if not route.marked_by}


def test_the_page_asks_nothing_of_other_servers() -> None:
    assert "//" not in PAGE.replace("https://json-schema.org", "")
    assert " src=" not in PAGE and "@import" not in PAGE


@pytest.mark.parametrize("route", [one for one in ROUTES if one.body], ids=lambda one: one.path)
def test_a_form_holds_a_body_that_its_route_takes(route: Route) -> None:
    assert route.body is not None
    [text] = BODY.findall(FORMS[_key(route)])
    sent = json.loads(unescape(text))
    made = route.body.model_validate(sent)
    assert (made.model_extra or {}) == {}
    for name, info in route.body.model_fields.items():
        assert f"<code>{info.alias or name}</code>" in PAGE


@pytest.mark.parametrize("route", [one for one in ROUTES if "{" in one.path], ids=lambda o: o.path)
def test_each_name_in_a_path_has_an_input(route: Route) -> None:
    if not route.marked_by:
        names = re.findall(r"{(\w+)", route.path)
        assert re.findall(r"<input name='(\w+)'>", FORMS[_key(route)]) == names

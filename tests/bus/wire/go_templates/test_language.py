"""Templates in Go's language, as its documentation has it: each line is one rule."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from bus.wire.go_templates import GoTemplateError, parse_template
from bus.wire.go_templates.evaluate import TemplateRun
from bus.wire.go_templates.functions import functions_on
from bus.wire.go_templates.values import GoStruct

DAY = datetime.date(2026, 3, 1)
DATA: dict[str, Any] = {
    "Name": "Ann",
    "Empty": "",
    "Known": None,
    "Zero": 0,
    "Three": 3,
    "Half": 0.5,
    "Yes": True,
    "No": False,
    "List": ["a", "b", "c"],
    "None": [],
    "Map": {"b": 2, "a": 1},
    "Person": GoStruct({"Name": "Bo", "Age": 7}, {"name": "Bo"}),
    "Grüße": "é🐟",
}


def run(source: str, data: Any = DATA) -> str:
    template = parse_template(source)
    made = TemplateRun(functions_on(DAY), template.defined)
    made.run(template.body, data)
    return made.text


LANGUAGE = [
    # text, trimming, comments
    ("", ""),
    ("a } b }} c", "a } b }} c"),
    ("a {{ .Name }} b", "a Ann b"),
    ("a \n{{- .Name -}}\t\r\n b", "aAnnb"),
    ("a {{- .Name }} b", "aAnn b"),
    ("a {{ .Name -}} b", "a Annb"),
    ("{{-3}}", "-3"),
    ("a {{- 3 -}} b", "a3b"),
    ("a {{/* {{ nothing }} */}} b", "a  b"),
    ("a {{- /* trimmed */ -}} b", "ab"),
    ("a {{ .Name\n}} b", "a Ann b"),
    ("{{ `}}` }}", "}}"),
    # values
    ('{{ "a\\n\\u00e9\\x41\\101" }}', "a\néAA"),
    ("{{ 'a' }} {{ '\\n' }}", "97 10"),
    ("{{ 0x10 }} {{ 1_000 }} {{ 017 }} {{ 0b11 }} {{ 1e3 }} {{ .5 }} {{ 1.0 }}",
     "16 1000 15 3 1000 0.5 1"),
    ("{{ 1e21 }} {{ 1e20 }} {{ 0.00001 }}", "1e+21 1e+20 1e-05"),
    ("{{ true }} {{ .Missing }} {{ .List }} {{ .Map }}", "true <no value> [a b c] map[a:1 b:2]"),
    ("{{ .Person }} {{ .Person.Name }} {{ .Map.b }} {{ .Map.c }}", "{Bo 7} Bo 2 <no value>"),
    ("{{ .Grüße }} {{ len .Grüße }}", "é🐟 6"),
    # variables and their scopes
    ("{{ $x := 1 }}{{ $x }}{{ $x = 2 }}{{ $x }}", "12"),
    ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
    ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
    ("{{ $x := .Person }}{{ $x.Name }}", "Bo"),
    ("{{ range .List }}{{ $.Name }}{{ . }}{{ end }}", "AnnaAnnbAnnc"),
    # conditions: what is true, and which branch
    ("{{ if .Name }}y{{ end }}{{ if .Empty }}y{{ else }}n{{ end }}", "yn"),
    ("{{ if .Zero }}y{{ else if .Half }}h{{ else }}n{{ end }}", "h"),
    ("{{ if .None }}y{{ end }}{{ if .List }}l{{ end }}{{ if .Person }}p{{ end }}", "lp"),
    ("{{ if $x := .Three }}{{ $x }}{{ end }}", "3"),
    ("{{ with .Person }}{{ .Name }}{{ end }}{{ with .Empty }}y{{ else }}{{ .Name }}{{ end }}",
     "BoAnn"),
    ("{{ with .Empty }}1{{ else with .Map }}{{ .a }}{{ else }}3{{ end }}", "1"),
    # loops
    ("{{ range $i, $e := .List }}{{ $i }}{{ $e }}{{ end }}", "0a1b2c"),
    ("{{ range $e := .List }}{{ $e }}{{ end }}", "abc"),
    ("{{ range $k, $v := .Map }}{{ $k }}={{ $v }};{{ end }}", "a=1;b=2;"),
    ("{{ range .None }}x{{ else }}none{{ end }}{{ range .Missing }}x{{ else }}nil{{ end }}",
     "nonenil"),
    ("{{ range 3 }}{{ . }}{{ end }}", "012"),
    ("{{ range .List }}{{ if eq . `b` }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac"),
    ("{{ range .List }}{{ if eq . `b` }}{{ break }}{{ end }}{{ . }}{{ end }}!", "a!"),
    ("{{ $l := `` }}{{ range $i, $e := .List }}{{ $l = $e }}{{ end }}{{ $l }}", "c"),
    ("{{ range .List }}{{ range $.List }}{{ break }}{{ end }}{{ . }}{{ end }}", "abc"),
    # templates within
    ('{{ define "x" }}<{{ . }}>{{ end }}{{ template "x" .Name }}{{ template "x" }}',
     "<Ann><<no value>>"),
    ('{{ block "x" .Name }}[{{ . }}]{{ end }}{{ template "x" 1 }}', "[Ann][1]"),
    ('{{ define "x" }}{{ $.Name }}{{ end }}{{ with .List }}{{ template "x" $ }}{{ end }}', "Ann"),
    # pipelines, brackets, chains
    ('{{ .Name | printf "%s-%s" "x" }}', "x-Ann"),
    ('{{ "a" | print "b" | print "c" }}', "cba"),
    ("{{ (index .List 1) }}{{ (.Person).Name }}", "bBo"),
    ("{{ len (slice .List 1) }}", "2"),
    ("{{ not (and .Name (eq .Three 3)) }}", "false"),
    # and, or: one of their arguments, and no more is looked at than is needed
    ("{{ and .Name .Three }}{{ and .Empty .Three }}{{ or .Empty .Name }}{{ or .Zero .Empty }}",
     "3Ann"),
    ("{{ and .No (index .List 9) }}{{ or .Yes (index .List 9) }}", "falsetrue"),
    # comparison
    ("{{ eq .Name `Ann` }}{{ eq .Three 1 2 3 }}{{ ne .Three 4 }}", "truetruetrue"),
    ("{{ lt 1 2 }}{{ le 2 2 }}{{ gt `b` `a` }}{{ ge 0.5 .Half }}", "truetruetruetrue"),
    ("{{ eq .Missing nil }}{{ eq .Missing `x` }}{{ ne .Missing `x` }}", "truefalsetrue"),
    ("{{ lt `Z` `a` }}{{ lt `ﬀ` `🐟` }}", "truetrue"),
    # index, slice, len
    ("{{ index .List 0 }}{{ index .Map `b` }}{{ index .Map `x` }}{{ index `abc` 1 }}",
     "a2<no value>98"),
    ("{{ slice .List 1 2 }}{{ slice .Name 1 }}{{ slice .Name 0 1 }}", "[b]nnA"),
    ("{{ len .Map }}{{ len .None }}{{ len .Name }}", "203"),
    # print and printf
    ('{{ print 1 2 "a" 3 4 }}|{{ println 1 "a" }}', "1 2a3 4|1 a\n"),
    ('{{ printf "%d %5d|%-5d|%05d %x %X %o %b %c %U" 7 7 7 7 255 255 8 5 65 65 }}',
     "7     7|7    |00007 ff FF 10 101 A U+0041"),
    ('{{ printf "%v %s %q %t %.2f %6.1f %e %g %%" .List .Name .Name true 0.125 0.25 1.5 2.0 }}',
     '[a b c] Ann "Ann" true 0.12    0.2 1.500000e+00 2 %'),
    ('{{ printf "%d" .Name }} {{ printf "%s" }} {{ printf "a" 1 }} {{ printf "%z" 1 }}',
     "%!d(string=Ann) %!s(MISSING) a%!(EXTRA int=1) %!z(int=1)"),
    ('{{ printf "%s" .Missing }} {{ printf "%.2s" .Name }}', "%!s(<nil>) An"),
    ('{{ html "<a&\'" }} {{ urlquery "a b&" }} {{ js "a\'<" }}',
     "&lt;a&amp;&#39; a+b%26 a\\'\\u003C"),
    # Ollama's own
    ('{{ json .Map }}{{ json .List }}{{ json "<é\\n" }}{{ json 1.0 }}{{ json .Missing }}',
     '{"a":1,"b":2}["a","b","c"]"\\u003cé\\n"1null'),
    ("{{ json .Person }}{{ json 0.0000001 }}{{ json 0.00001 }}", '{"name":"Bo"}1e-70.00001'),
    ("{{ currentDate }} {{ yesterdayDate }} {{ toTypeScriptType 1 }}", "2026-03-01 2026-02-28 any"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "text"), LANGUAGE)
def test_a_template_says_what_gos_rules_make_of_it(source: str, text: str) -> None:
    assert run(source) == text


NONE_AT_ALL = [
    ("a\n{{ .Name", 2, "expected '}}'"),

    ("\n{{ if .X }}b", 2, "expected {{end}} of this {{if}}"),
    ("{{ end }}", 1, "unexpected {{end}}"),
    ("{{ else }}", 1, "unexpected {{else}}"),
    ("\n\n{{ jump }}", 3, 'function "jump" is not defined'),
    ("{{ call .X }}", 1, 'function "call" is not defined'),
    ("{{ $x }}", 1, "variable $x is not declared"),
    ("{{ $x = 1 }}", 1, "variable $x is not declared"),
    ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", 1, "variable $x is not declared"),
    ("{{ if }}{{ end }}", 1, "expected a value in {{if}}"),
    ("{{ }}", 1, "expected a value in an action"),
    ("{{ .X | }}", 1, "expected a value"),
    ("{{ .X | 3 }}", 1, "expected a function in stage 2"),
    ("{{ nil }}", 1, "nil is an argument"),
    ("{{ (.X }}", 1, "expected ')'; found '}}'"),
    ("{{ .X) }}", 1, "expected '}}'; found ')'"),
    ("{{ messages['role'] }}", 1, "unexpected '['"),
    ("{{ \"a }}", 1, "a string is not closed"),
    ("{{ `a }}", 1, "a raw string is not closed"),
    ("{{ '' }}", 1, "a character is not closed"),
    ("{{ 'ab' }}", 1, "no single character"),
    ('{{ "\\q" }}', 1, "unknown escape"),
    ("{{ 99999999999999999999 }}", 1, "no number"),
    ("{{ 1x }}", 1, "no number"),
 ("{{/* a }}", 1, "expected '*/}}'"),
    ("{{/* a */ .X }}", 1, "expected '}}' behind it"),
    ("{{ break }}", 1, "stands in no {{range}}"),
    ("{{ range .X }}{{ end }}{{ continue }}", 1, "stands in no {{range}}"),
    ("{{ range .X }}{{ define `y` }}{{ end }}{{ end }}", 1, "unexpected {{define}}"),
    ("{{ template `y` }}", 1, "is not defined"),
    ("{{ template y }}", 1, "expected a name in quotation marks"),
    ("{{ if .X }}{{ else }}{{ else }}{{ end }}", 1, "found another {{else}}"),
    ("{{ $a, $b := .X }}", 1, "only {{range}} declares two"),
    ("{{ range $a, .X }}{{ end }}", 1, "expected a variable behind the comma"),
    ("{{ (1)(2) }}", 1, "expected a space between arguments"),
    ("{{ 1.X }}", 1, "no number"),
    ("{{ `a`.X }}", 1, "unexpected '.X' behind"),
    ("{{ if .X }}" * 99, 1, "nested deeper"),
    ("{{ " + "(" * 99, 1, "nested deeper"),
    ("{{ $v := 1 }}" * 300, 1, "more than 256 variables"),
    ("x" * 70_000, 1, "at most 65536 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "line", "words"), NONE_AT_ALL)
def test_what_is_no_template_is_told_with_its_line_and_what_was_expected(
    source: str, line: int, words: str
) -> None:
    with pytest.raises(GoTemplateError) as refused:
        parse_template(source)
    assert (refused.value.line, words in str(refused.value)) == (line, True), refused.value


CANNOT_RUN = [
    ("\n{{ .Name.X }}", 2, "there is no .X of a string"),
    ("{{ .Known.X }}", 1, "there is no .X of nil"),
    ("{{ .Person.Shoe }}", 1, "there is no .Shoe of a struct"),
    ("{{ .Name 1 }}", 1, "only a function can be given arguments"),
    ("{{ 1 | .Name }}", 1, "only a function can be given arguments"),
    ("{{ eq 1 `a` }}", 1, "incompatible types for comparison: int and string"),
    ("{{ eq 1 1.0 }}", 1, "incompatible types"),
    ("{{ eq .List .List }}", 1, "not comparable"),
    ("{{ lt true false }}", 1, "invalid types"),
    ("{{ lt .Missing 1 }}", 1, "invalid types"),
    ("{{ len 3 }}", 1, "len: len of type int"),
    ("{{ len .Missing }}", 1, "len of type <nil>"),
    ("{{ index .List 3 }}", 1, "index out of range: 3"),
    ("{{ index .List -1 }}", 1, "index out of range: -1"),
    ("{{ index .List `a` }}", 1, "cannot index with type string"),
    ("{{ index .Map 1 }}", 1, "cannot index a map with int"),
    ("{{ index .Person 1 }}", 1, "cannot index a value of type struct"),
    ("{{ slice .List 2 1 }}", 1, "invalid slice: 2 > 1"),
    ("{{ slice .List 4 }}", 1, "index out of range: 4"),
    ("{{ slice .Map 0 }}", 1, "cannot slice"),
    ("{{ not }}", 1, "wrong number of arguments for not"),
    ("{{ ne 1 2 3 }}", 1, "wrong number of arguments for ne: 3 instead of 2"),
    ("{{ printf 1 }}", 1, "printf begins with a string"),
    ('{{ printf "%*d" 1 2 }}', 1, "no width of '*'"),
    ('{{ printf "%99999d" 1 }}', 1, "widths up to"),
    ("{{ range .Name }}{{ end }}", 1, "range cannot go through a string"),
    ("{{ range true }}{{ end }}", 1, "range cannot go through a bool"),
    ('{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}', 1, "deeper than"),
    ("{{ range 99999 }}{{ range 99999 }}{{ end }}{{ end }}", 1, "more than 2000000 steps"),
    ("{{ $x := `aaaaaaaa` }}{{ range 99 }}{{ $x = print $x $x }}{{ end }}", 1, "8 MiB"),
    ('{{ $x := printf "%9999d" 1 }}{{ range 9999 }}{{ $x }}{{ end }}', 1, "8 MiB of text"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "line", "words"), CANNOT_RUN)
def test_what_cannot_be_run_is_told_in_words_with_its_line(
    source: str, line: int, words: str
) -> None:
    with pytest.raises(GoTemplateError) as stopped:
        run(source)
    assert (stopped.value.line, words in str(stopped.value)) == (line, True), stopped.value

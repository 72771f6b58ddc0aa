"""Rules of plain English, each a function from a sentence to what breaks it. Pure.

Each rule finds a pattern that a reader stumbles over and that has a plain form. A rule prefers to
miss a breach over a false finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tests.house.passages import Docstring, Sentence

MOST_WORDS = 30
"""Longest sentence. The aim is 20; lower this as the exceptions shrink."""

PARTICIPLES = (
    "told|asked|said|heard|known|kept|found|given|held|wanted|measured|read|written|sent|"
    "taken|meant|needed|counted|seen|promised|listed|loaded|set|made|left|gone|cut|answered|"
    "served|stored|fetched|pulled|forgotten|supposed|exported|placed|reached|refused|called|"
    "named|chosen|tried|built|drawn|paid|used|shown|recorded|received|learned|expected"
)
PREPOSITION = "of|to|by|in|on|and|or|that|who|with|from|for|at|as|is|are|was|were|has|have"

OBJECT_FIRST = re.compile(
    r"^Of (?!course\b)(?!the (?:two|three|four)\b)"
    r"|^(?:Counted|Seen|Kept|Held|Meant|Asked|Told|Said|Left|Listed|Measured|Named|Given|Taken|"
    r"Found|Shown|Refused|Needed|Wanted|Read|Written|Sent|Compared|Excepted|Known|Stored|Served)"
    r" (?:is|are|was|were)\b"
)
CLAUSE_FIRST = re.compile(
    r"^(?:What|Who|Whoever|Whatever) (?!(?:to|if|about|is more)\b)[^?]*[^?:]$"
)
CLAUSE = re.compile(
    rf"\bwhat (?:is|was|are|were|has been|have been|had been) (?:not |no longer |already |then "
    rf"|still |really )?(?:{PARTICIPLES}|there)\b(?! (?:wrong|missing))"
    r"|\bwhat (?:stands|waits|makes|lies|idles|follows it|goes)\b"
)
PRONOUN = re.compile(
    r"\bthose (?:that|who|which|whose)\b"
    r"|(?<!\bno )(?<!\bany)(?<!\bevery)\b(?:one|ones) (?:that|which|who|whose)\b"
    r"|\bsuch (?:a one|ones)\b"
    r"|\ball who\b"
)
PARTICIPLE = re.compile(
    r"\b(?:the|a|an|each|every|no) (?:told|asked|said|heard|kept|found|known|wanted|held|given)"
    rf"(?=[.,;:)]|$| (?:{PREPOSITION})\b)"
)

VOCABULARY: Mapping[str, str] = {
    r"\b(?:ma(?:kes?|de|king)) way\b": "is evicted, unloaded or deleted",
    r"\blet(?:s|ting)? go\b": "evicts, releases or deletes",
    r"\b(?:keeps?|kept|keeping|has|have) (?:its|their) turns?\b": "minimum residency",
    r"\bput (?:there|in) by hand\b|\bput there\b": "added by the user",
    r"\b(?:g[ai]ve[sn]?|giving) (?:\w+ ){0,2}back\b": "returned, requeued, freed",
    r"\b(?:goes|went|gone|going) back\b(?! to (?:the|a) start)": "preempted, requeued",
    r"\b(?:go|goes|went|gone|going) on\b(?! (?:the|a|an|to|its|disk|one|both|each|every|all)\b)":
        "resumes, continues",
    r"\b(?:looks|looked|looking) at\b": "checks, is checked",
    r"\b(?:is|are|was|were|be|been|being) told\b(?! (?:to \w|apart))":
        "is sent, is reported, learns",
    r"\btells? of\b|(?<!\bis )(?<!\bare )(?<!\bwas )(?<!\bbe )(?<!\bbeen )\btold of\b": "reports",
    r"\b(?:is|are|was|were|be|been) said\b": "is stated, is reported",
    r"\b(?:is|are|was|were|be|been) heard\b|\bheard (?:of|from)\b": "is received",
    r"\b(?:is|are|was|were|be) (?:not |all )?well(?=[.,;:)]|$| (?:and|or|again|when|where|if)\b)":
        "is healthy",
    r"(?<!\bis )(?<!\bare )(?<!\bwas )(?<!\bbe )\bnot well\b(?=[.,;:)]|$)": "unhealthy",
    r"\b(?:a|the|its|each|every|this|no|whose|of) wish(?:es)?\b|\bwishes (?:of|for|are)\b":
        "demand",
    r"\bpromised (?:memory|bytes|places?)\b|\b(?:memory|bytes|places?) (?:(?:that )?(?:is|are|was|"
    r"were) )?promised\b": "reserved",
    r"\b(?:rests|rested|resting)\b(?! (?:on|with|upon)\b)": "cooldown",
    r"\bcop(?:y|ies) in memory\b|\bcop(?:y|ies) (?:is|are) loaded\b": "instance, replica",
    r"\bleaves? memory\b": "is unloaded",
    r"\b(?:what|that) (?:is|was) wished\b": "demand",
}  # fmt: skip
"""A pattern of our words to the field's."""
OF_LEADERS: Mapping[str, str] = {
    r"\b(?:holds?|held|holding|hold) the term\b": "is the leader",
    r"\b(?:the|a|no|new|old|its|next|other) holder\b(?! of (?:a|the|its|that) (?:lease|lock|key))":
        "leader",
    r"\bholder's\b": "leader's",
}  # fmt: skip
"""Words of pages and messages; code and its docstrings may say holder."""
WORDS = [(re.compile(pattern), plain) for pattern, plain in VOCABULARY.items()]
LEADERS = [(re.compile(pattern), plain) for pattern, plain in OF_LEADERS.items()]
ANY_WORD = re.compile("|".join([*VOCABULARY, *OF_LEADERS]))

SAY_NOTHING = frozenset(
    re.findall(
        r"\w+",
        "return returns yield yields get gets give gives make makes build builds the a an of this "
        "that it its with for from to in on by as is are be and or one each all every some what "
        "whether which at has have none str int bool float list dict object self cls given them "
        "both now whole here there our their these up s itself",
    )
)
"""Words of a docstring that add nothing to a name."""


def findings(sentence: Sentence) -> Iterator[tuple[str, str]]:
    """Yield (rule, what breaks it) of one sentence."""
    text, lower = sentence.text, sentence.text.lower()
    if sentence.words > MOST_WORDS:
        yield "long-sentence", f"{sentence.words} words; the limit is {MOST_WORDS}"
    if match := OBJECT_FIRST.search(text):
        yield "object-first", f'begins with its object ("{match[0]}"): begin with the subject'
    if CLAUSE_FIRST.search(text):
        yield "clause-first", "begins with a clause as its noun: use the field's noun"
    for pattern in (CLAUSE, PRONOUN, PARTICIPLE):
        for match in pattern.finditer(lower):
            if match.start() or pattern is not CLAUSE:
                yield "no-noun", f'"{match[0]}" as a noun: use the field\'s noun'
    if not ANY_WORD.search(lower):
        return
    for pattern, plain in WORDS if sentence.kind == "docstring" else [*WORDS, *LEADERS]:
        for match in pattern.finditer(lower):
            yield "vocabulary", f'"{match[0]}": say "{plain}"'


def repeats(docstring: Docstring) -> bool:
    """Return whether a docstring has no word beyond the function's name, types and class."""
    said = {_stem(word) for word in _words(docstring.text)}
    return said <= {_stem(word) for word in _words(docstring.signature)}


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")
    return [word for word in re.findall(r"[a-z0-9]+", spaced.lower()) if word not in SAY_NOTHING]


def _stem(word: str) -> str:
    for ending in ("ies", "ied", "ing", "es", "ed", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word

"""Arguments of a call in spoken words; no value can pass for the prompt's own words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conductor.plugins.judges.vocabulary import Vocabulary, Words, phrase_at

# Limits of a value, a name and a label, and the number of values that are read out.
MAX_VALUE_CHARS = 60
MAX_NAME_CHARS = 60
MAX_LABEL_WORDS = 4
MAX_LEAVES = 12
# Omitted values that are counted.
MAX_COUNTED = 100
_MAX_WALKED = MAX_LEAVES + MAX_COUNTED + 1

_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAME_WORD = re.compile(r"[^\W_]+")
# A name that its words represent completely.
_PLAIN_NAME = re.compile(r"[^\W_]+(?:[_.-][^\W_]+)*")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_OPAQUE = re.compile(r"(?=.*\d)[0-9a-f-]{16,}|(?=(?:.*\d){3})[0-9a-z]{20,}=*", re.IGNORECASE | re.ASCII)
# Ends of sentences and marks, which are never part of a value that is read out.
_ENDS = re.compile(r"[.:]+(?=\s|$)|[.]{2,}")
_MARKS = re.compile(
    r"[^\w\s.:/\\@+\-&=%#$\u20ac\u00a3']|[#=](?=\s|$)|(?<!\S)[#=:.\-+']+(?=\s|$)|(?<!\S)_+|_+(?!\S)"
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of the arguments in spoken words.

    ``label`` names its place; ``index`` and ``size`` are those of its list. ``words`` is the value itself if
    it is short enough to repeat. ``exact`` is False if the value is not read out or only in part, or if
    cleaning it or its label removed more than blanks. ``nested``: it is in an object.
    """

    argument: str
    label: Words
    value: Any
    index: int = 0
    size: int = 0
    nested: bool = False
    text: str = ""
    words: str = ""
    exact: bool = True


def iter_leaves(arguments: Mapping[str, Any], schema: Mapping[str, Any], lang: Vocabulary) -> Iterator[Leaf]:
    """Iterate over all scalars and empty containers, in the schema's order."""
    root = Leaf("", (), arguments)
    stack: list[tuple[Leaf, Any]] = [(root, schema)]
    while stack:
        leaf, schema = stack.pop()
        value, schema = leaf.value, schema if isinstance(schema, Mapping) else {}
        if isinstance(value, Mapping) and value:
            order = schema.get("properties")
            order = order if isinstance(order, Mapping) else {}
            keys = [*(key for key in order if key in value), *(key for key in value if key not in order)]
            for key in reversed(keys[:_MAX_WALKED]):
                label = (*leaf.label, *name_words(key, lang))[-MAX_LABEL_WORDS:]
                argument = key if leaf is root else leaf.argument
                is_named = bool(name_words(key, lang)) and (key in order or _PLAIN_NAME.fullmatch(key))
                exact = leaf.exact and bool(is_named)
                item = Leaf(argument, label, value[key], nested=leaf is not root, exact=exact)
                stack.append((item, order.get(key)))
        elif isinstance(value, list | tuple) and value:
            for index in reversed(range(min(len(value), _MAX_WALKED))):
                item = replace(leaf, value=value[index], index=index, size=len(value))
                stack.append((item, schema.get("items")))
        elif leaf is not root:
            yield leaf


def name_words(name: str, lang: Vocabulary) -> Words:
    """Split a dotted, underscored or camel-case name into words, unless they could pass for the prompt's."""
    cut = _CAMEL.sub(" ", unicodedata.normalize("NFKC", name[: 2 * MAX_NAME_CHARS])[: 2 * MAX_NAME_CHARS])
    words = tuple(word.lower() for word in _NAME_WORD.findall(cut))
    while len(" ".join(words)) > MAX_NAME_CHARS:
        words = words[:-1]
    return words if len(words) < 3 or not is_framing(" ".join(words), lang) else ()


def is_framing(text: str, lang: Vocabulary) -> bool:
    """Return whether a text could pass for the prompt's own words."""
    return bool(lang.sets["framing"] & set(lang.words(text)))


def clean(text: str) -> str:
    """Remove invisible characters and spoken punctuation, and collapse spaces."""
    # Cut before and after: the text may be a megabyte, and NFKC makes up to 18 characters of one.
    text = unicodedata.normalize("NFKC", text[: 4 * MAX_VALUE_CHARS])[: 4 * MAX_VALUE_CHARS]
    printable = "".join(" " if c.isspace() else c if unicodedata.category(c)[0] != "C" else "" for c in text)
    return " ".join(_ENDS.sub(" ", _MARKS.sub(" ", _ENDS.sub(" ", printable))).split())


def _is_exact(text: str) -> bool:
    return "".join(clean(text).split()) == "".join(unicodedata.normalize("NFC", text).split())


def listed(texts: Sequence[str]) -> str:
    """Join texts by commas and an "and"."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def render(leaf: Leaf, lang: Vocabulary) -> Leaf:
    """Render a value: an opaque id by its end, a long text by its beginning, a secret not at all."""
    forms, value = lang.data["said"], leaf.value
    # Other people may hear the device.
    if any(leaf.label[-len(phrase) :] == phrase for phrase in lang.secrets):
        return replace(leaf, text=forms["secret"], exact=False)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return replace(
            leaf, text=forms["true" if value is True else "false" if value is False else "nothing"]
        )
    word = value[: 4 * MAX_VALUE_CHARS].strip()
    # Only a value that is an id as a whole: the text around an id would be lost.
    if len(value) <= 4 * MAX_VALUE_CHARS and (_UUID.fullmatch(word) or _OPAQUE.fullmatch(word)):
        return replace(leaf, text=forms["id"].format(re.sub("[^0-9A-Za-z]", "", word)[-4:]))
    beginning, end = clean(value), ""
    long = len(value) > 4 * MAX_VALUE_CHARS or len(beginning) > MAX_VALUE_CHARS
    leaf = replace(leaf, exact=leaf.exact and not long and _is_exact(value))
    if long and "/" in word and " " not in word:
        end = re.split(r"[/\\]", clean(value[-MAX_VALUE_CHARS // 2 :]))[-1]
    if long:
        beginning = beginning[: MAX_VALUE_CHARS // 2].rpartition(" ")[0] or beginning[: MAX_VALUE_CHARS // 3]
    words = lang.words(f"{beginning} {end}")
    # Of a value that sounds like an answer or an instruction only the length is read out.
    if not words or any(phrase_at(words, at, lang.mimics) for at in range(len(words))):
        return replace(leaf, text=forms["text"].format(len(value)), exact=leaf.exact and not value.strip())
    if lang.sets["framing"] & {*words}:  # it could pass for the prompt
        text = forms["quoted"].format(beginning)
    else:
        text = f"\u201c{beginning}\u201d" if " " in beginning else beginning
    text = forms["ends"].format(text, end) if end else text
    if long:
        return replace(leaf, text=forms["long"].format(len(value), text))
    return replace(leaf, text=text, words="" if lang.sets["framing"] & {*words} else beginning)

"""The values of a call as they are said.

What the ear would lose has a name, or cannot be said at all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from conductor.plugins.judges.page import Page, Words

# Values that are said, characters of a value, of all values, and of a name; words of a label.
MAX_LEAVES = 12
MAX_VALUE_CHARS = 200
MAX_SAID_CHARS = 240
MAX_NAME_CHARS = 60
MAX_LABEL_WORDS = 4
# From so many words on a text is dictated: what follows it may belong to it.
DICTATED_WORDS = 4

_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAME_WORD = re.compile(r"[^\W\d_]+|\d+")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
# Hexadecimal digits, an IBAN, a VIN, a key: one word of letters and digits that nobody hears.
_OPAQUE = re.compile(
    r"(?=.*\d)[0-9a-f-]{16,}|(?=(?:.*\d){4})(?=.*[a-z])[0-9a-z]{12,}=*", re.IGNORECASE | re.ASCII
)
# Seconds since 1970, or an id; a number with a zero or a plus in front is dialled.
_LONG_NUMBER = re.compile(r"[1-9]\d{9,}")
_IBAN = re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,4})?")
_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::00)?")
# "$5", "12,50 \u20ac", "1.200 EUR": cents are two digits behind any mark.
_PRICE = re.compile(r"(?:(\D{1,3}) ?)?(\d{1,3}(?:[., ]\d{3})+|(\d+))(?:[.,](\d{2}))?(?: ?(\D{1,3}))?")
# Signs of prose, where they stand as prose has them.
_ENDS = re.compile(r"(?<=[\w%'\"\u201d\u2019)])[.,;:!?\u2026]+(?=[\s\"'\u201d\u2019)]|$)")
_END = re.compile(r"(?<=[^\W_])[.!]+$")
_QUOTES = re.compile(
    r"(?<!\S)[\"'(\u201c\u201e\u2018\u00ab\u00bf\u00a1]+(?=\w)|(?<=[\w,])[\"')\u201d\u2019\u00bb]+(?=\s|,|$)"
)
_DASHES = re.compile(r"(?<=\w) [-\u2013\u2014] (?=\w)")
_INNER = re.compile(r"(?<=[^\W\d_])['\u2019-](?=[^\W\d_])|(?<=\d)[.](?=\d)|(?<=\d):(?=\d)")
_CODE = frozenset("<>=*~|^\\{}[]`_")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a call. A list of plain values is one leaf with several ``values``.

    ``argument`` is the top-level argument, ``label`` names the value's place. ``text`` is what is said, None
    if the value cannot be said as it is; ``words`` are its words in the order in which they are said.
    """

    argument: str | None
    label: Words
    values: tuple[Any, ...]
    is_list: bool = False
    is_named: bool = True
    text: str | None = None
    words: Words = ()


def leaves(arguments: Mapping[str, Any], schema: Mapping[str, Any], page: Page) -> Iterator[Leaf]:
    """Return all values in the schema's order, without the empty ones that are not required."""
    yield from _leaves(Leaf(None, (), (arguments,)), arguments, schema, page, required=True)


def _leaves(place: Leaf, value: Any, schema: Any, page: Page, *, required: bool) -> Iterator[Leaf]:
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping) and value:
        known = schema.get("properties")
        known = known if isinstance(known, Mapping) else {}
        needed = schema.get("required")
        needed = needed if isinstance(needed, list) else []
        for key in (*(key for key in known if key in value), *(key for key in value if key not in known)):
            words = name_words(key)
            inner = replace(
                place,
                argument=key if place.argument is None else place.argument,
                label=(*place.label, *words)[-MAX_LABEL_WORDS:],
                is_named=place.is_named and bool(words) and sayable(key),
            )
            yield from _leaves(inner, value[key], known.get(key), page, required=key in needed)
    elif (
        isinstance(value, list | tuple)
        and value
        and any(isinstance(item, Mapping | list | tuple) for item in value)
    ):
        for item in value:
            yield from _leaves(place, item, schema.get("items"), page, required=True)
    elif isinstance(value, list | tuple) and value:
        yield replace(place, values=tuple(value), is_list=True)
    elif place.argument is not None and (required or value not in (None, "", [], {})):
        yield replace(place, values=(value,))


def name_words(name: str) -> Words:
    """Split a dotted, underscored or camel-case name into small words."""
    cut = _CAMEL.sub(" ", unicodedata.normalize("NFKC", name[:MAX_NAME_CHARS]))
    return tuple(word.lower() for word in _NAME_WORD.findall(cut))


def sayable(name: str) -> bool:
    """Return whether the words of a name are all of it."""
    return (
        bool(re.fullmatch(r"[^\W_]+(?:[_.\s-][^\W_]+)*", name))
        and len(name) <= MAX_NAME_CHARS
        and is_latin(name)
    )


def is_latin(text: str) -> bool:
    """Return whether all letters of a text are Latin: a voice of these languages reads no others."""
    return all(
        not c.isalpha() or unicodedata.name(c, "").startswith(("LATIN ", "FEMININE ", "MASCULINE "))
        for c in text
    )


def said(leaf: Leaf, page: Page, zone: str | None) -> Leaf:
    """Put a leaf into words."""
    texts = [say(value, page, zone) for value in leaf.values[: MAX_LEAVES + 1]]
    if not leaf.is_named or len(leaf.values) > MAX_LEAVES or None in texts:
        return leaf
    text = listed([text for text in texts if text is not None], page)
    plain = [_unquoted(text, page) for text in texts if text is not None]
    return replace(leaf, text=text, words=page.words(listed(plain, page)))


def _unquoted(text: str, page: Page) -> str:
    before, _, after = page.sentences["quoted"].partition("{}")
    return text.removeprefix(before).removesuffix(after) if text.startswith(before) else text


def listed(texts: Sequence[str], page: Page) -> str:
    """Join texts as a person does."""
    *before, last = texts
    return f"{', '.join(before)} {page.sentences['and']} {last}" if before else last


def say(value: Any, page: Page, zone: str | None) -> str | None:
    """Say one value; None if it cannot be said as it is."""
    if value is None or value in ("", [], {}):
        return page.sentences["empty"]
    if isinstance(value, bool):
        return page.sentences["true" if value else "false"]
    if isinstance(value, int | float):
        return number(value, page)
    text = unicodedata.normalize("NFC", str(value)).strip()
    if len(text) > MAX_VALUE_CHARS:
        return None
    return _known_form(text, page, zone) or _text(text, page)


def number(value: float, page: Page) -> str | None:
    """Say a number, a long one by its end."""
    text = repr(value)
    if not re.fullmatch(r"-?\d{1,15}(?:\.\d{1,6})?", text):
        return None
    if isinstance(value, int) and any(second <= value < 5 * second for second in (10**9, 10**12)):
        return _end(text, page)  # an epoch, in seconds or milliseconds
    sign = f"{page.names['minus']} " if text[0] == "-" else ""
    return sign + text.lstrip("-").removesuffix(".0").replace(".", page.decimal)


def _known_form(text: str, page: Page, zone: str | None) -> str | None:
    """Say what people have a form for: an id by its end, a day and a time in words."""
    if (
        _UUID.fullmatch(text)
        or _OPAQUE.fullmatch(text)
        or _LONG_NUMBER.fullmatch(text)
        or _IBAN.fullmatch(text)
    ):
        return _end(text, page)
    try:
        if _MOMENT.fullmatch(text):
            return _moment(datetime.fromisoformat(text), page, zone)
        if day := _DAY.fullmatch(text):
            return _day(date(*map(int, day.groups())), page)
    except ValueError:  # no such day
        return None
    if (price := _PRICE.fullmatch(text)) and (money := page.currency(price[1] or price[5] or "")):
        return amount(int(re.sub("[., ]", "", price[2] or price[3]) or 0), int(price[4] or 0), money, page)
    if time := _TIME.fullmatch(text):
        return _time(int(time[1]), int(time[2]), page)
    return None


def amount(whole: int, cents: int, money: str, page: Page) -> str:
    """Say an amount of a currency, which `Page.currency` names."""
    name = next(name for name in page.currencies if page.currency(name) == money)
    return f"{whole} {name} {cents:02}" if cents else f"{whole} {name}"


def _end(text: str, page: Page) -> str:
    last = re.sub(r"[^0-9A-Za-z]", "", text)[-4:]
    return page.sentences["ending"].format(" ".join(last))


def _moment(moment: datetime, page: Page, zone: str | None) -> str | None:
    if moment.second or moment.microsecond:
        return None
    place = ""
    if moment.tzinfo is not None and zone:
        moment = moment.astimezone(ZoneInfo(zone))
    elif moment.tzinfo is not None:
        moment, place = moment.astimezone(UTC), " UTC"
    return (
        page.dates["moment"].format(_day(moment.date(), page), _time(moment.hour, moment.minute, page))
        + place
    )


def _day(day: date, page: Page) -> str:
    weekday = page.dates["weekdays"].split()[day.weekday()]
    return page.dates["day"].format(weekday, day.day, page.dates["months"].split()[day.month - 1], day.year)


def _time(hour: int, minute: int, page: Page) -> str:
    half = page.dates["halves"].split()
    if half:
        hour, name = (hour % 12 or 12), half[hour // 12]
        return f"{hour}:{minute:02} {name}" if minute else f"{hour} {name}"
    form = page.dates["time" if minute else "hour"]
    return form.format(hour, f"{minute:02}")


def _text(text: str, page: Page) -> str | None:
    """Say a text: signs by their names, punctuation as pauses. None where the ear would lose something."""
    if not is_latin(text) or any(unicodedata.category(c)[0] == "C" and not c.isspace() for c in text):
        return None
    plain = " ".join(text.split())
    is_code = not _CODE.isdisjoint(plain)
    if " " not in plain:  # a name or a pattern: "a?" is not "a"
        plain = _END.sub("", plain)
    else:
        plain = _ENDS.sub("" if is_code else ",", plain)
    if not is_code and " " in plain:
        plain = _QUOTES.sub("", plain)
    plain = _DASHES.sub(", ", plain).strip(", ")
    pieces: list[str] = []
    for at, sign in enumerate(plain):
        if (
            sign.isalpha()
            or sign.isdecimal()
            or sign.isspace()
            or (sign == "," and plain[at + 1 : at + 2] in (" ", ""))
        ):
            pieces.append(sign)
        elif _INNER.match(plain, at) or unicodedata.category(sign) == "Mn":
            pieces.append(sign)
        elif sign == "-" and (at == 0 or plain[at - 1].isspace()) and plain[at + 1 : at + 2].isdigit():
            pieces.append(f" {page.names['minus']} ")
        elif sign in page.names:
            pieces.append(f" {page.names[sign]} ")
        else:
            return None
    spoken = " ".join("".join(pieces).split())
    words = page.words(spoken)
    if not words:
        return None
    if page.framing.isdisjoint(words):
        return spoken
    # It could pass for our own sentences, or ask for the answer itself.
    return None if _is_mimic(words, page) else page.sentences["quoted"].format(spoken)


def _is_mimic(words: Words, page: Page) -> bool:
    if not page.quotes.isdisjoint(words):
        return True
    return any(run in page.framing_runs for run in zip(words, words[1:], words[2:], strict=False))

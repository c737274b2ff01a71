"""Sums as people say them, turned into the calculator's expressions: "17% of 2340" is (17 / 100) * 2340."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMBERS = {word: value for value, word in enumerate(_SMALL)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}

_LEAD = re.compile(
    r"(?:what(?:'s|\u2019s| is| are| does)|how much (?:is|are|does)|calculate|compute|work out|evaluate|solve"
    r"|tell me|do)\s+(?:the (?:result|value|answer) of\s+)?",
    re.IGNORECASE,
)
_PHRASES = {
    "raised to the power of": "**",
    "to the power of": "**",
    "multiplied by": "*",
    "divided by": "/",
    "square root of": "sqrt",
    "factorial of": "factorial!",
    "per cent": "percent",
    "percent": "percent",
    "squared": "squared",
    "cubed": "cubed",
    "factorial": "!",
    "half of": "half",
    "modulo": "mod",
    "mod": "mod",
    "times": "*",
    "over": "/",
    "plus": "+",
    "minus": "-",
    "of": "of",
    "pi": "pi",
    "the": "",
    "x": "*",
    "**": "**",
    "^": "**",
    "%": "%",
    "!": "!",
    "+": "+",
    "-": "-",
    "\u2212": "-",
    "*": "*",
    "\u00d7": "*",
    "\u00b7": "*",
    "/": "/",
    "\u00f7": "/",
    "(": "(",
    ")": ")",
}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)|(?P<phrase>"
    + "|".join(re.escape(phrase) + (r"(?![a-z])" if phrase[-1].isalpha() else "") for phrase in _PHRASES)
    + "))"
)
_OPERAND_NEXT = re.compile(r"\s*[\d(.]")
_OPERATORS = {"+": "+", "-": "-", "*": "*", "/": "/", "**": "**", "of": "*", "mod": "%"}
_SPOKEN = {"+": "plus", "-": "minus", "*": "times", "/": "divided by", "**": "to the power of"}
_SPOKEN |= {"^": "to the power of", "\u00d7": "times", "\u00f7": "divided by", "\u2212": "minus"}


def digits(text: str) -> str:
    """Write number words as digits: "twenty five times one hundred and two" is "25 times 102"."""
    kept: list[str] = []
    total: int | None = None
    current = 0
    words = re.sub(
        r"(?i)\b(twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)-(?=[a-z])", r"\1 ", text
    ).split()
    for index, word in enumerate(words):
        plain = word.casefold()
        follows = index + 1 < len(words) and words[index + 1].casefold() in _NUMBERS
        if total is not None and plain in _SCALES:
            current = max(current, 1) * _SCALES[plain]
            if plain != "hundred":
                total, current = total + current, 0
        elif total is not None and plain in _NUMBERS and (not current or _fits(current, _NUMBERS[plain])):
            current += _NUMBERS[plain]
        elif total is not None and plain == "and" and follows and (current % 100 == 0):
            continue
        else:
            if total is not None:
                kept.append(str(total + current))
            total, current = (0, _NUMBERS[plain]) if plain in _NUMBERS else (None, 0)
            if total is None:
                kept.append(word)
    return " ".join([*kept, str(total + current)] if total is not None else kept)


def _fits(current: int, value: int) -> bool:
    """Say whether a number word goes on with the number before it: in "twenty five" it does."""
    return current % 100 == 0 or (current % 100 >= 20 and current % 10 == 0 and 0 < value < 10)


@dataclass
class _Expression:
    """An expression that grows token by token, and knows what may come next."""

    parts: list[str] = field(default_factory=list)
    wants_operand: bool = True
    depth: int = 0
    worked: bool = False  # an operator or a function was seen: a lone number is no sum

    def operand(self, text: str) -> bool:
        if not self.wants_operand:
            return False
        if self.parts and self.parts[-1] in ("sqrt", "factorial"):
            text = f"{self.parts.pop()}({text})"
        self.parts.append(text)
        self.wants_operand = False
        return True

    def operator(self, text: str) -> bool:
        self.worked = True
        if self.wants_operand:
            self.parts.append("-")
            return text == "-"
        self.parts.append(text)
        self.wants_operand = True
        return True

    def postfix(self, pattern: str, after: str) -> bool:
        """Apply to the operand before: to a number by ``pattern``, to a bracket by writing ``after``."""
        self.worked = True
        if self.wants_operand:
            return False
        if self.parts[-1] != ")":
            self.parts[-1] = pattern.format(self.parts[-1])
        elif after:
            self.parts.append(after)
        return self.parts[-1] != ")"

    def bracket(self, text: str) -> bool:
        opens = text == "("
        if opens != self.wants_operand:
            return False
        self.depth += 1 if opens else -1
        self.parts.append(text)
        return self.depth >= 0

    def take(self, token: str) -> bool:
        """Add one token; False if it cannot stand here."""
        match token:
            case "sqrt" | "factorial!":
                self.worked = True
                self.parts.append(token.rstrip("!"))
                return self.wants_operand
            case "(" | ")":
                return self.bracket(token)
            case "half":
                return self.operand("0.5") and self.operator("*")
            case "squared":
                return self.postfix("{} ** 2", "** 2")
            case "cubed":
                return self.postfix("{} ** 3", "** 3")
            case "percent":
                return self.postfix("({} / 100)", "/ 100")
            case "!":
                return self.postfix("factorial({})", "")
            case _ if token in _OPERATORS:
                return self.operator(_OPERATORS[token])
            case _:
                return self.operand(token.replace(",", ""))

    @property
    def text(self) -> str:
        return " ".join(self.parts).replace("( ", "(").replace(" )", ")").replace("sqrt (", "sqrt(")


def sum_of(clause: str) -> tuple[str, str] | None:
    """Return (how it was said, the expression) if the whole clause is a sum, else None."""
    said = digits(clause.strip(" ?.=,"))
    if lead := _LEAD.match(said):
        said = said[lead.end() :]
    said = re.sub(r"(?i)\s+equals?$", "", said)
    tokens = _tokens(said.casefold())
    expression = _Expression()
    if not tokens or not all(expression.take(token) for token in tokens):
        return None
    if expression.wants_operand or expression.depth or not expression.worked:
        return None
    return spoken_sum(said), expression.text


def _tokens(text: str) -> list[str] | None:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        token = match["number"] or _PHRASES[match["phrase"]]
        position = match.end()
        if token == "%":
            # "10 % 3" is a remainder; "17% of" and "17%" are parts of a hundred.
            token = "mod" if _OPERAND_NEXT.match(text, position) else "percent"
        if token:
            tokens.append(token)
    return tokens


def spoken_sum(said: str) -> str:
    """Put operators into words where they stand alone: a voice reads "*" as "asterisk"."""
    said = re.sub(r"(?<=[\d)])\s*(\*\*|[*+/^\u00d7\u00f7\u2212-])\s*(?=[\d(.])", r" \1 ", said)
    return " ".join(_SPOKEN.get(word, word) for word in said.split())

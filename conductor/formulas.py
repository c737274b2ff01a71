"""Formulas in LaTeX as text for a voice: no commands, braces or dollar signs."""

from __future__ import annotations

import re

from conductor import possessive

_INSIDE = r"(?:[^\\]|\\(?![()\[\]]))++"
# A dollar sign is also money: a formula has no blank at its ends, and is one letter or has a sign
# of LaTeX.
_FORMULA = possessive.compile(
    rf"\$\$([^$]{{1,2000}}+)\$\$|\\\(({_INSIDE})\\\)|\\\[({_INSIDE})\\\]"
    r"|(?<![\w$\\])\$(?=[^\s$])([^$\n]{1,300}+)(?<=\S)\$(?![\w$])"
    r"|\\begin\{[a-z]{1,20}\*?\}((?:[^\\]|\\(?!begin\{|end\{))++)\\end\{[a-z]{1,20}\*?\}"
)
_SIGN = re.compile(r"[\\^_={}]|\A[A-Za-z]\Z")
# A command with braces outside of a formula; a path of Windows has none.
_LONE = possessive.compile(r"(?:\\[a-zA-Z]{2,20}(?:\{[^{}\n]{0,200}+\}){1,2}+)++")
_FRACTION = re.compile(r"\\[dt]?frac\s*+\{([^{}]*+)\}\s*+\{([^{}]*+)\}")
_ROOT = re.compile(r"\\sqrt\s*+\{([^{}]*+)\}")
_STYLED = re.compile(r"\\(?:text|math|operator|overline|boxed|mbox|vec|hat|bar)[a-z]*+\s*+\{([^{}]*+)\}")
_POWER = re.compile(r"\^(?:\{([^{}]*+)\}|(.))")
_INDEX = re.compile(r"_(?:\{([^{}]*+)\}|(.))")
_DEGREES = re.compile(r"\s*+\^?(?:\{\\circ\}|\\circ(?![a-z]))\s*+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[^{}]*+\}(?:\{[lcr| ]++\})?")  # within dollar signs
_COMMAND = re.compile(r"\\([a-zA-Z]++|.)", re.DOTALL)
_POWERS = str.maketrans("0123456789+-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ")
_SIGNS = {
    **{"times": "×", "cdot": "×", "div": "÷", "pm": "±", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥"},
    **{"ne": "≠", "neq": "≠", "approx": "≈", "infty": "∞", "to": "→", "rightarrow": "→"},
    **{"dots": "…", "ldots": "…", "cdots": "…", "sum": "∑", "int": "∫", "\\": ",", "%": "%", "$": "$"},
    **dict.fromkeys(("left", "right", "big", "displaystyle", "!"), ""),
    **dict.fromkeys((",", ";", ":", " ", "quad", "qquad"), " "),
}
# Levels of braces that are read; of others only the signs go.
_LEVELS = 4


def in_words(text: str) -> str:
    """Return the text with each formula as prose; other text stays as it is."""
    if "$" not in text and "\\" not in text:
        return text
    return _LONE.sub(lambda match: _plain(match[0]), _FORMULA.sub(_formula, text))


def _formula(match: re.Match[str]) -> str:
    content = next(group for group in match.groups() if group is not None)
    return _plain(content) if match[4] is None or _SIGN.search(content) else match[0]


def _plain(formula: str) -> str:
    formula = _ENVIRONMENT.sub("", _DEGREES.sub("°", formula))
    for _ in range(_LEVELS):
        former = formula
        for pattern, form in ((_STYLED, r"\1"), (_ROOT, r"√\1"), (_FRACTION, r"\1/\2")):
            formula = pattern.sub(form, formula)
        if formula == former:
            break
    formula = _POWER.sub(_power, formula)
    formula = _INDEX.sub(lambda match: f" {match[1] or match[2]}", formula)
    formula = _COMMAND.sub(_command, formula).translate(str.maketrans("&", " ", "{}"))
    return " ".join(formula.split())


def _power(match: re.Match[str]) -> str:
    power = match[1] if match[1] is not None else match[2]
    raised = power.translate(_POWERS)
    return raised if not set(raised) & set(power) else f"^{power}"


def _command(match: re.Match[str]) -> str:
    name = match[1]
    sign = _SIGNS.get(name, name)
    return f" {sign} " if name.isalpha() and sign else sign

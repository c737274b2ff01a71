"""The forms of secrets and of paths in a text: the tables that a redactor applies.

Each takes linear time: a pattern reads few characters before it decides, takes the remainder possessively,
and never reads them again. `CONTEXTS`, `ASSIGNED` and `SECRET_NAME` are searched in a text in lower case in
which a question mark stands for each character that is not ASCII.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from conductor import possessive

Pattern: TypeAlias = tuple[str, re.Pattern[str]]
"""A literal that each match contains, and the pattern."""

# Characters: a shorter text is as likely to be a word as a secret.
MIN_SECRET = 6

# -- tokens and keys, by their first characters

_ALNUM, _HEX, _WORD, _DOTS = "[A-Za-z0-9]", "[A-Fa-f0-9]", r"[\w-]", r"(?:\.?[\w-])"
_KEYS = (
    # Prefixes, the characters that follow, and the least number of them.
    ("sk-(?=[A-Za-z_-]{0,64}[0-9])", _WORD, 20),  # of several providers; without a digit it may be words
    ("gh[posur]_ npm_ hf_ api_org_ gsk_ r8_ fw_ sbp_", _ALNUM, 30),
    ("gl(?:pat|dt|rtr?|cbt|ptt|ft|soat|imt|agent|ffct|oas|wt)-", _WORD, 16),
    ("A[KS]IA ABIA ACCA", "[A-Z0-9]", 16),
    ("xox[a-z]- xapp-", _WORD, 10),
    ("AIza gl(?:c|sa)_", _WORD, 30),
    ("github_pat_ dckr_[op]at_ pypi-AgEI fig[dour]_ sntry[su]_ pscale_(?:tkn|pw|oauth)_", _WORD, 22),
    ("GOCSPX- A[TC]TT3 sq0(?:atp|csp)- tskey- nvapi- tvly- lsv2_(?:pt|sk)_", _WORD, 20),
    ("[rs]k_(?:live|test|prod)_ whsec_", _ALNUM, 10),
    ("xai- pplx- ntn_ lin_(?:api|oauth)_ CCIPAT_", _ALNUM, 32),
    ("do[opr]_v1_ shp(?:at|ca|pa|ss)_ dapi rubygems_", _HEX, 32),
    ("AGE-SECRET-KEY-1 NRAK- HRKU-", "[A-Z0-9-]", 27),
    (r"SG\.(?=[\w-]{16,64}\.)", _DOTS, 32),
    (r"hv[bsr]\. dp\.(?:ct|pt|sa|scim|st)\. dt0c01\.", _DOTS, 24),
)
# Characters of the shortest run that is compared with `TOKENS`: most words are shorter.
_MIN_TOKEN = 15
_DOTTED = r"(?:SG|hv[bsr]|dp\.[a-z]{2,4}|dt0c01|ya29)\."

RUNS = possessive.compile(
    # Skips shorter words, so that it fails nowhere; an escape is not part of the run after it.
    r"(?:[^\w\\%-]++|\\(?:[nrt]|u[0-9A-Fa-f]{4})?+|%(?:[0-9A-Fa-f]{2})?+"
    rf"|(?!{_DOTTED})[\w-]{{1,{_MIN_TOKEN - 1}}}+(?![\w-]))*+(?:(?P<run>(?:{_DOTTED})?[\w-]++)|\Z)",
    re.ASCII,
)
"""Finds one run after the other that is long enough for `TOKENS`, which match at its start."""

TOKENS = possessive.compile(
    r"(?P<jwt>eyJ[\w-]{8,}+(?:\.[\w-]*+){2}(?:(?:\.[\w-]*+)?\.[\w-]++)?)"  # an encrypted one has five parts
    r"|(?P<token>ya29\.[\w-]{20,}+|[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}+)"
    r"|(?P<api_key>(?:"
    + "|".join(f"(?:{'|'.join(prefixes.split())}){body}{{{least},}}+" for prefixes, body, least in _KEYS)
    + r")[\w-]*+)",
    re.ASCII,
)


# -- secrets and paths, by the text around them

BEARER = re.compile(
    # A digit, a sign or mixed case, or too long for a word: "bearer authentication" is prose.
    r"([Bb][Ee][Aa][Rr][Ee][Rr](?:(?<![\w-]......)|(?<=\\[nrt]......))(?:[ \t]{1,4}|%20|\+))"
    r"(?=[\w.~+/=-]{24}|[A-Za-z./-]{0,23}?(?:[0-9_~+=]|[a-z][A-Z]|[A-Z]{2}[a-z]))[\w.~+/=-]{8,}+",
    re.ASCII,
)
USER_INFO = re.compile(r"""(:\\?/\\?/[^\s/?#:@"'<>\\]{0,256}+:)(?!\[REDACTED:)[^\s/?#"'<>\\]{1,512}(?=@)""")
_STOPS = r"""\s"'`,;&<>\\"""
_PLAIN = rf"""(?:[^{_STOPS}]|\\(?![nrtbfu"'`\\/]))"""  # of a value without quotes
_ENDED = r"(?<![.!?:)}*])"  # the punctuation of a sentence is not part of a value
_WORDS = rf"[a-z?]++(?!{_PLAIN})"
_PEM = r"[a-z0-9 ]{0,40}private key(?: block)?-----"
_BASE64_LINES = r"(?:[\w+/=:,-]++|\s(?!\0))*+"  # NUL follows the last line of each text of a value


def _compiled(*patterns: tuple[str, str]) -> tuple[Pattern, ...]:
    return tuple(
        (literal, possessive.compile(pattern, re.ASCII | re.MULTILINE)) for literal, pattern in patterns
    )


# The last group of each pattern is named after its kind.
CONTEXTS = _compiled(
    (
        "-----begin",
        rf"(?P<private_key>-----begin {_PEM}(?:[^-\0]*+(?:-(?!----)[^-\0]*+)*+-----end {_PEM}"
        # Without its end the key takes all lines that look like Base64.
        rf"|{_BASE64_LINES}(?:\\{{1,7}}[nrt]{_BASE64_LINES})*+))",
    ),
    (
        "hooks",
        r"(?P<token>hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{16,}+"
        r"|discord(?:app)?\.com/api/webhooks/[0-9]{8,}+/[\w-]{20,}+)",
    ),
    (
        "authorization",
        r"""authorization(?:\\{0,7}["'`])?\]?[ \t]{0,4}[:=]>?[ \t]{0,8}"""
        rf"(?P<bearer>(?:aws4-hmac-sha256|digest)[ \t][^\r\n\"'\\]+{_ENDED}"
        rf"|(?:bearer|basic|token|apikey|negotiate|bot)[ \t]{{1,4}}+{_PLAIN}+{_ENDED}"
        rf"|(?!{_WORDS}){_PLAIN}{{{MIN_SECRET},}}{_ENDED})",
    ),
    (
        "cookie",
        # A quoted cookie continues after its quotes, which are not the quotes around the header.
        r"cookie(?:\\{0,7}[\"'`])?[ \t]{0,4}:[ \t]{0,8}(?P<token>(?=[\w.-]{1,64}=)[^\r\n\"'\\]++"
        r"(?:(?<==)\"(?![\s,:}\]])[^\"\r\n\\]{1,4096}\"[^\r\n\"'\\]*+)*+)",
    ),
)

_SECRET = (
    r"(?:pass(?:word|wd|phrase|code)|pass(?<=[_-]pass)|secret|credential|authorization|jwt|cookie"
    # Other tokens are positions in a list, or words of a model's vocabulary.
    r"|token(?<!pagetoken|nexttoken|synctoken)(?<!(?:page|next|sync|stop|mask)[_-]token)"
    r"(?<!(?:max|eos|bos|pad|sep)[_-]token)"
    r"|(?:access|account|api|auth|encryption|master|private|secret|shared|signing|subscription)[_-]?key)s?+"
)
SECRET_NAME = re.compile(rf"{_SECRET}\Z")
_SIGNS = r"[ \t]{0,4}(?:=>|:=|[:=])[ \t]{0,8}"
ASSIGNED = re.compile(
    rf"""{_SECRET}(?:(?:\\{{0,7}}["'`])?\]?{_SIGNS}(?P<quote>\\{{0,7}}["'`])"""
    rf"|(?:[ \t]{{0,4}}=|(?<=-token|..-key):(?![ \t]{{0,8}}{_WORDS}))(?![=:/])[ \t]{{0,8}}"
    rf"(?P<value>{_PLAIN}{{{MIN_SECRET},}}+))",
    re.ASCII,
)
"""``name=value``, ``"name": "value"`` and headers such as ``X-Api-Key: value``."""

_ROOTS = (
    "home|Users|root|tmp|var|etc|opt|usr|mnt|media|srv|run|proc|sys|private|Volumes|Library|Applications|"
    "boot|lib|bin|sbin|dev"
)
_PATH_STOPS = r"""\s"'`<>|:;,()\[\]{}*?&=\\"""
_FILE = r"""[^\\/:*?"'<>|\r\n\t,;\[\]]{1,255}"""
# A path within a URL does not count, except after ``file://``.
PATHS = _compiled(
    (
        ":",
        # The separator is doubled in JSON; a single backslash is then an escape and ends the path.
        r"(?P<path>[A-Za-z]:(?<![\w-]..)(?:(?<!/..)|(?<=file:///..))(?P<sep>\\{1,4}|/)(?![\\/])"
        rf"(?:{_FILE}(?P=sep)(?![\\/])){{0,64}}[^/{_PATH_STOPS}]{{0,255}})",
    ),
    (
        "/",
        # The roots first: most slashes do not precede one.
        r""":(?<!file:)//[^\s"'`<>|,()]*+"""
        rf"|(?P<path>(?=\\?/(?:{_ROOTS})(?![\w-]))(?:(?<![\w./~-])|(?<=\\[nrt])|(?<=file://))"
        rf"\\?/[^{_PATH_STOPS}]*+(?:\\/[^{_PATH_STOPS}]*+)*+)",
    ),
)

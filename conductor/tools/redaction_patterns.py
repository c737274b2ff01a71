"""What secrets and paths look like in a text: the tables that a redactor applies.

All of it is linear: what a pattern reads before it decides is short, what it takes after that it takes
possessively, and what was taken is not looked at again. `PLACES` and `ASSIGNED` are searched in a text in
lower case in which a question mark stands for each character that is not ASCII.
"""

from __future__ import annotations

import re

# Characters: a shorter text is as likely to be a word as a secret.
MIN_SECRET = 6

MARKER = re.compile(r"\[REDACTED:[a-z_]{1,16}\]")


KINDS = tuple("api_key bearer jwt nested password path private_key rest secret token".split())


def mark(kind: str) -> str:
    """Write what stands for a redacted text."""
    return f"[REDACTED:{kind}]"


# -- secrets that show what they are by how they begin

_ALNUM, _HEX, _WORD, _DOTS = "[A-Za-z0-9]", "[A-Fa-f0-9]", r"[\w-]", r"(?:\.?[\w-])"
_KEYS = (
    # How it begins, which characters follow, and how many of them at least.
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
# Characters of the shortest run that is held against `TOKENS`: most words are shorter.
MIN_TOKEN = 15
_DOTTED = r"(?:SG|hv[bsr]|dp\.[a-z]{2,4}|dt0c01|ya29)\."

RUNS = re.compile(
    # Steps over all that is too short, so that it fails nowhere; an escape is no part of the run after it.
    r"(?:[^\w\\%-]++|\\(?:[nrt]|u[0-9A-Fa-f]{4})?+|%(?:[0-9A-Fa-f]{2})?+"
    rf"|(?!{_DOTTED})[\w-]{{1,{MIN_TOKEN - 1}}}+(?![\w-]))*+(?:(?P<run>(?:{_DOTTED})?[\w-]++)|\Z)",
    re.ASCII,
)
"""Finds one run after the other that is long enough for `TOKENS`, which match where it starts."""

TOKENS = re.compile(
    r"(?P<jwt>eyJ[\w-]{8,}+(?:\.[\w-]*+){2}(?:(?:\.[\w-]*+)?\.[\w-]++)?)"  # an encrypted one has five parts
    r"|(?P<token>ya29\.[\w-]{20,}+|[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}+)"
    r"|(?P<api_key>(?:"
    + "|".join(f"(?:{'|'.join(starts.split())}){body}{{{least},}}+" for starts, body, least in _KEYS)
    + r")[\w-]*+)",
    re.ASCII,
)

# -- secrets by their names

_NAMES = (
    # How the name of a secret ends, however its words are put together.
    ("password", "password, passwords, pass wd, pass phrase, pass code, _pass, -pass"),
    ("pwd", "pwd"),  # a password or the working directory
    (
        "token",
        "token, access tokens, auth tokens, api tokens, refresh tokens, jwt, session cookie, auth cookie",
    ),
    (
        "api_key",
        "api key, api keys, access key, secret key, account key, shared key, auth key, signing key, "
        "encryption key, master key, subscription key",
    ),
    ("private_key", "private key"),
    ("secret", "secret, secrets, credential, credentials"),
    ("bearer", "authorization"),
    ("cookie", "cookie, cookies"),
    ("auth", "auth"),  # as Docker has it: user and password in Base64
)
# Tokens that open nothing: places in a list, and, as whole words, words of a model's vocabulary.
_LISTS = "page, next, continuation, sync, cursor"
_VOCABULARY = (
    "prev, previous, resume, resumption, scroll, start, end, stop, eos, bos, pad, unk, mask, sep, cls, per, "
    "special, image, delta"
)


def _backwards(words: str) -> str:
    return "|".join(word[::-1].replace(" ", r"[\W_]?") for word in words.split(", "))


BACKWARDS = re.compile(
    rf"[\W_]*(?!nekot[\W_]?(?:{_backwards(_LISTS)}"
    rf"|(?:{_backwards(_VOCABULARY)})(?:(?![a-z])|(?-i:(?<=[A-Z])(?![A-Z])))))(?:"
    + "|".join(f"(?P<{kind}>{_backwards(ends)})" for kind, ends in _NAMES)
    + ")",
    re.IGNORECASE,
)
"""Tells from a name that is written backwards which kind of secret it has."""

_STOPS = r"""\s"'`,;&<>\\"""
_PLAIN = rf"""(?:[^{_STOPS}]|\\(?![nrtbfu"'`\\/]))"""  # of a value without quotes
_NO_VALUE = (
    "required|optional|missing|invalid|incorrect|expired|string|undefined|unknown|disabled|enabled|forbidden|"
    "changed|protected|accepted|rejected|redacted|default|(?P<same>.)(?P=same)++"
)
_SEPARATOR = (
    r"""(?P<closed>\\{0,7}["'`])?\]?\*{0,2}[ \t]{0,4}"""
    r"""(?:=>|:=|=|(?P<colon>:(?=\*{0,2}[ \t]))|:(?!\*{0,2}[ \t]))\*{0,2}[ \t]{0,8}"""
)
_ENDING = rf"[.!?:)}}*]*+(?!{_PLAIN})"  # of a sentence, which is not of a value

ASSIGNED = re.compile(
    rf"(?P<name>(?:pass|pwd|token|key|secret|credential|auth|cookie|jwt)[\w-]{{0,16}}+){_SEPARATOR}"
    rf"(?:(?P<quote>\\{{0,7}}[\"'`])|(?!//|[:=]|(?:{_NO_VALUE}){_ENDING})"
    # After a colon and a blank a word is a word, but where a line may be a name and a value only.
    rf"(?(colon)(?![a-z?]++(?:[.!?:)}}*]++|(?![\r\n\\]|\Z))(?!{_PLAIN})))"
    rf"(?P<value>[^{_STOPS}]{{{MIN_SECRET},64}}+|{_PLAIN}{{{MIN_SECRET},64}}+)(?P<more>(?={_PLAIN}))?)"
)
"""``name = value`` and ``"name": "value"``, of which the value's first characters decide."""
VALUE_REST = re.compile(rf"(?:[^{_STOPS}]++|{_PLAIN})*+")

# -- secrets by where they stand

BEARER = re.compile(
    # Made up, or too long for a word: "bearer authentication" is none.
    r"([Bb][Ee][Aa][Rr][Ee][Rr](?:(?<![\w-]......)|(?<=\\[nrt]......))(?:[ \t]{1,4}|%20|\+))"
    r"(?=[\w.~+/=-]{24}|[A-Za-z./-]{0,23}?(?:[0-9_~+=]|[a-z][A-Z]|[A-Z]{2}[a-z]))[\w.~+/=-]{8,}+",
    re.ASCII,
)
USER_INFO = re.compile(r"""(:\\?/\\?/[^\s/?#:@"'<>\\]{0,256}+:)(?!\[REDACTED:)[^\s/?#"'<>\\]{1,512}(?=@)""")

_PEM = r"[a-z0-9 ]{0,40}private key(?: block)?-----"
_BASE64_LINES = r"(?:[\w+/=:,-]++|\s(?!\0))*+"  # NUL comes after the last line of one of a value's texts
_ENDED = r"(?<![.!?:)}*])"  # a sentence goes on, not the value
_WORDS = rf"[a-z?]++(?!{_PLAIN})"


def _up_to(option: str) -> str:
    return rf"(?:[ \t]++(?!-{option})[^\s|;&]++){{0,8}}+[ \t]++-{option}"


SIGNS = re.compile("[-=:<]|machine", re.IGNORECASE)
"""What a text must hold for `PLACES`, `ASSIGNED` and `USER_INFO` to be searched."""

PLACES = (
    # What a text must hold for the pattern to be searched, and the pattern: its last group is named after its
    # kind or is a value of which the group `name` decides.
    (
        "-----begin",
        rf"(?P<private_key>-----begin {_PEM}(?:[^-\0]*+(?:-(?!----)[^-\0]*+)*+-----end {_PEM}"
        # Without its end it goes on as far as it looks like one.
        rf"|{_BASE64_LINES}(?:\\{{1,7}}[nrt]{_BASE64_LINES})*+))",
    ),
    (
        "hooks",
        r"(?P<token>hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{16,}+"
        r"|discord(?:app)?\.com/api/webhooks/[0-9]{8,}+/[\w-]{20,}+)",
    ),
    (
        "authorization",
        rf"authorization{_SEPARATOR}(?P<bearer>(?:aws4-hmac-sha256|digest)[ \t][^\r\n\"'\\]+{_ENDED}"
        rf"|(?:bearer|basic|token|apikey|negotiate|bot)[ \t]{{1,4}}+{_PLAIN}+{_ENDED}"
        rf"|(?!{_WORDS}){_PLAIN}{{{MIN_SECRET},}}{_ENDED})",
    ),
    (
        "cookie",
        # A quoted cookie goes on after its quotes, which must not be those around the header.
        r"cookie(?:\\{0,7}[\"'`])?[ \t]{0,4}:[ \t]{0,8}(?P<token>(?=[^\r\n\"'\\=]{1,64}=)[^\r\n\"'\\]++"
        r"(?:(?<==)\"(?![\s,:}\]])[^\"\r\n\\]{1,4096}\"[^\r\n\"'\\]*+)*+)",
    ),
    (
        "machine",  # .netrc
        r"machine\s{1,9}[^\s\0]{1,256}+(?:(?:\s{1,9}(?:login|account)\s{1,9}[^\s\0]{1,256}+){1,2}"
        r"|(?=\s{1,9}password\s{1,9}[^\s\0]{1,256}+\s{1,9}login\s))\s{1,9}password\s{1,9}(?P<password>[^\s\0]++)",
    ),
    (
        " -",
        rf"(?:(?:mysql|mariadb|mongo)\w{{0,9}}{_up_to('p')}[ \t]{{0,4}}"
        rf"|(?:sshpass|login){_up_to('p')}[ \t]{{1,4}}|redis-cli{_up_to('a')}[ \t]{{1,4}}"
        rf"|curl{_up_to('u')}[ \t]{{0,4}}[\"']?[^\s:\"']{{1,64}}:)"
        rf"[\"']?(?![0-9.]*+:[0-9.:]*+(?!{_PLAIN}))"  # no pair of ports
        rf"(?P<password>{_PLAIN}{{{MIN_SECRET},}}{_ENDED})",
    ),
    (
        "--",
        r"--(?<![\w-]--)(?P<name>[a-z][\w-]{1,40}+)(?:[ \t]{1,4}+|[\"'],\s{0,9}(?=[\"']))(?![\"']?\$)"
        r"(?:[\"'](?P<quoted>[^\"'\n]++)"
        # A word may follow the option's name in a sentence; it is a value if nothing follows but an option.
        rf"|(?!-|{_WORDS}(?![ \t]*+(?:$|[-|;&\\\"'`>])))(?P<value>{_PLAIN}{{{MIN_SECRET},}}{_ENDED}))",
    ),
    ("</", r"<(?P<name>[\w:.-]{1,64}+)(?:\s[^<>\0]{0,200}+)?>\s*+(?P<value>[^<\s\0]++)\s*+</"),
    (
        ":",  # a block in YAML: the lines that are indented further
        r"^(?P<indent>[ \t]*+)(?P<dash>-[ \t]+)?[\"']?(?P<name>[\w.-]{1,64}+)[\"']?[ \t]{0,4}:[ \t]{1,4}[|>]"
        r"[0-9+-]{0,2}[ \t]*+\r?\n(?P=indent)(?(dash)[ \t]{2})[ \t]++"
        r"(?P<value>[^\n]++(?:\n(?:(?P=indent)(?(dash)[ \t]{2})[ \t]++[^\n]*+|[ \t\r]*+(?=\n)))*+)",
    ),
)
"""Secrets that show what they are by what stands around them."""

# -- paths of this machine

_ROOTS = (
    "home Users root tmp var etc opt usr mnt media srv run proc sys private Volumes Library Applications "
    "boot lib bin sbin dev"
)
_PATH_STOPS = r"""\s"'`<>|:;,()\[\]{}*?&=\\"""
_FILE = r"""[^\\/:*?"'<>|\r\n\t,;\[\]]{1,255}"""


def path_patterns(home: str | None) -> tuple[tuple[str, str], ...]:
    """Make the patterns for absolute paths; ``home`` is a directory more that counts as such.

    A path within a URL is none, except after ``file://``.
    """
    roots = "|".join(_ROOTS.split())
    if home is not None and home.startswith("/") and home.strip("/"):
        roots = re.escape(home.strip("/")).replace("/", r"\\?/") + "|" + roots
    return (
        (
            ":",
            # The separator is doubled in JSON; a single backslash is then an escape and ends the path.
            r"(?P<path>[A-Za-z]:(?<![\w-]..)(?:(?<!/..)|(?<=file:///..))(?P<sep>\\{1,4}|/)(?![\\/])"
            rf"(?:{_FILE}(?P=sep)(?![\\/])){{0,64}}[^/{_PATH_STOPS}]{{0,255}})",
        ),
        (
            "/",
            # The roots first: most slashes are not before one.
            r""":(?<!file:)//[^\s"'`<>|,()]*+"""
            rf"|(?P<path>(?=\\?/(?:{roots})(?![\w-]))(?:(?<![\w./~-])|(?<=\\[nrt])|(?<=file://))"
            rf"\\?/[^{_PATH_STOPS}]*+(?:\\/[^{_PATH_STOPS}]*+)*+)",
        ),
    )

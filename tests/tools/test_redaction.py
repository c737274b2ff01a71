"""Redaction: no secret gets through in any spelling, what is none stays, and twice is as good as once.

Keys are put together from pieces, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.tools.redaction import MAX_DEPTH, Redactor, secret_kind

UNHURRIED = settings(deadline=None)  # the machine may be busy with other things

ANY = Redactor(())
PATHS = Redactor((), paths=True, home="/data/kim")
BODY = "Ab3xY9" * 7
PEM = f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{BODY}\n{BODY}==\n-----END RSA PRIVATE {'KEY'}-----"
JWT = f"eyJ{BODY}.eyJ{BODY}.{BODY}-_x"
SECRET = 'pa"ss/w\\örd+1'


def adversarial_inputs(size: int) -> dict[str, str]:
    """Give texts of ``size`` characters, by name, that start each pattern over and over or never end it."""
    pieces = {
        "jwt": "eyJ",
        "jwt parts": f"eyJ{BODY}.",
        "dots": "a.",
        "bearer": "Bearer ",
        "bearer values": "Bearer abcdefg ",
        "pem": "-----BEGIN",
        "pem heads": f"-----BEGIN PRIVATE {'KEY'}-----",
        "pem ends": f"-----BEGIN PRIVATE {'KEY'}-----\n-----END ",
        "names": "password",
        "assignments": "password=",
        "short values": "password=x ",
        "quotes": 'password="',
        "escaped quotes": 'password=\\"x password=\\\\\\"',
        "words": "token: word ",
        "sk": "sk-",
        "sk words": "sk-abcdefghijklmnopqrstuvwxyz ",
        "urls": "://",
        "user infos": "://a:",
        "user info ends": "://a:b@",
        "aws": "AKIA",
        "slack": "xoxb-",
        "github": "ghp_",
        "sendgrid": f"SG.{BODY}.",
        "cookies": "Cookie: a=",
        "quoted cookies": 'Cookie: a="b" ',
        "backslashes": "\\",
        "assigned backslashes": "password=\\\\ ",
        "escapes": "\\nsk-",
        "slashes": "/",
        "paths": "/home/x ",
        "path parts": "/tmp",
        "drives": "C:\\",
        "drive parts": "C:\\a b\\",
        "markers": "[REDACTED:",
        "one letter": "a",
        "spaces": " ",
        "secret starts": "known-secre",
    }
    return {name: (piece * (size // len(piece) + 1))[:size] for name, piece in pieces.items()}


KEYS = {
    "sk-" + "ant-api03-" + BODY: "api_key",
    "sk-" + BODY: "api_key",
    "AKIA" + "Q7" * 8: "api_key",
    "ghp_" + BODY: "api_key",
    "ghs_" + BODY: "api_key",
    "github_pat_" + BODY: "api_key",
    "xoxb-" + "123456789012-" + BODY: "api_key",
    "AIza" + BODY: "api_key",
    "glpat-" + BODY: "api_key",
    "sk_" + "live_" + BODY: "api_key",
    "rk_" + "live_" + BODY: "api_key",
    "npm_" + BODY: "api_key",
    "hf_" + BODY: "api_key",
    "SG." + BODY + "." + BODY: "api_key",
    "ya29." + BODY: "token",
    JWT: "jwt",
    PEM: "private_key",
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "frame", ["{}", "see {}, then", "a\n{}\nb", '{{"a": "{}"}}', "x%3D{}", "({})", "\\n{}"]
)
def test_a_key_of_a_known_form_is_redacted_wherever_it_stands(key: str, frame: str) -> None:
    assert ANY.text(frame.format(key)) == frame.format(f"[REDACTED:{KEYS[key]}]")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Authorization: Bearer abc.def-g", "Authorization: [REDACTED:bearer]"),
        ("-H 'authorization: basic dXNlcjpw' x", "-H 'authorization: [REDACTED:bearer]' x"),
        ('{"Authorization": "Bearer abc"}', '{"Authorization": "[REDACTED:bearer]"}'),
        ("with Bearer abc123def, then", "with Bearer [REDACTED:bearer], then"),
        ("postgres://me:hunter2@db/x", "postgres://me:[REDACTED:password]@db/x"),
        ("redis://:p@ss@db:1/x", "redis://:[REDACTED:password]@db:1/x"),
        ("https:\\/\\/me:pw@x.y", "https:\\/\\/me:[REDACTED:password]@x.y"),
        ("Set-Cookie: sid=abc; Path=/\r\nX: y", "Set-Cookie: [REDACTED:token]\r\nX: y"),
        ('Cookie: sid="a,b c"; d=e', "Cookie: [REDACTED:token]"),
        ('{"h": "Cookie: sid=abc\\r\\nX: y"}', '{"h": "Cookie: [REDACTED:token]\\r\\nX: y"}'),
        ("https://hooks.slack.com/services/T0/B0/" + BODY, "https://[REDACTED:token]"),
        ("password=hunter22", "password=[REDACTED:password]"),
        ("PASSWORD = 'hunt er22' x", "PASSWORD = '[REDACTED:password]' x"),
        ('{"password":"hunter22"}', '{"password":"[REDACTED:password]"}'),
        ('{"password":"hun\\"ter22\\\\","b":"c"}', '{"password":"[REDACTED:password]","b":"c"}'),
        ("db.passwd: hunter22\nx", "db.passwd: [REDACTED:password]\nx"),
        ("a: b\npassword: correcthorse\nc: d", "a: b\npassword: [REDACTED:password]\nc: d"),
        ("my password: hunter22!", "my password: [REDACTED:password]!"),
        ("**Password:** hunter22", "**Password:** [REDACTED:password]"),
        ("password=ab\\cd1234 x", "password=[REDACTED:password] x"),
        ('config["password"] = "hunter22"', 'config["password"] = "[REDACTED:password]"'),
        ("?access_token=abcdef12&x=1", "?access_token=[REDACTED:token]&x=1"),
        ("X-Api-Key: 12345678", "X-Api-Key: [REDACTED:api_key]"),
        ("API key: abc123def", "API key: [REDACTED:api_key]"),
        ("AccountKey=ab/cd+ef==;Suffix=x", "AccountKey=[REDACTED:api_key];Suffix=x"),
        ("AWS_SECRET_ACCESS_KEY=ab12/cd", "AWS_SECRET_ACCESS_KEY=[REDACTED:api_key]"),
        ('password="hunter22\nnext line', 'password="[REDACTED:password]\nnext line'),
        (
            "password=a-long-one-of-many-letters token=abcdef1 secret=abcdef1",
            "password=[REDACTED:password] token=[REDACTED:token] secret=[REDACTED:secret]",
        ),
        ("client_secret=abc123", "client_secret=[REDACTED:secret]"),
        ("İ" * 20 + " password=hunter22", "İ" * 20 + " password=[REDACTED:password]"),
        (PEM[:-20] + "(cut", "[REDACTED:private_key](cut"),
        (json.dumps([PEM, "b"]), '["[REDACTED:private_key]", "b"]'),
    ],
)
def test_a_secret_is_redacted_by_where_it_stands(text: str, redacted: str) -> None:
    assert ANY.text(text) == redacted


@pytest.mark.parametrize("depth", range(4))
def test_a_password_is_found_in_json_within_json(depth: int) -> None:
    text = json.dumps({"password": 'hun"ter\\22', "next": "stays"})
    redacted = json.dumps({"password": "[REDACTED:password]", "next": "stays"})
    for _ in range(depth):
        text, redacted = json.dumps(text), json.dumps(redacted)
    assert ANY.text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "The password is wrong, and the token: it has expired.",
        "The password: something",
        "Password: incorrect. Try again",
        "password: correcthorse in a sentence",
        "token: string",
        "a boarding pass: ABC1234",
        "the next page token: abc12345",
        "next_page_token=abcdefghi",
        '{"nextPageToken": "abcdefghij", "cursor": "abcdefghij"}',
        '{"token_count": 512345, "max_tokens": 123456, "password_hint": "my first dog"}',
        '{"token": 12345678, "tokens": [1234567], "secret": {"a": 1234567}}',
        "PWD=/home/kim/project",
        "cookie: chocolate chip",
        "Cookie: chocolate chip and oats",
        "bearer authentication, Bearer token-based, the bearer of bad news",
        "356a192b7913b04c54574d18c28d46e6395428ab",
        "123e4567-e89b-12d3-a456-426614174000",
        "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode(),
        "https://user@host:80/a@b https://host:8080/@me mailto:a@b",
        "task-force-with-a-long-hyphenated-name sk-folding-cube-animation",
        "Token::parse(abc) if token == other_token:",
        "password=********",
        "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
        "/home/kim/x C:\\Users\\kim",
        "[REDACTED:api_key]: foobar12",
        "",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert ANY.text(text) is text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("see /home/x/a.txt, /tmp and /data/kim/y.", "see P, P and P"),
        ("/Users/x:/root (/var/log) '/etc/passwd'", "P:P (P) 'P'"),
        ("in C:\\Users\\Kim Lee\\a.txt now", "in P now"),
        ("C:/Users/x, d:\\", "P, P"),
        (json.dumps({"a": "C:\\dir\\f\nx", "b": "\n/tmp/x"}), '{"a": "P\\nx", "b": "\\nP"}'),
        ('"\\/home\\/x"', '"P"'),
        ("file:///home/x and https://x.y/home/x?p=/tmp/z", "file://P and https://x.y/home/x?p=/tmp/z"),
        ("and/or 1/2 /api/v1/tmp ./tmp/x ~/x /tmpfs", "and/or 1/2 /api/v1/tmp ./tmp/x ~/x /tmpfs"),
    ],
)
def test_paths_of_this_machine_are_redacted_and_urls_are_not(text: str, redacted: str) -> None:
    assert PATHS.text(text) == redacted.replace("P", "[REDACTED:path]")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("password", "password"),
        ("dbPassword", "password"),
        ("SMTP_PASS", "password"),
        ("accessToken", "token"),
        ("id-token", "token"),
        ("backend_token", "token"),
        ("X-Api-Key", "api_key"),
        ("apikey", "api_key"),
        ("sshPrivateKey", "private_key"),
        ("client_secret", "secret"),
        ("Proxy-Authorization", "bearer"),
        ("token_count", None),
        ("max_tokens", None),
        ("next_page_token", None),
        ("nextpagetoken", None),
        ("eos_token", None),
        ("public_key", None),
        ("cursor", None),
        ("compass", None),
        ("", None),
    ],
)
def test_a_name_tells_whether_its_value_is_a_secret(name: str, kind: str | None) -> None:
    assert secret_kind(name) == kind


def test_values_are_redacted_and_all_else_of_them_is_kept() -> None:
    value = {
        "password": "hunter22",
        "token": ["abcdef", "abc", 5],
        "token_count": 5,
        "note": ["x", {"text": "password=hunter22", "n": None}],
        "Set-Cookie": "a=bcdef",
    }
    assert ANY.value(value) == {
        "password": "[REDACTED:password]",
        "token": ["[REDACTED:token]", "abc", 5],
        "token_count": 5,
        "note": ["x", {"text": "password=[REDACTED:password]", "n": None}],
        "Set-Cookie": "[REDACTED:token]",
    }
    assert value["password"] == "hunter22"  # the caller's own is not changed


def test_a_value_without_secrets_is_the_same_object() -> None:
    value = {"a": [1, "text", {"b": None}], "password": "short", "c": {}}
    assert ANY.value(value) is value
    assert ANY.value(5) == 5


def test_what_is_nested_too_deep_is_withheld() -> None:
    deep: Any = "password=hunter22"
    for _ in range(MAX_DEPTH * 20):
        deep = [deep]
    after = ANY.value(deep)
    for _ in range(MAX_DEPTH):
        after = after[0]
    assert after == "[REDACTED:nested]"


def test_a_known_secret_is_found_in_every_spelling() -> None:
    redactor = Redactor([SECRET])
    raw = SECRET.encode()
    for spelling in (
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").replace("%2F", "%2f").replace("%22", "%22").lower(),
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
    ):
        assert redactor.text(f"<{spelling}>") == "<[REDACTED:secret]>"


@pytest.mark.parametrize("before", range(6))
def test_a_known_secret_is_found_within_base64_at_any_place(before: int) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(b"u" * before + b"known??>>secret" + b"!" * 5).decode()
        assert "[REDACTED:secret]" in Redactor(["known??>>secret"]).text(text)


def test_the_longest_of_several_secrets_is_taken() -> None:
    assert Redactor(["abcdef", "abcdef-ghijkl"]).text("x abcdef-ghijkl y") == "x [REDACTED:secret] y"


def test_a_known_secret_keeps_its_kind_where_a_pattern_would_find_it_too() -> None:
    redactor = Redactor(["known-secret"])
    for text in ("https://me:{}@x.y", "password={}", '{{"token": "{}"}}'):
        assert redactor.text(text.format("known-secret")) == text.format("[REDACTED:secret]")


def test_short_secrets_are_ignored_and_blanks_around_them() -> None:
    redactor = Redactor(["", "abcde", "      ", " abcdef\n"])
    assert redactor.text("abcde      abcdef") == "abcde      [REDACTED:secret]"


@pytest.mark.parametrize("secret", ["secret", "REDACTED", "password", "[REDACTED:secret]"])
def test_a_secret_that_a_marker_holds_does_not_spoil_the_marker(secret: str) -> None:
    redactor = Redactor([secret])
    once = redactor.text(f"x {secret} y password=hunter22")
    assert once.startswith("x [REDACTED:secret] y")
    assert redactor.text(once) == once


PARTS = st.sampled_from(
    [
        *KEYS,
        *(piece[:60] for piece in adversarial_inputs(60).values()),
        *(
            "password",
            "token",
            "Authorization",
            "Set-Cookie",
            "api_key",
            "pwd",
            "Bearer ",
            "Basic ",
            "known-secret",
        ),
        *(
            "=",
            ":",
            ": ",
            " = ",
            "==",
            '"',
            "'",
            '\\"',
            '\\\\\\"',
            "\\",
            "\\n",
            "\n",
            " ",
            ",",
            ";",
            "&",
            "@",
        ),
        *(
            "/",
            "/home/",
            "/tmp",
            "C:\\",
            "://",
            "a:b@",
            "]",
            "[",
            ")",
            "{",
            "-----",
            "-----END",
            "abc",
            "hunter22",
        ),
        *("[REDACTED:token]", "[REDACTED:", "é", "İ", "%20", ".", "-", "_", "*", "x" * 30),
    ]
)
TEXTS = st.lists(PARTS, max_size=14).map("".join) | st.text(max_size=80)


@UNHURRIED
@given(TEXTS, st.booleans())
def test_redacting_twice_changes_nothing_more(text: str, paths: bool) -> None:
    redactor = Redactor(["known-secret", "secret"], paths=paths)
    once = redactor.text(text)
    assert redactor.text(once) == once


def _spellings(secret: str) -> tuple[str, ...]:
    return secret, json.dumps(secret)[1:-1], quote(secret, safe="")


# A marker's own brackets could complete a secret that has them.
SECRETS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="[]:"), min_size=8), max_size=4
).map(
    lambda secrets: [
        s.strip() for s in secrets if len(s.strip()) >= 8 and s.strip() not in "REDACTED:private_key"
    ]
)


@UNHURRIED
@given(SECRETS, st.data())
def test_no_known_secret_gets_through_a_text(secrets: list[str], data: st.DataObject) -> None:
    spellings = [spelling for secret in secrets for spelling in _spellings(secret)]
    parts = PARTS | st.text(max_size=20) | st.sampled_from(spellings or [""])
    text = "".join(data.draw(st.lists(parts, max_size=12)))
    redactor = Redactor(secrets, paths=data.draw(st.booleans()))
    after = redactor.text(text)
    assert not [spelling for spelling in spellings if spelling in after]
    assert redactor.text(after) == after


def _json_values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["password", "token", "a", "token_count", "Cookie", "Authorization"])
    scalars = st.none() | st.booleans() | st.integers() | texts
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )


@UNHURRIED
@given(_json_values(TEXTS | st.just("known-secret")))
def test_no_known_secret_gets_through_a_json_value_and_twice_is_once(value: Any) -> None:
    redactor = Redactor(["known-secret"])
    after = redactor.value(value)
    assert "known-secret" not in json.dumps(after)
    assert redactor.value(after) is after
    if after == value:
        assert after is value


@UNHURRIED
@given(TEXTS)
def test_a_string_is_redacted_alike_as_a_text_and_as_a_value(text: str) -> None:
    assert ANY.value([text]) == [ANY.text(text)]


@UNHURRIED
@given(
    st.dictionaries(
        st.sampled_from(["password", "apiKey", "a", "token_count"]), st.text("abc12 \"'é\\", max_size=12)
    )
)
def test_a_document_is_redacted_alike_as_a_text_and_as_a_value(document: dict[str, str]) -> None:
    # A text that is shorter than a secret may be longer when it is escaped: left out.
    document = {
        name: text for name, text in document.items() if not len(text) < 6 <= len(json.dumps(text)) - 2
    }
    assert json.loads(ANY.text(json.dumps(document))) == ANY.value(document)


@pytest.mark.parametrize("name", adversarial_inputs(1))
def test_an_adversarial_text_is_done_with_in_time(name: str) -> None:
    redactor = Redactor(["known-secret"], paths=True)
    text = adversarial_inputs(256 * 1024)[name]
    once = redactor.text(text)
    assert redactor.text(once) == once

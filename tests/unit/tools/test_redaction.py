"""Redaction: no secret remains in any spelling, other text is unchanged, and it is idempotent.

Keys are put together from pieces, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.tools.redaction import MAX_DEPTH, Redactor, is_secret_name
from tests.cpu import least_cpu_s

UNHURRIED = settings(deadline=None)  # the machine may be busy

ANY = Redactor(())
PATHS = Redactor((), paths=True)
BODY = "Ab3xY9" * 7
PEM = f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{BODY}\n{BODY}==\n-----END RSA PRIVATE {'KEY'}-----"
JWT = f"eyJ{BODY}.eyJ{BODY}.{BODY}-_x"
SECRET = 'pa"ss/w\\örd+1'


def adversarial_inputs(size: int) -> dict[str, str]:
    """Make texts of ``size`` characters, by name, that start a pattern repeatedly or never end it."""
    pieces = {
        "jwt": "eyJ",
        "jwt parts": f"eyJ{BODY}.",
        "bearer": "Bearer ",
        "pem": "-----BEGIN",
        "pem heads": f"-----BEGIN PRIVATE {'KEY'}-----",
        "names": "password",
        "assignments": "password=",
        "short values": "password=x ",
        "quotes": 'password="',
        "escaped quotes": 'password=\\"x password=\\\\\\"',
        "sk": "sk-",
        "urls": "://",
        "user infos": "://a:",
        "user info ends": "://a:b@",
        "sendgrid": f"SG.{BODY}.",
        "cookies": "Cookie: a=",
        "quoted cookies": 'Cookie: a="b" ',
        "backslashes": "\\",
        "assigned backslashes": "password=\\\\ ",
        "escapes": "\\nsk-",
        "slashes": "/",
        "paths": "/home/x ",
        "drives": "C:\\",
        "markers": "[REDACTED:",
        "secret starts": "known-secre",
        "secrets": "known-secret",
        "assigned colons": "jwt=:",
        "assigned equals": "secret==",
        "overlapping names": "auth=aaa:aa",
        "overlapping cookies": "cookie:aaaaaa",
        "headers": "authorization: bearer a ",
        "words of cookies": "cookie: a ",
        "percents": "%61",
        "short runs": "a ",
        "long runs": "a23456789abcdeg ",
        "exclamations": "password=!!!!!!!!",
    }
    return {name: (piece * (size // len(piece) + 1))[:size] for name, piece in pieces.items()}


KEYS = {
    "sk-" + "ant-api03-" + BODY: "api_key",
    "sk-" + BODY: "api_key",
    "AKIA" + "Q7" * 8: "api_key",
    "ghp_" + BODY: "api_key",
    "github_pat_" + BODY: "api_key",
    "xoxb-" + "123456789012-" + BODY: "api_key",
    "AIza" + BODY: "api_key",
    "glpat-" + BODY: "api_key",
    "rk_" + "live_" + BODY: "api_key",
    "SG." + BODY + "." + BODY: "api_key",
    "ya29." + BODY: "token",
    "glrt-" + BODY: "api_key",
    "hvs." + BODY: "api_key",
    "xapp-1-" + BODY: "api_key",
    "shpat_" + "0a1b2c3d" * 4: "api_key",
    "tskey-auth-" + BODY: "api_key",
    JWT: "jwt",
    PEM: "private_key",
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "frame", ["{}", "see {}, then", "a\n{}\nb", '{{"a": "{}"}}', "x%3D{}", "({})", "\\n{}"]
)
def test_a_key_of_a_known_format_is_redacted_in_any_context(key: str, frame: str) -> None:
    assert ANY.text(frame.format(key)) == frame.format(f"[REDACTED:{KEYS[key]}]")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Authorization: Bearer abc.def-g", "Authorization: [REDACTED:bearer]"),
        ("X-Api-Key: 4f1c2b9d77", "X-Api-Key: [REDACTED:secret]"),
        ("-H 'PRIVATE-TOKEN: 4f1c2b9d77'", "-H 'PRIVATE-TOKEN: [REDACTED:secret]'"),
        ("x-api-key: required", "x-api-key: required"),
        ("-H 'authorization: basic dXNlcjpw' x", "-H 'authorization: [REDACTED:bearer]' x"),
        ('{"Authorization": "Bearer abc"}', '{"Authorization": "[REDACTED:secret]"}'),
        ("with Bearer abc123def, then", "with Bearer [REDACTED:bearer], then"),
        ("postgres://me:hunter2@db/x", "postgres://me:[REDACTED:password]@db/x"),
        ("redis://:p@ss@db:1/x", "redis://:[REDACTED:password]@db:1/x"),
        ("https:\\/\\/me:pw@x.y", "https:\\/\\/me:[REDACTED:password]@x.y"),
        ("Set-Cookie: sid=abc; Path=/\r\nX: y", "Set-Cookie: [REDACTED:token]\r\nX: y"),
        ('Cookie: sid="a,b c"; d=e', "Cookie: [REDACTED:token]"),
        ('{"h": "Cookie: sid=abc\\r\\nX: y"}', '{"h": "Cookie: [REDACTED:token]\\r\\nX: y"}'),
        ("https://hooks.slack.com/services/T0/B0/" + BODY, "https://[REDACTED:token]"),
        ("password=hunter22", "password=[REDACTED:secret]"),
        ("PASSWORD = 'hunt er22' x", "PASSWORD = '[REDACTED:secret]' x"),
        ('{"password":"hunter22"}', '{"password":"[REDACTED:secret]"}'),
        ('{"password":"hun\\"ter22\\\\","b":"c"}', '{"password":"[REDACTED:secret]","b":"c"}'),
        ("password=ab\\cd1234 x", "password=[REDACTED:secret] x"),
        ('config["password"] = "hunter22"', 'config["password"] = "[REDACTED:secret]"'),
        ("?access_token=abcdef12&x=1", "?access_token=[REDACTED:secret]&x=1"),
        ("AccountKey=ab/cd+ef==;Suffix=x", "AccountKey=[REDACTED:secret];Suffix=x"),
        ("AWS_SECRET_ACCESS_KEY=ab12/cd", "AWS_SECRET_ACCESS_KEY=[REDACTED:secret]"),
        ('password="hunter22\nnext line', 'password="[REDACTED:secret]\nnext line'),
        (
            "password=a-long-one-of-many-letters token=abcdef1 secret=abcdef1",
            "password=[REDACTED:secret] token=[REDACTED:secret] secret=[REDACTED:secret]",
        ),
        ("client_secret=abc123", "client_secret=[REDACTED:secret]"),
        ("İ" * 20 + " password=hunter22", "İ" * 20 + " password=[REDACTED:secret]"),
        (PEM[:-20] + "(cut", "[REDACTED:private_key](cut"),
        (json.dumps([PEM, "b"]), '["[REDACTED:private_key]", "b"]'),
    ],
)
def test_a_secret_is_redacted_by_its_context(text: str, redacted: str) -> None:
    assert ANY.text(text) == redacted


@pytest.mark.parametrize("depth", range(4))
def test_a_password_is_found_in_json_within_json(depth: int) -> None:
    text = json.dumps({"password": 'hun"ter\\22', "next": "stays"})
    redacted = json.dumps({"password": "[REDACTED:secret]", "next": "stays"})
    for _ in range(depth):
        text, redacted = json.dumps(text), json.dumps(redacted)
    assert ANY.text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "The password: hunter22, and the token: it has expired.",
        "db:\n  password: hunter22\n  token: |\n    abc1def\n",
        "machine x.y login kim password hunter22",
        "mysql -phunter22 --password hunter22 <token>abc1def</token>",
        "next_page_token=abcdefghi",
        '{"nextPageToken": "abcdefghij", "cursor": "abcdefghij"}',
        '{"token_count": 512345, "max_tokens": 123456, "password_hint": "my first dog"}',
        '{"token": 12345678, "tokens": [1234567], "secret": {"a": 1234567}}',
        "cookie: chocolate chip",
        "Cookie: chocolate chip and oats",
        "bearer authentication, Bearer token-based, the bearer of bad news",
        "356a192b7913b04c54574d18c28d46e6395428ab",
        "123e4567-e89b-12d3-a456-426614174000",
        "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode(),
        "https://user@host:80/a@b https://host:8080/@me mailto:a@b",
        "task-force-with-a-long-hyphenated-name sk-folding-cube-animation",
        "Token::parse(abc) if token == other_token:",
        "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
        "/home/kim/x C:\\Users\\kim",
        "gsk_some_function_of_a_library hvs.name glrt-short npm_config_registry_of_the_company",
        "",
    ],
)
def test_a_text_without_secrets_is_unchanged(text: str) -> None:
    assert ANY.text(text) is text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("see /home/x/a.txt, and /tmp.", "see P, and P"),
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
    "name",
    "password dbPassword SMTP_PASS accessToken id-token backend_token X-Api-Key apikey sshPrivateKey "
    "client_secret Proxy-Authorization configuration_of_the_second_database_password Set-Cookie".split(),
)
def test_a_field_of_this_name_holds_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", "token_count max_tokens next_page_token nextPageToken eos_token public_key cursor compass".split()
)
def test_a_field_of_this_name_holds_no_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_values_are_redacted_and_all_else_of_them_is_kept() -> None:
    value = {
        "password": "hunter22",
        "token": ["abcdef", "abc", 5],
        "token_count": 5,
        "note": ["x", {"text": "password=hunter22", "n": None}],
        "Set-Cookie": "a=bcdef",
    }
    assert ANY.value(value) == {
        "password": "[REDACTED:secret]",
        "token": ["[REDACTED:secret]", "abc", 5],
        "token_count": 5,
        "note": ["x", {"text": "password=[REDACTED:secret]", "n": None}],
        "Set-Cookie": "[REDACTED:secret]",
    }
    assert value["password"] == "hunter22"  # the argument is not changed


def test_secrets_are_found_in_the_names_of_fields() -> None:
    redactor = Redactor(["known-secret", "another-secret"])
    assert redactor.value({"known-secret": 1, "a another-secret": [{"known-secret": "known-secret"}]}) == {
        "[REDACTED:secret]": 1,
        "a [REDACTED:secret]": [{"[REDACTED:secret]": "[REDACTED:secret]"}],
    }
    assert list(redactor.value({"known-secret": 1, "another-secret": 2}).values()) == [1, 2]


def test_the_texts_of_a_value_do_not_mix() -> None:
    value = ["password=", "hunter22", "known-", "secret"]
    assert Redactor(["known-secret"]).value(value) is value
    assert ANY.value([*value, "a\n\0\npassword=hunter22"])[-1] == "a\n\ufffd\npassword=[REDACTED:secret]"
    # A NUL at the end of a secret, before the end of its line, is no boundary.
    assert ANY.value({"note": 'password: "x1234567\0', "password": "hunter2222", "b": "c"}) == {
        "note": 'password: "[REDACTED:secret]',
        "password": "[REDACTED:secret]",
        "b": "c",
    }


def test_a_value_that_is_nested_too_deep_is_withheld() -> None:
    deep: Any = "password=hunter22"
    for _ in range(MAX_DEPTH * 20):
        deep = [deep]
    after = ANY.value(deep)
    for _ in range(MAX_DEPTH):
        after = after[0]
    assert after == "[REDACTED:nested]"


def test_a_known_secret_is_found_in_every_spelling() -> None:
    redactor = Redactor([SECRET])
    for spelling in (
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").replace("%2F", "%2f").replace("%22", "%22").lower(),
    ):
        assert redactor.text(f"<{spelling}>") == "<[REDACTED:secret]>"


def _wrapped(text: str, width: int, newline: str = "\n") -> str:
    return newline.join(text[at : at + width] for at in range(0, len(text), width))


@pytest.mark.parametrize(
    "spelling",
    [
        _wrapped(SECRET, 5),
        _wrapped(SECRET, 5, "\r\n    "),
        _wrapped(SECRET, 5, "\\\n"),
        _wrapped(SECRET, 5, '" +\n  "'),
        json.dumps(_wrapped(SECRET, 5)),
        json.dumps(json.dumps({SECRET: 1})),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        _wrapped(SECRET.encode().hex(), 8),
        "".join(f"\\u{ord(character):04x}" for character in SECRET),
        "".join(f"\\\\u{ord(character):04X}" for character in SECRET),
        "".join(f"\\x{byte:02x}" for byte in SECRET.encode()),
        "".join(f"%{byte:02X}" for byte in SECRET.encode()),
        quote(quote(SECRET, safe=""), safe=""),
        _wrapped(base64.b64encode(SECRET.encode()).decode(), 8),
    ],
)
def test_a_known_secret_is_found_broken_into_lines_and_escaped(spelling: str) -> None:
    after = Redactor([SECRET]).text(f"before {spelling} after")
    assert after.startswith("before ") and after.endswith(" after") and "[REDACTED:secret]" in after
    assert not re.search(r"w|77|d\+|ZC|u00", after.removeprefix("before "))


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize(("width", "newline"), [(76, "\n"), (64, "\r\n"), (64, "\\n")])
def test_a_known_secret_is_found_in_wrapped_base64(before: int, width: int, newline: str) -> None:
    secret = "known??>>secret-of-some-length"
    document = b"u" * (40 + before) + secret.encode() + b"!" * 60
    text = _wrapped(base64.b64encode(document).decode(), width, newline)
    assert text.count(newline) > 1
    after = Redactor([secret]).text(text)
    assert after.count("[REDACTED:secret]") == 1
    assert len(after) < len(text)


def test_a_secret_of_many_bytes_a_character_is_found_in_pairs_of_surrogates() -> None:
    assert Redactor(["pass\U0001f511wörd"]).text("\\ud83d\\udd11w pass\\ud83d\\udd11w\\u00f6rd") == (
        "\\ud83d\\udd11w [REDACTED:secret]"
    )


@pytest.mark.parametrize("before", range(6))
def test_a_known_secret_is_found_within_base64_at_any_place(before: int) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(b"u" * before + b"known??>>secret" + b"!" * 5).decode()
        assert "[REDACTED:secret]" in Redactor(["known??>>secret"]).text(text)


def test_a_secret_that_contains_a_second_secret_is_redacted_whole() -> None:
    outer = "correct-horse-battery-staple"
    for inner in ("horse-battery", "correct-horse", "battery-staple"):
        assert Redactor([inner, outer]).text(f"x {outer.encode().hex()} y") == "x [REDACTED:secret] y"


def test_a_known_secret_keeps_its_kind_where_a_pattern_matches_too() -> None:
    redactor = Redactor(["known-secret"])
    for text in ("https://me:{}@x.y", "password={}", '{{"token": "{}"}}', "mysql -p{}", "cookie: sid={}"):
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
        *"password token Authorization Set-Cookie api_key pwd known-secret hunter22".split(),
        *"/home/ /tmp C:\\ :// a:b@ ----- -----END abc [REDACTED:token] [REDACTED: %20 é İ".split(),
        *("Bearer ", "Basic ", ": ", " = ", "==", '\\"', '\\\\\\"', "\\n", "x" * 30),
        *"=:\"'\\\n ,;&@/][){\0.-_*",
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


def _is_secret(text: str) -> bool:
    """Return whether enough characters are neither blanks, quotes nor escapes."""
    return len(re.sub(r"%..|\\.|[\s\"'+]", "", text)) >= 6 and text not in "REDACTED:private_key"


# A marker's own brackets could complete a secret that has them.
SECRETS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="[]:"), min_size=8)
    .map(str.strip)
    .filter(_is_secret),
    max_size=4,
)


@UNHURRIED
@given(SECRETS, st.data())
def test_no_known_secret_remains_in_a_text(secrets: list[str], data: st.DataObject) -> None:
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
def test_no_known_secret_remains_in_a_json_value(value: Any) -> None:
    redactor = Redactor(["known-secret"])
    after = redactor.value(value)
    assert "known-secret" not in json.dumps(after)
    assert redactor.value(after) is after
    if after == value:
        assert after is value


def test_a_private_key_without_its_end_takes_nothing_of_the_next_text() -> None:
    texts = [
        "cookie: session=-----BEGIN PRIVATE KEY-----\nMII",
        "hello",
        "password=-----BEGIN PRIVATE KEY-----",
    ]
    redacted = ANY.value([*texts, "bye"])
    assert redacted == [*map(ANY.text, texts), "bye"]
    assert redacted[1] == "hello"


@UNHURRIED
@given(st.lists(TEXTS, max_size=4))
@example(
    ["password=!!!!!!!!" * 3 + "password=-----BEGIN PRIVATE KEY----------BEGIN PRIVATE KEY----------B", ""]
)
def test_a_string_is_redacted_alike_as_a_text_and_in_a_value(texts: list[str]) -> None:
    lines = [text.replace("\0", "\ufffd") for text in texts]
    redacted = [ANY.text(line) for line in lines]
    expected = [text if a == b else b for text, a, b in zip(texts, lines, redacted, strict=True)]
    assert ANY.value(texts) == expected


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
    text = adversarial_inputs(64 * 1024)[name]
    assert least_cpu_s(lambda: redactor.text(text), 0.25) < 0.25  # else it would hold the event loop
    once = redactor.text(text)
    assert redactor.text(once) == once

"""Secrets by what they look like: keys of known forms, and what stands at a known place."""

from __future__ import annotations

import json

import pytest

from tests.tools.test_redaction import ANY, BODY, KEYS, PEM


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
        ('{"ghcr.io": {"auth": "a2ltOmh1bnRlcjIy"}}', '{"ghcr.io": {"auth": "[REDACTED:password]"}}'),
        ("//npm.x.y/:_auth=a2ltOmh1bnRlcjIy", "//npm.x.y/:_auth=[REDACTED:password]"),
        ("machine x.y login kim password hunter22", "machine x.y login kim password [REDACTED:password]"),
        (
            "machine x.y\n  password hunter22\n  login kim\n",
            "machine x.y\n  password [REDACTED:password]\n  login kim\n",
        ),
        ("<password>hunter22</password>", "<password>[REDACTED:password]</password>"),
        ("<db:apiKey type='a'>hunter22</db:apiKey>", "<db:apiKey type='a'>[REDACTED:api_key]</db:apiKey>"),
        ("mysql --password hunter22 x", "mysql --password [REDACTED:password] x"),
        ("x --db-password correcthorse --user kim", "x --db-password [REDACTED:password] --user kim"),
        ("x --api-key 'abc def 12'", "x --api-key '[REDACTED:api_key]'"),
        ('["--token", "abc1def"]', '["--token", "[REDACTED:token]"]'),
        ("mysql -h db -u kim -phunter22 shop", "mysql -h db -u kim -p[REDACTED:password] shop"),
        ("docker login -u kim -p hunter22 x.y", "docker login -u kim -p [REDACTED:password] x.y"),
        ("sshpass -p hunter22 ssh -p 2222 x", "sshpass -p [REDACTED:password] ssh -p 2222 x"),
        ("curl -s -u kim:hunter22 https://x.y", "curl -s -u kim:[REDACTED:password] https://x.y"),
        (
            "db:\n  password: |\n    hunter22\n\n    more of it\n  user: kim\n",
            "db:\n  password: |\n    [REDACTED:password]\n  user: kim\n",
        ),
        ("- token: >-\n    abc1\n    def2\n  user: kim", "- token: >-\n    [REDACTED:token]\n  user: kim"),
        (json.dumps([PEM, "b"]), '["[REDACTED:private_key]", "b"]'),
    ],
)
def test_a_secret_is_redacted_by_where_it_stands(text: str, redacted: str) -> None:
    assert ANY.text(text) == redacted

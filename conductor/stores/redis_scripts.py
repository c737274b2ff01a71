"""The scripts that run in Redis, one for each step of a session, and the names of its keys.

A session is one hash: what `Meta` holds, and its records under their revisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from typing import TypeAlias
from urllib.parse import quote, unquote

from conductor.errors import StoreUnavailable
from conductor.stores.base import SessionKey
from conductor.stores.records import Meta, Stored

Reply: TypeAlias = "bytes | int | list[Reply] | None"

STRANGE = "The session store gave an answer that this version cannot read."


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its digest, by which the server knows it once it has run."""

    text: str
    digest: str


def _script(body: str) -> Script:
    text = _COMMON + body
    # Redis names scripts by SHA-1; nothing depends on its strength.
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


_COMMON = """
local key = KEYS[1]
local function touch(ttl)  -- 0: it does not expire
  redis.call('HSET', key, 'updated', redis.call('TIME')[1])
  if ttl == '0' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, ttl) end
end
"""

CLAIM = _script("""
-- ARGV: token, milliseconds to live. A claim whose reply was lost comes again with its token: it counts once.
if redis.call('HGET', key, 'token') ~= ARGV[1] then redis.call('HINCRBY', key, 'epoch', 1) end
redis.call('HSET', key, 'token', ARGV[1])
touch(ARGV[2])
return redis.call('HGETALL', key)
""")

COMMIT = _script("""
-- ARGV: token, milliseconds to live, revision, commit id, record ('': only look), 1 if it is a snapshot.
-- Returns 1 if the record was appended, else what the session is.
local found = redis.call('HMGET', key, 'token', 'epoch', 'revision', 'commit')
local revision = found[3] or '0'
local owned = found[1] == ARGV[1] and ARGV[1] ~= ''
if owned and found[4] == ARGV[4] then touch(ARGV[2]) end  -- a write, so that WAIT has something to wait for
if not owned or revision ~= ARGV[3] or found[4] == ARGV[4] or ARGV[5] == '' then return found end
if ARGV[6] == '1' then
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if tonumber(name) then redis.call('HDEL', key, name) end
  end
end
revision = revision + 1
redis.call('HSET', key, 'revision', revision, 'commit', ARGV[4], revision, ARGV[5])
touch(ARGV[2])
return 1
""")

RELEASE = _script("""
-- ARGV: token.
if redis.call('HGET', key, 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', key, 'token', '')
return 1
""")

DELETE = _script("""
-- ARGV: milliseconds to live. What stays for so long is a token that no claim has: an owner that is still
-- there is fenced, and does not take the loss for a failover which it should repair.
local was = redis.call('HEXISTS', key, 'epoch')
redis.call('DEL', key)
redis.call('HSET', key, 'token', '')
redis.call('PEXPIRE', key, ARGV[1])
return was
""")

# By a sorted set and not a counter: sessions expire by themselves, and a counter would not hear of it.
COUNT = """
-- KEYS: the index of a subject's sessions by their last claim. ARGV: session id, milliseconds to live, most.
-- Counts a session that is about to be claimed; returns 0, and counts none, if there are as many already.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""


def session_name(prefix: str, key: SessionKey) -> str:
    """Name a session's key. No name can hold a brace, so what stands in them alone decides the hash slot."""
    return f"{prefix}:{{{_escaped(key.subject)}/{_escaped(key.session_id)}}}"


def index_name(prefix: str, subject: str) -> str:
    """Name the key under which a subject's sessions are counted."""
    return f"{prefix}:{{{_escaped(subject)}}}:kept"


def session_pattern(prefix: str, subject: str | None = None, session_id: str | None = None) -> str:
    """Write what SCAN matches to find sessions: all, a subject's, or those with an id."""
    who, which = ("*" if part is None else _escaped(part) for part in (subject, session_id))
    return f"{prefix}:{{{who}/{which}}}"


def session_of(name: str) -> SessionKey | None:
    """Tell whose session a key belongs to; None for a key of another kind."""
    subject, slash, session_id = name.partition("{")[2].partition("}")[0].partition("/")
    if not slash:
        return None
    return SessionKey(*(unquote(part, errors="surrogatepass") for part in (subject, session_id)))


def _escaped(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")


def read_session(reply: Reply) -> Stored | None:
    """Read what HGETALL gives; None for no session, or what is left of a deleted one.

    Raises `StoreUnavailable` for what this version cannot read.
    """
    flat = iter(reply if isinstance(reply, list) else ())
    fields = {text(name): value for name, value in zip(flat, flat, strict=True) if isinstance(value, bytes)}
    if "epoch" not in fields:
        return None
    meta = read_meta([fields.get(name) for name in ("token", "epoch", "revision", "commit", "updated")])
    assert meta is not None
    return Stored(meta, {int(name): data for name, data in fields.items() if name.isdecimal()})


def read_meta(reply: Reply) -> Meta | None:
    """Read token, epoch, revision and commit id; None for no session."""
    match reply:
        case [None, *_]:
            return None
        case [bytes() as token, epoch, revision, commit_id, *updated]:
            try:
                numbers = [int(text(each) or 0) for each in (epoch, revision, *updated)]
            except ValueError as error:
                raise StoreUnavailable(STRANGE) from error
            return Meta(text(token), numbers[0], numbers[1], text(commit_id), *map(float, numbers[2:]))
    raise StoreUnavailable(STRANGE)


def text(value: Reply) -> str:
    """Read a name or a value; what is no UTF-8 was not written here, and is made readable."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""

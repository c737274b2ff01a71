"""The scripts that run in Redis, and the names of its keys.

A session is one hash: the fields of `Meta`, and its commits under their revisions. Its attachments are
another hash in the same slot, which a claim does not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from conductor.errors import StoreUnavailable
from conductor.stores.base import Meta, SessionKey, Stored

_COMMON = """
local key = KEYS[1]
local function touch(ttl)  -- 0: it does not expire
  redis.call('HSET', key, 'updated', redis.call('TIME')[1])
  for _, name in ipairs(KEYS) do
    if ttl == '0' then redis.call('PERSIST', name) else redis.call('PEXPIRE', name, ttl) end
  end
end
"""

CLAIM = (
    _COMMON
    + """
-- ARGV: token, milliseconds to live. A repeated claim has the same token and counts once.
if redis.call('HGET', key, 'token') ~= ARGV[1] then redis.call('HINCRBY', key, 'epoch', 1) end
redis.call('HSET', key, 'token', ARGV[1])
touch(ARGV[2])
return redis.call('HGETALL', key)
"""
)

COMMIT = (
    _COMMON
    + """
-- ARGV: token, milliseconds to live, revision, commit id, commit, 1 for a snapshot; the number of
-- attachments to drop, their names, and the new ones, each with its name before it.
-- Returns 1 if the commit was appended, else the fields of the session.
local found = redis.call('HMGET', key, 'token', 'epoch', 'revision', 'commit')
local revision = found[3] or '0'
local owned = found[1] == ARGV[1] and ARGV[1] ~= ''
if owned and found[4] == ARGV[4] then touch(ARGV[2]) end  -- a write, so that WAIT has something to wait for
if not owned or revision ~= ARGV[3] or found[4] == ARGV[4] then return found end
if ARGV[6] == '1' then
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if tonumber(name) then redis.call('HDEL', key, name) end
  end
end
revision = revision + 1
redis.call('HSET', key, 'revision', revision, 'commit', ARGV[4], revision, ARGV[5])
local first = 8 + ARGV[7]
for i = 8, first - 1 do redis.call('HDEL', KEYS[2], ARGV[i]) end
for i = first, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
touch(ARGV[2])
return 1
"""
)

RELEASE = (
    _COMMON
    + """
-- ARGV: token.
if redis.call('HGET', key, 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', key, 'token', '')
return 1
"""
)

DELETE = (
    _COMMON
    + """
-- ARGV: milliseconds to live. A token that no claim has stays: it fences the owner, which would otherwise
-- repair the loss as after a failover.
local was = redis.call('HEXISTS', key, 'epoch')
redis.call('DEL', key, KEYS[2])
redis.call('HSET', key, 'token', '')
redis.call('PEXPIRE', key, ARGV[1])
return was
"""
)

# A sorted set: a counter would not notice that a session expires.
COUNT = """
-- KEYS: the index of a subject's sessions by their last claim. ARGV: session id, milliseconds to live, most.
-- Counts a session before its claim; returns 0 and does not count it at the limit.
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
    """Name a session's key. The text in braces decides the hash slot; names have no braces."""
    return f"{prefix}:{{{_escaped(key.subject)}/{_escaped(key.session_id)}}}"


def attachments_name(prefix: str, key: SessionKey) -> str:
    """Name the key of a session's attachments; the pattern of sessions does not match it."""
    return f"{session_name(prefix, key)}:attachments"


def index_name(prefix: str, subject: str) -> str:
    """Name the key that counts a subject's sessions."""
    return f"{prefix}:{{{_escaped(subject)}}}:kept"


def session_pattern(prefix: str, subject: str | None = None, session_id: str | None = None) -> str:
    """Make the SCAN pattern of all sessions, of a subject's, or of sessions with an id."""
    subject_glob, session_glob = ("*" if part is None else _escaped(part) for part in (subject, session_id))
    return f"{prefix}:{{{subject_glob}/{session_glob}}}"


def session_of(name: bytes) -> tuple[str, str] | None:
    """Parse a key's name to subject and session id; None for another kind of key."""
    subject, slash, session_id = name.decode().partition("{")[2].partition("}")[0].partition("/")
    if not slash:
        return None
    return unquote(subject, errors="surrogatepass"), unquote(session_id, errors="surrogatepass")


def _escaped(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")


def read_session(fields: Mapping[bytes, bytes]) -> Stored | None:
    """Read a session's hash; None for no session or a deleted one. Raises `StoreUnavailable`."""
    if b"epoch" not in fields:
        return None
    meta = read_meta(fields.get(name) for name in (b"token", b"epoch", b"revision", b"commit", b"updated"))
    assert meta is not None
    return Stored(meta, {int(name): data for name, data in fields.items() if name.isdigit()})


def read_meta(values: Iterable[bytes | None]) -> Meta | None:
    """Read token, epoch, revision and commit id; None for no session. Raises `StoreUnavailable`."""
    token, epoch, revision, commit_id, updated, *_ = (*values, None)
    if token is None:
        return None
    try:
        numbers = int(epoch or 0), int(revision or 0)
        return Meta(token.decode(), *numbers, (commit_id or b"").decode(), float(updated or 0))
    except ValueError as error:
        raise StoreUnavailable("The session store gave an answer that this version cannot read.") from error

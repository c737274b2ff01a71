"""Between what sessions hold and what the scripts in Redis take and give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import TypeAlias, assert_never
from urllib.parse import quote, unquote

import msgspec

from conductor.errors import StoreUnavailable
from conductor.messages import ToolResult
from conductor.stores.base import (
    AckOutbound,
    Amendment,
    AppendLog,
    CallRecord,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    PutOutbound,
    RememberInbound,
    SessionKey,
    SessionState,
    SetField,
    TrimLog,
    decode_call,
    decode_entry,
    decode_outbound,
    encode_call,
    encode_entry,
    encode_outbound,
)

KEYS = ("meta", "log", "calls", "seen", "out")

_SIZES = """
local meta, log, calls, seen, out = unpack(KEYS)
local function sizes()
  return redis.call('LLEN', log) .. ' ' .. redis.call('HLEN', calls) .. ' '
    .. redis.call('ZCARD', seen) .. ' ' .. redis.call('HLEN', out)
end
local function refresh(ttl)  -- 0: it does not expire
  for _, key in ipairs(KEYS) do
    if ttl == '0' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, ttl) end
  end
end
local function seconds()  -- for people: nothing is decided by it
  return redis.call('TIME')[1]
end
"""

_CLAIM = """
-- ARGV: token, milliseconds to live. Returns what is kept.
local kept = redis.call('HMGET', meta, 'token', 'sizes')
local now = sizes()
local whole = (kept[2] or '0 0 0 0') == now and 1 or 0
-- A claim whose reply was lost comes again with its token, and counts once.
if kept[1] ~= ARGV[1] then redis.call('HINCRBY', meta, 'epoch', 1) end
redis.call('HSET', meta, 'token', ARGV[1], 'sizes', now, 'updated', seconds())
refresh(ARGV[2])
return {whole, redis.call('HGETALL', meta), redis.call('LRANGE', log, 0, -1), redis.call('HGETALL', calls),
  redis.call('ZRANGE', seen, 0, -1), redis.call('HGETALL', out)}
"""

_COMMIT = """
-- ARGV: token, commit id, revision, milliseconds to live, ids remembered; then triples: operation, a, b.
-- Returns the new revision, or why it was refused and a detail.
local FIRST = 6
local kept = redis.call('HMGET', meta, 'token', 'commit', 'revision', 'start', 'place', 'sizes')
if not kept[1] then return {'LOST', ''} end
if kept[1] == '' then return {'FENCED', 'gone'} end
if kept[1] ~= ARGV[1] then return {'FENCED', ''} end
local revision = tonumber(kept[3] or 0)
if kept[2] == ARGV[2] then
  refresh(ARGV[4])
  redis.call('HSET', meta, 'commit', ARGV[2])  -- a write, so that WAIT has something to wait for
  return revision
end
if revision ~= tonumber(ARGV[3]) then return {'REVISION', revision} end
if kept[6] ~= sizes() then return {'LOST', ''} end

local state = {}  -- call id -> 'P', 'D', or '' for unknown, as of the operations checked so far
local function known(id)
  if not state[id] then state[id] = string.sub(redis.call('HGET', calls, id) or '', 1, 1) end
  return state[id]
end
local ids = {}
for i = FIRST, #ARGV, 3 do
  local op, a = ARGV[i], ARGV[i + 1]
  if op == 'open' or op == 'opendone' then
    if known(a) ~= '' then return {'DUPLICATE', a} end
    state[a] = op == 'open' and 'P' or 'D'
  elseif op == 'finish' then
    if known(a) ~= 'P' then return {'DUPLICATE', a} end
    state[a] = 'D'
  elseif op == 'forget' then
    state[a] = ''
  elseif op == 'remember' then
    if ids[a] or redis.call('ZSCORE', seen, a) then return {'DUPLICATE', a} end
    ids[a] = true
  end
end

local start, place = tonumber(kept[4] or 0), tonumber(kept[5] or 0)
local remembered = false
for i = FIRST, #ARGV, 3 do
  local op, a, b = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  place = place + 1
  if op == 'append' then
    redis.call('RPUSH', log, b)
  elseif op == 'amend' then
    local index = tonumber(a) - start
    local entry = index >= 0 and redis.call('LINDEX', log, index)
    if entry then redis.call('LSET', log, index, string.match(entry, '^[^\\n]*') .. '\\n' .. b) end
  elseif op == 'trim' then
    local before = tonumber(a)
    if before > start then
      redis.call('LTRIM', log, before - start, -1)
      start = before
    end
  elseif op == 'open' then
    redis.call('HSET', calls, a, 'P' .. place .. ' ' .. b)
  elseif op == 'opendone' then
    redis.call('HSET', calls, a, 'D' .. place .. ' ' .. b)
  elseif op == 'finish' then
    redis.call('HSET', calls, a, 'D' .. string.sub(redis.call('HGET', calls, a), 2) .. '\\n' .. b)
  elseif op == 'forget' then
    redis.call('HDEL', calls, a)
  elseif op == 'remember' then
    redis.call('ZADD', seen, place, a)
    remembered = true
  elseif op == 'put' then
    local old = redis.call('HGET', out, a)
    redis.call('HSET', out, a, (old and string.match(old, '^%d+') or place) .. ' ' .. b)
  elseif op == 'ack' then
    redis.call('HDEL', out, a)
  elseif op == 'set' then
    redis.call('HSET', meta, 'f:' .. a, b)
  elseif op == 'drop' then
    redis.call('HDEL', meta, 'f:' .. a)
  end
end
if remembered then redis.call('ZREMRANGEBYRANK', seen, 0, -(tonumber(ARGV[5]) + 1)) end
redis.call('HSET', meta, 'commit', ARGV[2], 'revision', revision + 1, 'start', start, 'place', place,
  'sizes', sizes(), 'updated', seconds())
refresh(ARGV[4])
return revision + 1
"""

_INFO = """
local function info()
  local kept = redis.call('HMGET', meta, 'epoch', 'updated', 'revision', 'token')
  if not kept[1] then return false end
  local size = 0
  for _, each in ipairs(redis.call('LRANGE', log, 0, -1)) do size = size + #each end
  for _, key in ipairs({calls, out}) do
    for _, each in ipairs(redis.call('HVALS', key)) do size = size + #each end
  end
  local fields = redis.call('HGETALL', meta)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'f:' then size = size + #fields[i + 1] end
  end
  return {tonumber(kept[2] or 0), tonumber(kept[1]), tonumber(kept[3] or 0), kept[4] ~= '' and 1 or 0,
    redis.call('LLEN', log), redis.call('HLEN', calls), redis.call('HLEN', out), size}
end
"""

_LOOK = (
    _INFO
    + """
-- Describes a session; nil where there is none.
return info()
"""
)

_READ = (
    _INFO
    + """
-- Gives what is kept, as a claim does, and describes it; nothing is changed. Nil where there is no session.
local known = info()
if not known then return false end
return {1, redis.call('HGETALL', meta), redis.call('LRANGE', log, 0, -1), redis.call('HGETALL', calls),
  redis.call('ZRANGE', seen, 0, -1), redis.call('HGETALL', out), known}
"""
)

_RELEASE = """
-- ARGV: token.
if redis.call('HGET', meta, 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', meta, 'token', '')
return 1
"""

_DELETE = """
-- ARGV: milliseconds to live. What stays for so long is a token that nobody has: an owner that is still
-- there is fenced, and does not take the loss for a failover which it should mend.
local was = redis.call('HEXISTS', meta, 'epoch')
redis.call('DEL', unpack(KEYS))
redis.call('HSET', meta, 'token', '')
redis.call('PEXPIRE', meta, ARGV[1])
return was
"""


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


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its digest, by which the server knows it once it has run."""

    text: str
    digest: str


def _script(body: str) -> Script:
    text = _SIZES + body
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


CLAIM = _script(_CLAIM)
COMMIT = _script(_COMMIT)
RELEASE = _script(_RELEASE)
LOOK = _script(_LOOK)
READ = _script(_READ)
DELETE = _script(_DELETE)


Reply: TypeAlias = "bytes | int | list[Reply] | None"
_Triple: TypeAlias = tuple[str, str, str]

STRANGE = "The session store gave an answer that this version cannot read."
_FIELD = b"f:"


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """What a script gave of a session. ``whole`` is False if a part of it went missing in the store."""

    whole: bool
    token: str
    epoch: int
    revision: int
    state: SessionState


def key_names(prefix: str, key: SessionKey) -> list[str]:
    """Name a session's keys. What stands in braces alone decides the hash slot; no name can hold one."""
    slot = f"{_escaped(key.subject)}/{_escaped(key.session_id)}"
    return [f"{prefix}:{{{slot}}}:{kind}" for kind in KEYS]


def index_name(prefix: str, subject: str) -> str:
    """Name the key under which a subject's sessions are counted."""
    return f"{prefix}:{{{_escaped(subject)}}}:kept"


def meta_pattern(prefix: str, subject: str | None = None, session_id: str | None = None) -> str:
    """Write what SCAN matches to find one key of each session: of all, of a subject, of an id."""
    who, which = ("*" if part is None else _escaped(part) for part in (subject, session_id))
    return f"{prefix}:{{{who}/{which}}}:{KEYS[0]}"


def session_of(name: str) -> SessionKey | None:
    """Read back whose session a key belongs to; None for a key that `key_names` did not make."""
    subject, slash, session_id = name.partition("{")[2].partition("}")[0].partition("/")
    if not slash:
        return None
    return SessionKey(*(unquote(part, errors="surrogatepass") for part in (subject, session_id)))


def _escaped(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")


def written(operations: Sequence[Operation]) -> Iterator[str]:
    """Write operations as the commit script takes them: three arguments each."""
    for operation in operations:
        yield from _triple(operation)


def _triple(operation: Operation) -> _Triple:
    match operation:
        case AppendLog(entry=entry):
            if isinstance(entry, Amendment):
                return "amend", str(entry.position), encode_entry(entry)
            return "append", "", encode_entry(entry)
        case TrimLog(before=before):
            return "trim", str(before), ""
        case OpenCall(call=call):
            return "open" if call.result is None else "opendone", call.call_id, encode_call(call)
        case FinishCall(call_id=call_id, result=result):
            return "finish", call_id, encode_entry(result)
        case ForgetCall(call_id=call_id):
            return "forget", call_id, ""
        case RememberInbound(event_id=event_id):
            return "remember", event_id, ""
        case PutOutbound(event=event):
            return "put", event.event_id, encode_outbound(event)
        case AckOutbound(event_id=event_id):
            return "ack", event_id, ""
        case SetField(name=name, value=value):
            return ("set", name, value) if value else ("drop", name, "")
        case _:
            assert_never(operation)


def read(reply: Reply) -> LoadedSession:
    """Read what a claim gives. Raises `StoreUnavailable` for what this version cannot read."""
    try:
        whole, meta, log, calls, seen, outbound, *_ = _items(reply)
        fields = dict(_pairs(meta))
        state = SessionState(log_start=int(fields.get(b"start", 0)))
        for entry in _texts(log):
            _append(state, entry)
        for call in (_call(value) for value in _placed(calls)):
            state.calls[call.call_id] = call
        state.seen.update((text(event_id), None) for event_id in _texts(seen))
        for value in _placed(outbound):
            record = decode_outbound(value)
            state.outbound[record.event_id] = record
        state.fields.update(
            (text(name[len(_FIELD) :]), text(value))
            for name, value in fields.items()
            if name.startswith(_FIELD)
        )
        epoch, revision = int(fields.get(b"epoch", 0)), int(fields.get(b"revision", 0))
        return LoadedSession(bool(whole), text(fields.get(b"token", b"")), epoch, revision, state)
    except ValueError as error:
        raise StoreUnavailable("The store holds something that this version cannot read.") from error


def _append(state: SessionState, stored: bytes) -> None:
    entry, _, amendment = stored.partition(b"\n")
    state.apply(AppendLog(decode_entry(entry)))
    if amendment:
        state.apply(AppendLog(decode_entry(amendment)))


def _call(stored: bytes) -> CallRecord:
    record, _, finished = stored.partition(b"\n")
    call = decode_call(record)
    if not finished:
        return call
    result = decode_entry(finished)
    if not isinstance(result, ToolResult):
        raise ValueError("A call's result is no result.")
    return msgspec.structs.replace(call, result=result)


def _placed(reply: Reply) -> list[bytes]:
    """Give a hash's values in the order of the places that they begin with."""
    placed = []
    for _, value in _pairs(reply):
        place, _, record = value.partition(b" ")
        placed.append((int(place.lstrip(b"PD")), record))
    return [record for _, record in sorted(placed)]


def _pairs(reply: Reply) -> Iterator[tuple[bytes, bytes]]:
    flat = iter(_texts(reply))
    return zip(flat, flat, strict=True)


def _texts(reply: Reply) -> Iterable[bytes]:
    return (each if isinstance(each, bytes) else b"" for each in _items(reply))


def _items(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise ValueError("A list was expected.")
    return reply


def text(value: Reply) -> str:
    """Read a name or a value; what is no UTF-8 was not written here, and is made readable."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""

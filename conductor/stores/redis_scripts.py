"""What happens inside Redis: claim and commit as Lua scripts, each of which runs as one step.

A session is five keys of one hash slot, which expire together, or never:

- ``meta``, a hash: ``token`` of the owner, empty without one, ``epoch``, ``revision``, ``commit`` (the last
  one's id), ``start`` (the first position of the log), ``place`` (a counter that orders calls, ids and
  events), ``sizes`` (of the other keys, so that one which went missing by itself is noticed), ``updated``
  (epoch seconds, for people), and ``f:NAME`` for each of the fields;
- ``log``, a list: an entry, and after a line feed the last amendment of it;
- ``calls``, a hash: ``P`` (pending) or ``D`` (done), place, space, record, and after a line feed its result;
- ``seen``, a sorted set: inbound ids by place;
- ``out``, a hash: place, space, record of an outbound event.

Data are opaque to the scripts. JSON text holds no line feed, so that one may stand between two.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1

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

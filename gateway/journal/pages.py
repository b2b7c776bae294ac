"""Pages of the journal: what a filter may take, looked for in Redis.

The script says less than `Filter.takes`, which looks at what it returns.
"""

import json
import re

from gateway.journal.filter import Filter
from gateway.journal.groups import FAILURES
from gateway.journal.scripts import script

# Returns a page of deliveries, the newest first: the stream's id of each, and its fields (none: it
# is gone). Those that are not sought are left out, but for the last one, which says how far it has
# looked. With calls it ends before those that would be too many bytes, but has one at least, as
# other clients of Redis wait meanwhile. Arguments: newest, oldest, most that are looked at, most
# that are returned, most bytes of calls (0: without them), bytes that a request without a message
# counts, and what `sought` returns.
PAGE = script("""
local call, find, sub = redis.call, string.find, string.sub
local function get(key, name)
    local value = redis.pcall('HGET', key, name)
    return type(value) == 'string' and value or '' -- it may be no hash any more
end
local looked, most, calls = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local states, status, identities = ARGV[7], ARGV[8], ARGV[9]
local texts = {unpack(ARGV, 10)}
local function identified(about)
    local at, _ = 1
    repeat
        _, at = find(about, '"identity": "', at, true)
        local place = at and tonumber(sub(about, at + 1, at + 4), 16)
    until not at or place and sub(identities, place + 1, place + 1) == '1'
    return at
end
local function sought(key)
    if states ~= '' then
        local state = get(key, 'state')
        if not find(states, ',' .. state .. ',', 1, true) then
            return false
        end
    end
    if status ~= '' and not find(get(key, 'status'), status) then
        return false
    end
    local about = (texts[1] or identities ~= '') and get(key, 'about') or ''
    for _, text in ipairs(texts) do
        if not find(about, text, 1, true) then
            return false
        end
    end
    return identities == '' or identified(about)
end
local function newer(one, other)
    local ms, seq = string.match(one[1], '(%d+)-(%d+)')
    local other_ms, other_seq = string.match(other[1], '(%d+)-(%d+)')
    if ms ~= other_ms then
        return tonumber(ms) > tonumber(other_ms)
    end
    return tonumber(seq) > tonumber(other_seq)
end
local names = {
    'about', 'state', 'task_id', 'status', 'seconds', 'published', 'error', 'attempts',
    'ended_at', 'replays', 'replaying', 'asked',
}
local function fields(key)
    if calls > 0 then
        return readable(redis.pcall('HGETALL', key))
    end
    local values, found = redis.pcall('HMGET', key, unpack(names)), {}
    for i, value in ipairs(values) do
        if value then
            found[#found + 1] = names[i]
            found[#found + 1] = value
        end
    end
    return values.err and readable(values) or found
end
local taken = call('XREVRANGE', deliveries, ARGV[1], ARGV[2], 'COUNT', looked)
local others = call('XREVRANGE', refused, ARGV[1], ARGV[2], 'COUNT', looked)
local page, number, left, d, r, skipped = {}, 0, calls, 1, 1
while number < most and d + r - 2 < looked do
    local entry = taken[d]
    if others[r] and not (entry and newer(entry, others[r])) then
        entry, r = others[r], r + 1
    elseif entry then
        d = d + 1
    else
        break
    end
    local key = prefix .. entry[2][2]
    if sought(key) then
        left = left - (entry[2][4] or ARGV[6])
        if calls > 0 and left < 0 and number > 0 then
            return page
        end
        number, skipped = number + 1
        page[number] = {entry[1], fields(key)}
    else
        skipped = entry
    end
end
if skipped then
    page[number + 1] = {skipped[1], fields(prefix .. skipped[2][2])}
end
return page
""")


def sought(wanted: Filter) -> list[str | bytes]:
    """Return what is sought; what `wanted` takes has all of this, and an empty text is anything.

    It is states between commas, a pattern of the status, 65,536 digits with a 1 at each number that
    is the first four of an identity, and texts that ``about`` has.
    """
    states = wanted.state or (FAILURES if wanted.group else ())
    status = "0" if wanted.status == "gone" else re.sub("[x?]", ".", wanted.status)
    identities = bytearray(b"0" * 65_536 if wanted.identities else b"")
    for each in wanted.identities:
        identities[int(each[:4], 16)] = ord("1")
    globs = (wanted.route, wanted.source, wanted.event)
    return [
        f",{','.join(sorted(states))}," if states else "",
        f"^{status}$" if status else "",
        bytes(identities),
        *(json.dumps(text)[1:-1] for glob in globs for text in glob.split("*") if text),
    ]

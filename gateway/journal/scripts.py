"""The Lua scripts that change the journal in Redis, atomically.

Its keys begin with the deployment's prefix: the stream *deliveries* has the ids in the order of
their arrival, with the bytes of each; *delivery:ID* is a hash with what is known of one; the sorted
set *open* has those whose end is not known, by the time (ms) of the next look at their results;
*bytes* is the sum of all. The stream *refused* has the ids of requests without a message, which
were refused or ignored, so that these never displace deliveries. Every change is published on the
channel *changes*. Where the account may not publish, it is written all the same, and only `WRITE`
says so. Only Redis' own clock is used. What a script does is said by the method of
`gateway.journal.store.JournalStore` that sends it. *absent* is a key that there never is: see
`gateway.journal.store.Keys`.

The sorted set *failing* has deliveries that have failed and are not counted yet, by the time (us)
of that: see `gateway.journal.group_scripts`.

Where there is an archive, the sorted set *changed* has those that have changed since they were
archived, by the time (us) of the last change, and *missed* counts those that were removed before.
Each script has these two keys last, if at all.
"""

#: The time in milliseconds.
NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# Marks deliveries as changed, and as missed if they are removed so; without an archive it does
# nothing.
_MARK = """
local function microseconds()
    local time = redis.call('TIME')
    return string.format('%.0f', time[1] * 1e6 + time[2])
end
local function mark(changed, id)
    if changed then
        redis.call('ZADD', changed, microseconds(), id)
    end
end
local function missed(changed, key, ids)
    local number = changed and redis.call('ZREM', changed, unpack(ids)) or 0
    if number > 0 then
        redis.call('INCRBY', key, number)
    end
end
"""

# What is told of a key that is no hash any more, in the place of its fields.
READABLE = """
local function readable(fields)
    return fields.err and {'error', fields.err} or fields
end
"""

# A state is only replaced by one further on; a task may have ended before its answer is written.
_RANK = """
local rank = {received = 1, refused = 2, accepted = 2, replayed = 2, running = 3}
local well = {succeeded = 1, ['answered-late'] = 1, ignored = 1}
local fails = {failed = 1, expired = 1, ['dead-lettered'] = 1}
local late = {['answered-late'] = 1, ['late-answer-failed'] = 1, ['late-answer-uncertain'] = 1}
local function further(state, before)
    if before == 'late-answer-failed' then
        return late[state] or fails[state]
    end
    if late[state] then
        return before == 'succeeded' or rank[before] and before ~= 'refused'
    end
    return not before or (rank[state] or 4) > (rank[before] or 4)
end
local function open(state)
    return rank[state] and state ~= 'refused'
end
"""

# KEYS: deliveries, open, bytes, failing, absent, changed, missed. Arguments: most deliveries, most
# bytes, life (ms), first look (ms from now), what keys of deliveries begin with, channel, 1 to drop
# the call of one that has ended well, then for each delivery what `gateway.journal.store.Row` has.
WRITE = (
    _RANK
    + _MARK
    + NOW
    + """
local life, prefix, channel = ARGV[3], ARGV[5], ARGV[6]
local drops = ARGV[7] == '1'
local count, added, changed, marks, failing, at = 0, 0, {}, {}, {}, KEYS[6] and microseconds()
for i = 8, #ARGV, 11 do
    local id, state, followed, task, status, seconds, published, failure, attempts, about, call =
        unpack(ARGV, i, i + 10)
    local key = prefix .. id
    local old = redis.call('HMGET', key, 'state', 'task_id', 'replays', 'error', 'attempts')
    local before = old[1]
    if old[3] then
        state, task, failure, attempts = before, old[2], old[4] or '', old[5] or ''
    elseif not further(state, before) then
        state = before
        if not rank[before] and before ~= 'succeeded' then -- how the task has failed
            failure, attempts = old[4] or '', old[5] or ''
        end
    end
    local place
    if not before and about ~= '' then
        local size = #id + #state + #task + #status + #seconds + #published + #failure + #about
            + #call
        place = redis.call('XADD', KEYS[1], '*', 'id', id, 'bytes', size)
        count, added = count + 1, added + size
    elseif about ~= '' then
        place = redis.call('HGET', key, 'position') or ''
    end
    if not before and about == '' then
        state = nil -- the bounds have removed it
    elseif status == '' then
        redis.call('HSET', key, 'state', state, 'task_id', task, 'about', about, 'call', call,
            'position', place or '')
    else
        redis.call('HSET', key, 'state', state, 'task_id', task, 'status', status,
            'seconds', seconds, 'published', published, 'error', failure, 'attempts', attempts)
        if about ~= '' then
            redis.call('HSET', key, 'about', about, 'call', call, 'position', place)
        end
    end
    if state and drops and well[state] then
        redis.call('HDEL', key, 'call')
    end
    if before then
        if not open(state) then
            redis.call('ZREM', KEYS[2], id)
        end
    elseif state then
        if open(state) and followed == '1' then
            redis.call('ZADD', KEYS[2], now + ARGV[4], id)
        end
        redis.call('PEXPIRE', key, life)
    end
    if state then
        if fails[state] and state ~= before then
            failing[#failing + 1], failing[#failing + 2] = at or microseconds(), id
        end
        marks[#marks + 1], marks[#marks + 2] = at, id
        changed[#changed + 1] = id .. ' ' .. state
    end
end
if at and #marks > 0 then
    redis.call('ZADD', KEYS[6], unpack(marks))
end
if #failing > 0 then
    redis.call('ZADD', KEYS[4], unpack(failing))
end
local bytes, number = redis.call('INCRBY', KEYS[3], added), redis.call('XLEN', KEYS[1])
if (number == count) ~= (bytes == added) then -- one of the two keys was lost
    bytes = 0
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
        bytes = bytes + entry[2][4]
    end
    redis.call('SET', KEYS[3], bytes)
end
while number > 1 and (number > tonumber(ARGV[1]) or bytes > tonumber(ARGV[2])) do
    local places, keys, ids, removed = {}, {}, {}, 0
    local count = math.min(math.max(number - ARGV[1], 8), 100)
    for i, oldest in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', count)) do
        if number <= 1 or (number <= tonumber(ARGV[1]) and bytes <= tonumber(ARGV[2])) then
            break
        end
        places[i], keys[i], ids[i] = oldest[1], prefix .. oldest[2][2], oldest[2][2]
        removed = removed + oldest[2][4]
        bytes, number = bytes - oldest[2][4], number - 1
    end
    redis.call('XDEL', KEYS[1], unpack(places))
    redis.call('UNLINK', unpack(keys))
    redis.call('ZREM', KEYS[2], unpack(ids))
    redis.call('DECRBY', KEYS[3], removed)
    missed(KEYS[6], KEYS[7], ids)
end
for _, change in ipairs(changed) do
    local told = redis.pcall('PUBLISH', channel, change)
    if type(told) == 'table' then
        return told.err
    end
end
"""
)

# The place in the stream is one that no delivery has, so that both streams can be read as one.
# KEYS: the hash, refused, changed, missed. Arguments: id, most requests, life (ms), what keys of
# deliveries begin with, channel, state, then fields and their values
REFUSE = (
    _MARK
    + NOW
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then
    return
end
local number = 1e9
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if last then
    local ms, seq = string.match(last[1], '(%d+)-(%d+)')
    if tonumber(ms) >= now then
        now, number = tonumber(ms), seq + 1
    end
end
local place = string.format('%.0f-%.0f', now, number)
redis.call('HSET', KEYS[1], 'state', ARGV[6], 'position', place, unpack(ARGV, 7))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('XADD', KEYS[2], place, 'id', ARGV[1])
mark(KEYS[3], ARGV[1])
while redis.call('XLEN', KEYS[2]) > tonumber(ARGV[2]) do
    local oldest = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
    redis.call('XDEL', KEYS[2], oldest[1])
    redis.call('UNLINK', ARGV[4] .. oldest[2][2])
    missed(KEYS[3], KEYS[4], {oldest[2][2]})
end
redis.pcall('PUBLISH', ARGV[5], ARGV[1] .. ' ' .. ARGV[6])
"""
)

# KEYS: open, absent. Arguments: number, first pause (ms), longest pause (ms), what keys of
# deliveries begin with
DUE = (
    NOW
    + """
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
    local task = redis.pcall('HGET', ARGV[4] .. id, 'task_id')
    if type(task) == 'string' then
        local looks = tonumber(redis.pcall('HINCRBY', ARGV[4] .. id, 'looks', 1)) or 20
        local pause = math.min(ARGV[2] * 2 ^ math.min(looks, 20), ARGV[3])
        redis.call('ZADD', KEYS[1], now + pause, id)
        found[#found + 1] = {id, task}
    else
        redis.call('ZREM', KEYS[1], id)
    end
end
return found
"""
)

# Returns what `gateway.journal.store.Size` has. KEYS: deliveries, refused, open, bytes, absent,
# changed, missed. Arguments: life (ms), most that are removed of each stream, what keys of
# deliveries begin with
TRIM = (
    _MARK
    + NOW
    + """
local last, removed = now - ARGV[1], 0
for _, stream in ipairs({KEYS[1], KEYS[2]}) do
    for _, old in ipairs(redis.call('XRANGE', stream, '-', last, 'COUNT', ARGV[2])) do
        redis.call('XDEL', stream, old[1])
        redis.call('UNLINK', ARGV[3] .. old[2][2])
        redis.call('ZREM', KEYS[3], old[2][2])
        missed(KEYS[6], KEYS[7], {old[2][2]})
        if old[2][4] then
            redis.call('DECRBY', KEYS[4], old[2][4])
        end
        removed = removed + 1
    end
end
local bytes = redis.call('GET', KEYS[4]) or 0
local waiting, lag, lost = 0, 0, 0
if KEYS[6] then
    waiting, lost = redis.call('ZCARD', KEYS[6]), redis.call('GET', KEYS[7]) or 0
    local oldest = redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
    lag = oldest[2] and math.max(microseconds() - oldest[2], 0) / 1e6 or 0
end
return {removed, redis.call('XLEN', KEYS[1]), redis.call('ZCARD', KEYS[3]), bytes,
    waiting, string.format('%.3f', lag), lost}
"""
)

# The error of a delivery with redacted values is shortened, as its text may have one.
# KEYS: the hash, open, failing, changed, missed. Arguments: id, task id, state, 1 if it is an end
# that the caller counts, channel, 1 to drop the call of one that has ended well, fields and values
SETTLE = (
    _RANK
    + _MARK
    + """
local before = redis.call('HMGET', KEYS[1], 'task_id', 'state', 'status', 'replays')
if before[1] ~= ARGV[2] then
    return
end
if before[2] ~= 'refused' and further(ARGV[3], before[2]) then
    if ARGV[7] == 'error' then
        local about = redis.call('HGET', KEYS[1], 'about')
        if about and string.find(about, '"redacted": [', 1, true) then
            ARGV[8] = string.match(ARGV[8], '^(.-): ') or ARGV[8]
        end
    end
    redis.call('HSET', KEYS[1], 'state', ARGV[3], unpack(ARGV, 7))
    if ARGV[6] == '1' and well[ARGV[3]] then
        redis.call('HDEL', KEYS[1], 'call')
    end
    if fails[ARGV[3]] then
        redis.call('ZADD', KEYS[3], microseconds(), ARGV[1])
    end
    mark(KEYS[4], ARGV[1])
    redis.pcall('PUBLISH', ARGV[5], ARGV[1] .. ' ' .. ARGV[3])
end
if ARGV[4] == '0' or redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
    return
end
local status = tonumber(before[3])
if before[4] or status and status >= 200 and status < 300 then
    return 'accepted'
end
return status and 'error' or 'unknown'
"""
)

# Returns what `gateway.journal.store.Begun` has. KEYS: the hash, changed, missed. Arguments: a new
# task id, the task id that it must have now, its id, 1 to publish the task of an interrupted replay
# again, for how long one is under way (ms)
BEGIN_REPLAY = (
    _MARK
    + NOW
    + """
local before = redis.call('HMGET', KEYS[1], 'task_id', 'replaying', 'replaying_until')
if before[2] then
    local left = before[3] and before[3] - now
    if left and left > 0 and left < 600000 then -- more: the clock was set back
        return {'under way', before[2]}
    elseif ARGV[4] == '0' then
        return {'interrupted', before[2]}
    end
    ARGV[1] = before[2]
elseif before[1] ~= ARGV[2] then
    return {'run', before[1] or ''}
end
redis.call('HSET', KEYS[1], 'replaying', ARGV[1], 'replaying_until',
    string.format('%.0f', now + ARGV[5]))
mark(KEYS[2], ARGV[3])
return {'begun', ARGV[1]}
"""
)

# Returns nothing where Redis has lost the beginning. KEYS: the hash, open, changed, missed.
# Arguments: id, the replay's task id, 1 if the broker has taken it, 0 if not, '' if that is not
# known, first look (ms from now), channel, the runs until now
END_REPLAY = (
    _MARK
    + NOW
    + """
if redis.call('HGET', KEYS[1], 'replaying') ~= ARGV[2] then
    return redis.call('HGET', KEYS[1], 'task_id') == ARGV[2] or redis.call('EXISTS', KEYS[1]) == 0
end
redis.call('HDEL', KEYS[1], 'replaying_until')
if ARGV[3] == '' then
    return true
end
redis.call('HDEL', KEYS[1], 'replaying')
mark(KEYS[3], ARGV[1])
if ARGV[3] == '1' then
    redis.call('HSET', KEYS[1], 'task_id', ARGV[2], 'state', 'replayed', 'looks', 0, 'error', '',
        'runs', ARGV[6])
    redis.call('HDEL', KEYS[1], 'begun_at', 'ended_at', 'late_at', 'attempts')
    redis.call('HINCRBY', KEYS[1], 'replays', 1)
    redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
    redis.pcall('PUBLISH', ARGV[5], ARGV[1] .. ' replayed')
end
return true
"""
)

# Returns for each: id, time of the change, all fields (none: it is gone). KEYS: changed, absent.
# Arguments: number, what keys of deliveries begin with, most bytes, least age (us)
CHANGED = (
    _MARK
    + READABLE
    + """
local found, left = {}, tonumber(ARGV[3])
local last = string.format('%.0f', microseconds() - ARGV[4])
local some = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', last, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
if #some == 0 then -- the clock was set back
    some = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. microseconds(), '+inf', 'WITHSCORES',
        'LIMIT', 0, ARGV[1])
end
for i = 1, #some, 2 do
    local fields = readable(redis.pcall('HGETALL', ARGV[2] .. some[i]))
    found[#found + 1] = {some[i], some[i + 1], fields}
    for _, field in ipairs(fields) do
        left = left - #field
    end
    if left < 0 then
        break
    end
end
return found
"""
)

# Returns the last one's place (empty: there is none), and of those that are not marked id, state,
# task id and replays. KEYS: deliveries or refused, changed, absent. Arguments: newest, number, what
# keys of deliveries begin with
UNMARKED = """
local last, found = '', {}
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
    last = entry[1]
    local id = entry[2][2]
    local about = redis.pcall('HMGET', ARGV[3] .. id, 'state', 'task_id', 'replays')
    if about[1] and not redis.call('ZSCORE', KEYS[2], id) then
        found[#found + 1] = {id, about[1], about[2] or '', about[3] or '0'}
    end
end
return {last, found}
"""

# KEYS: changed, missed. Arguments: for each delivery its id, the time of the change, and 1 if it is
# gone
ARCHIVED = """
for i = 1, #ARGV, 3 do
    if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then
        redis.call('ZREM', KEYS[1], ARGV[i])
        if ARGV[i + 2] == '1' then
            redis.call('INCR', KEYS[2])
        end
    end
end
"""

# KEYS: changed. Arguments: ids
MARK = (
    _MARK
    + """
for _, id in ipairs(ARGV) do
    redis.call('ZADD', KEYS[1], 'NX', microseconds(), id)
end
"""
)

# Returns a text of 0 and 1. KEYS: deliveries, absent. Arguments: what keys of deliveries begin
# with, ids
THERE = """
local found = {}
for i = 2, #ARGV do
    found[i - 1] = redis.call('EXISTS', ARGV[1] .. ARGV[i])
end
return table.concat(found)
"""

# KEYS: the hash, deliveries, refused, open, bytes, changed, failing. Arguments: id, its position
ERASE = """
local size
for i = 2, 3 do
    local entry = redis.call('XRANGE', KEYS[i], ARGV[2], ARGV[2])[1]
    if entry and entry[2][2] == ARGV[1] then
        redis.call('XDEL', KEYS[i], ARGV[2])
        size = entry[2][4] or size
    end
end
if size then
    redis.call('DECRBY', KEYS[5], size)
end
for _, key in ipairs({KEYS[4], KEYS[6], KEYS[7]}) do
    redis.call('ZREM', key, ARGV[1])
end
return redis.call('DEL', KEYS[1])
"""

# Returns a page of deliveries, the newest first: the stream's id of each, and its fields (none: it
# is gone). Those that are not sought are left out, but for the last one, which says how far it has
# looked. With calls it ends before those that would be too many bytes, but has one at least, as
# other clients of Redis wait meanwhile. KEYS: deliveries, refused, absent. Arguments: newest,
# oldest, most that are looked at, most that are returned, what keys of deliveries begin with, most
# bytes of calls (0: without them), bytes that a request without a message counts; then what is
# sought, where an empty text is anything: states between commas, a pattern of the status, 65,536
# digits, a 1 at the number that is the first four of an identity, and texts that `about` has
PAGE = (
    READABLE
    + """
local call, find, sub = redis.call, string.find, string.sub
local function get(key, name)
    local value = redis.pcall('HGET', key, name)
    return type(value) == 'string' and value or '' -- it may be no hash any more
end
local looked, most, prefix, calls = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local states, status, identities = ARGV[8], ARGV[9], ARGV[10]
local texts = {unpack(ARGV, 11)}
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
    'ended_at', 'replays', 'replaying',
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
local deliveries = call('XREVRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', looked)
local refused = call('XREVRANGE', KEYS[2], ARGV[1], ARGV[2], 'COUNT', looked)
local page, number, left, d, r, skipped = {}, 0, calls, 1, 1
while number < most and d + r - 2 < looked do
    local entry = deliveries[d]
    if refused[r] and not (entry and newer(entry, refused[r])) then
        entry, r = refused[r], r + 1
    elseif entry then
        d = d + 1
    else
        break
    end
    local key = prefix .. entry[2][2]
    if sought(key) then
        left = left - (entry[2][4] or ARGV[7])
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
"""
)

"""The Lua scripts that read and change the journal in Redis, atomically.

Its keys begin with the deployment's prefix: the stream *deliveries* has the ids in the order of
their arrival, with the bytes of each; *delivery:ID* is a hash with what is known of one; the sorted
set *open* has those whose end is not known, by the time (ms) of the next look at their results;
*bytes* is the sum of all. The stream *refused* has the ids of requests without a message, which
were refused or ignored, so that these never displace deliveries. Every change is published on the
channel *changes*. Where the account may not publish, it is written all the same, and only `WRITE`
says so. Only Redis' own clock is used. What a script does is said by the method of
`gateway.journal.store.JournalStore` that sends it.

The sorted set *failing* has deliveries that have failed and are not counted yet, by the time (us)
of that: see `gateway.journal.group_scripts`. The sorted set *changed* has those that have changed
since they were archived, by the time (us) of the last change, and *missed* counts those that were
removed before; without an archive nothing is marked as changed.

There is no key *absent*: while the slot of all these moves to another node of a cluster, a script
that names it has to wait, and so finds all keys that it does not name, or none.
"""

from gateway.config.settings import Config


class Keys:
    """The keys of one deployment; this module and `group_scripts` say what they have.

    With `part`, which ends with a colon, they are those of another journal with the same channel.
    """

    def __init__(self, config: Config, part: str = ""):
        # In a cluster the whole journal is on one node, by the tag in braces.
        prefix = f"{config.prefix}{{journal}}:"
        self.changes = f"{prefix}changes"
        prefix += part
        self.deliveries = f"{prefix}deliveries"
        self.refused = f"{prefix}refused"
        self.open = f"{prefix}open"
        self.bytes = f"{prefix}bytes"
        self.failing = f"{prefix}failing"
        self.changed = f"{prefix}changed"
        self.missed = f"{prefix}missed"
        self.absent = f"{prefix}absent"
        self.counts = f"{prefix}counts"
        self.groups = f"{prefix}groups"
        self.news = f"{prefix}news"
        self.told = f"{prefix}told"
        self.rates = f"{prefix}rates"
        #: What the key of each delivery begins with.
        self.prefix = f"{prefix}delivery:"
        #: What the key of each group begins with.
        self.group = f"{prefix}group:"
        #: Those that each script gets (`script`).
        self.all = (
            self.deliveries, self.refused, self.open, self.bytes, self.failing, self.changed,
            self.missed, self.absent,
        )  # fmt: skip

    def of(self, delivery_id: str) -> str:
        return self.prefix + delivery_id


#: The time in milliseconds.
NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

#: What is told of a key that is no hash any more, in the place of its fields.
READABLE = """
local function readable(fields)
    return fields.err and {'error', fields.err} or fields
end
"""

# `remove` removes some of a stream, and all that is known of them. A state is only replaced by one
# `further` on; a task may have ended before its answer is written.
_BEGIN = """
local deliveries, refused, open, bytes, failing, changed, missed, absent = unpack(KEYS)
local archived, channel, prefix = table.remove(ARGV) == '1', table.remove(ARGV), table.remove(ARGV)
local function microseconds()
    return string.format('%.0f', time[1] * 1e6 + time[2])
end
local function mark(id)
    if archived then
        redis.call('ZADD', changed, microseconds(), id)
    end
end
local function announce(id, state)
    return redis.pcall('PUBLISH', channel, id .. ' ' .. state)
end
local function remove(stream, some)
    local places, keys, ids, size = {}, {}, {}, 0
    for i, each in ipairs(some) do
        places[i], keys[i], ids[i] = each[1], prefix .. each[2][2], each[2][2]
        size = size + (each[2][4] or 0)
    end
    if #ids > 0 then
        redis.call('XDEL', stream, unpack(places))
        redis.call('UNLINK', unpack(keys))
        redis.call('ZREM', open, unpack(ids))
        redis.call('DECRBY', bytes, size)
        local number = archived and redis.call('ZREM', changed, unpack(ids)) or 0
        if number > 0 then
            redis.call('INCRBY', missed, number)
        end
    end
end
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
"""


def script(body: str) -> str:
    """Return a whole script. It gets all keys that the module names, but for *delivery:ID*.

    Its last arguments are what keys of deliveries begin with, the channel, and 1 if there is an
    archive.
    """
    return NOW + READABLE + _BEGIN + body


# Arguments: most deliveries, most bytes, life (ms), first look (ms from now), 1 to drop the call of
# one that has ended well, then for each delivery what `gateway.journal.store.Row` has.
WRITE = script("""
local function unended(state)
    return rank[state] and state ~= 'refused'
end
local count, added, told, marks, fallen, at = 0, 0, {}, {}, {}, microseconds()
for i = 6, #ARGV, 12 do
    local id, state, followed, task, status, seconds, published, failure, attempts, about, asked,
        call = unpack(ARGV, i, i + 11)
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
            + #asked + #call
        place = redis.call('XADD', deliveries, '*', 'id', id, 'bytes', size)
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
    if asked ~= '' and state then
        redis.call('HSET', key, 'asked', asked)
    end
    if state and ARGV[5] == '1' and well[state] then
        redis.call('HDEL', key, 'call', 'asked')
    end
    if before then
        if not unended(state) then
            redis.call('ZREM', open, id)
        end
    elseif state then
        if unended(state) and followed == '1' then
            redis.call('ZADD', open, now + ARGV[4], id)
        end
        redis.call('PEXPIRE', key, ARGV[3])
    end
    if state then
        if fails[state] and state ~= before then
            fallen[#fallen + 1], fallen[#fallen + 2] = at, id
        end
        marks[#marks + 1], marks[#marks + 2] = at, id
        told[#told + 1] = {id, state}
    end
end
if archived and #marks > 0 then
    redis.call('ZADD', changed, unpack(marks))
end
if #fallen > 0 then
    redis.call('ZADD', failing, unpack(fallen))
end
local size, number = redis.call('INCRBY', bytes, added), redis.call('XLEN', deliveries)
if (number == count) ~= (size == added) then -- one of the two keys was lost
    size = 0
    for _, entry in ipairs(redis.call('XRANGE', deliveries, '-', '+')) do
        size = size + entry[2][4]
    end
    redis.call('SET', bytes, size)
end
-- Where the bounds were lowered, only so many are removed at once: other clients wait meanwhile.
local least = math.max(number - 1000, 1)
local function fits()
    return number <= least or number <= tonumber(ARGV[1]) and size <= tonumber(ARGV[2])
end
while not fits() do
    local some, most = {}, math.min(math.max(number - ARGV[1], 8), 100)
    for i, oldest in ipairs(redis.call('XRANGE', deliveries, '-', '+', 'COUNT', most)) do
        if fits() then
            break
        end
        some[i], size, number = oldest, size - oldest[2][4], number - 1
    end
    remove(deliveries, some)
end
for _, each in ipairs(told) do
    local announced = announce(unpack(each))
    if type(announced) == 'table' then
        return announced.err
    end
end
""")

# The place in the stream is one that no delivery has, so that both streams can be read as one.
# Arguments: id, most requests, life (ms), state, then fields and their values
REFUSE = script("""
local key = prefix .. ARGV[1]
if redis.call('EXISTS', key) == 1 then
    return
end
local number = 1e9
local last = redis.call('XREVRANGE', refused, '+', '-', 'COUNT', 1)[1]
if last then
    local ms, seq = string.match(last[1], '(%d+)-(%d+)')
    if tonumber(ms) >= now then
        now, number = tonumber(ms), seq + 1
    end
end
local place = string.format('%.0f-%.0f', now, number)
if type(redis.pcall('XADD', refused, place, 'id', ARGV[1])) == 'table' then
    -- The clock was set back, and what came last was erased: it is the place after that.
    place = redis.call('XADD', refused, '*', 'id', ARGV[1])
end
redis.call('HSET', key, 'state', ARGV[4], 'position', place, unpack(ARGV, 5))
redis.call('PEXPIRE', key, ARGV[3])
mark(ARGV[1])
local more = math.min(redis.call('XLEN', refused) - ARGV[2], 1000)
if more > 0 then
    remove(refused, redis.call('XRANGE', refused, '-', '+', 'COUNT', more))
end
announce(ARGV[1], ARGV[4])
""")

# Arguments: number, first pause (ms), longest pause (ms)
DUE = script("""
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', now, 'LIMIT', 0, ARGV[1])) do
    local task = redis.pcall('HGET', prefix .. id, 'task_id')
    if type(task) == 'string' then
        local looks = tonumber(redis.pcall('HINCRBY', prefix .. id, 'looks', 1)) or 20
        local pause = math.min(ARGV[2] * 2 ^ math.min(looks, 20), ARGV[3])
        redis.call('ZADD', open, now + pause, id)
        found[#found + 1] = {id, task}
    else
        redis.call('ZREM', open, id)
    end
end
return found
""")

# Returns what `gateway.journal.store.Size` has. Arguments: life (ms), most that are removed of each
# stream
TRIM = script("""
local removed = 0
for _, stream in ipairs({deliveries, refused}) do
    local old = redis.call('XRANGE', stream, '-', now - ARGV[1], 'COUNT', ARGV[2])
    remove(stream, old)
    removed = removed + #old
end
local waiting, lag, lost = 0, 0, 0
if archived then
    waiting, lost = redis.call('ZCARD', changed), redis.call('GET', missed) or 0
    local oldest = redis.call('ZRANGE', changed, 0, 0, 'WITHSCORES')
    lag = oldest[2] and math.max(microseconds() - oldest[2], 0) / 1e6 or 0
end
return {removed, redis.call('XLEN', deliveries), redis.call('ZCARD', open),
    redis.call('GET', bytes) or 0, waiting, string.format('%.3f', lag), lost}
""")

# The error of a delivery with redacted values is shortened, as its text may have one.
# Arguments: id, task id, state, 1 if it is an end that the caller counts, 1 to drop the call of one
# that has ended well, fields and values
SETTLE = script("""
local key = prefix .. ARGV[1]
local before = redis.call('HMGET', key, 'task_id', 'state', 'status', 'replays')
if before[1] ~= ARGV[2] then
    return
end
if before[2] ~= 'refused' and further(ARGV[3], before[2]) then
    if ARGV[6] == 'error' then
        local about = redis.call('HGET', key, 'about')
        if about and string.find(about, '"redacted": [', 1, true) then
            ARGV[7] = string.match(ARGV[7], '^(.-): ') or ARGV[7]
        end
    end
    redis.call('HSET', key, 'state', ARGV[3], unpack(ARGV, 6))
    if ARGV[5] == '1' and well[ARGV[3]] then
        redis.call('HDEL', key, 'call', 'asked')
    end
    if fails[ARGV[3]] then
        redis.call('ZADD', failing, microseconds(), ARGV[1])
    end
    mark(ARGV[1])
    announce(ARGV[1], ARGV[3])
end
if ARGV[4] == '0' or redis.call('ZREM', open, ARGV[1]) == 0 then
    return
end
local status = tonumber(before[3])
if before[4] or status and status >= 200 and status < 300 then
    return 'accepted'
end
return status and 'error' or 'unknown'
""")

# Returns what `gateway.journal.store.Begun` has. Arguments: id, a new task id, the task id that it
# must have now, 1 to publish the task of an interrupted replay again, for how long one is under way
# (ms)
BEGIN_REPLAY = script("""
local key, task = prefix .. ARGV[1], ARGV[2]
local before = redis.call('HMGET', key, 'task_id', 'replaying', 'replaying_until')
if before[2] then
    local left = before[3] and before[3] - now
    if left and left > 0 and left < 600000 then -- more: the clock was set back
        return {'under way', before[2]}
    elseif ARGV[4] == '0' then
        return {'interrupted', before[2]}
    end
    task = before[2]
elseif before[1] ~= ARGV[3] then
    return {'run', before[1] or ''}
end
redis.call('HSET', key, 'replaying', task, 'replaying_until',
    string.format('%.0f', now + ARGV[5]))
mark(ARGV[1])
return {'begun', task}
""")

# Returns nothing where Redis has lost the beginning. Arguments: id, the replay's task id, 1 if the
# broker has taken it, 0 if not, '' if that is not known, first look (ms from now), the runs until
# now
END_REPLAY = script("""
local key = prefix .. ARGV[1]
if redis.call('HGET', key, 'replaying') ~= ARGV[2] then
    return redis.call('HGET', key, 'task_id') == ARGV[2] or redis.call('EXISTS', key) == 0
end
redis.call('HDEL', key, 'replaying_until')
if ARGV[3] == '' then
    return true
end
redis.call('HDEL', key, 'replaying')
mark(ARGV[1])
if ARGV[3] == '1' then
    redis.call('HSET', key, 'task_id', ARGV[2], 'state', 'replayed', 'looks', 0, 'error', '',
        'runs', ARGV[5])
    redis.call('HDEL', key, 'begun_at', 'ended_at', 'late_at', 'attempts')
    redis.call('HINCRBY', key, 'replays', 1)
    redis.call('ZADD', open, now + ARGV[4], ARGV[1])
    announce(ARGV[1], 'replayed')
end
return true
""")

# Returns for each: id, time of the change, all fields (none: it is gone). Arguments: number, most
# bytes, least age (us)
CHANGED = script("""
local found, left = {}, tonumber(ARGV[2])
local last = string.format('%.0f', microseconds() - ARGV[3])
local some = redis.call('ZRANGEBYSCORE', changed, '-inf', last, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
if #some == 0 then -- the clock was set back
    some = redis.call('ZRANGEBYSCORE', changed, '(' .. microseconds(), '+inf', 'WITHSCORES',
        'LIMIT', 0, ARGV[1])
end
for i = 1, #some, 2 do
    local fields = readable(redis.pcall('HGETALL', prefix .. some[i]))
    found[#found + 1] = {some[i], some[i + 1], fields}
    for _, field in ipairs(fields) do
        left = left - #field
    end
    if left < 0 then
        break
    end
end
return found
""")

# Returns the last one's place (empty: there is none), and of those that are not marked id, state,
# task id and replays. Arguments: 1 for deliveries, 2 for refused ones; newest, number
UNMARKED = script("""
local last, found = '', {}
local some = redis.call('XREVRANGE', KEYS[tonumber(ARGV[1])], ARGV[2], '-', 'COUNT', ARGV[3])
for _, entry in ipairs(some) do
    last = entry[1]
    local id = entry[2][2]
    local about = redis.pcall('HMGET', prefix .. id, 'state', 'task_id', 'replays')
    if about[1] and not redis.call('ZSCORE', changed, id) then
        found[#found + 1] = {id, about[1], about[2] or '', about[3] or '0'}
    end
end
return {last, found}
""")

# Arguments: for each delivery its id, the time of the change, and 1 if it is gone
ARCHIVED = script("""
for i = 1, #ARGV, 3 do
    if redis.call('ZSCORE', changed, ARGV[i]) == ARGV[i + 1] then
        redis.call('ZREM', changed, ARGV[i])
        if ARGV[i + 2] == '1' then
            redis.call('INCR', missed)
        end
    end
end
""")

# Arguments: ids
MARK = script("""
for _, id in ipairs(ARGV) do
    redis.call('ZADD', changed, 'NX', microseconds(), id)
end
""")

# Returns a text of 0 and 1. Arguments: ids
THERE = script("""
local found = {}
for i, id in ipairs(ARGV) do
    found[i] = redis.call('EXISTS', prefix .. id)
end
return table.concat(found)
""")

# Arguments: id, its position
ERASE = script("""
local size
for _, stream in ipairs({deliveries, refused}) do
    local entry = redis.call('XRANGE', stream, ARGV[2], ARGV[2])[1]
    if entry and entry[2][2] == ARGV[1] then
        redis.call('XDEL', stream, ARGV[2])
        size = entry[2][4] or size
    end
end
if size then
    redis.call('DECRBY', bytes, size)
end
for _, key in ipairs({open, changed, failing}) do
    redis.call('ZREM', key, ARGV[1])
end
return redis.call('DEL', prefix .. ARGV[1])
""")

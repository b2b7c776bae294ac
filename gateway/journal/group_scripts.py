"""The Lua scripts that count the journal's failures in groups, atomically.

Of the keys of the journal (`gateway.journal.scripts`) the sorted set *groups* has the groups' ids,
by the time (ms) of their last failure; *group:ID* is a hash with what is known of one; the sorted
set *news* has what is to be told of them, by its time (ms); the hash *rates* how many deliveries of
each route were answered, and have failed, by minutes.
"""

from gateway.journal.scripts import NOW, READABLE

# Returns for each: id, time of its failure (ms), about, state, error; '' where it is gone, or runs
# again. KEYS: failing, the key of the process that counts, absent. Arguments: process, how long it
# is the one from now on (ms), number, what keys of deliveries begin with
FAILING = """
if (redis.call('GET', KEYS[2]) or ARGV[1]) ~= ARGV[1] then
    return
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local found = {}
local some = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for i = 1, #some, 2 do
    local fields = redis.pcall('HMGET', ARGV[4] .. some[i], 'about', 'state', 'error')
    found[#found + 1] = {some[i], math.floor(some[i + 1] / 1000),
        fields[1] or '', fields[2] or '', fields[3] or ''}
end
return found
"""

# Counts failures: each that is not counted yet, as its mark is removed with it. A group that is
# new, comes back, or has ten times as many failures as when that was last said, is told in *news*.
# Of groups those that are muted are kept, and those that have failed last, with their news. KEYS:
# failing, groups, news, absent. Arguments: most groups, what keys of groups begin with, 1 to write
# news, then for each failure its delivery's id, time (ms), group's id (empty: it has none), and
# what the group has in common. A group whose numbers are damaged begins anew.
COUNT = (
    NOW
    + """
local counted = 0
for i = 4, #ARGV, 4 do
    local id, ms, group, about = unpack(ARGV, i, i + 3)
    if redis.call('ZREM', KEYS[1], id) == 1 and group ~= '' then
        local key, hour = ARGV[2] .. group, 'h' .. math.floor(ms / 3600000)
        local old = redis.pcall('HMGET', key, 'count', 'resolved', 'base', 'said', hour, 'latest')
        local damaged = old.err
        for j = 1, 5 do
            damaged = damaged or old[j] and (#old[j] > 15 or not string.match(old[j], '^%d+$'))
        end
        if damaged then
            redis.call('DEL', key)
            old = {}
        end
        local base, said, news = tonumber(old[3] or 0), tonumber(old[4] or 1), nil
        counted = counted + 1
        if not old[1] then
            news = 'new'
            redis.call('HSET', key, 'about', about, 'first', ms)
        elseif old[2] and tonumber(ms) >= tonumber(old[2]) then
            news, base, said = 'again', tonumber(old[1]), 1
            redis.call('HDEL', key, 'resolved')
            redis.call('HSET', key, 'again', ms)
        end
        local count = redis.call('HINCRBY', key, 'count', 1)
        if count - base >= 10 * said then
            news, said = 'grown', count - base
        end
        local latest = id .. ' ' .. (old[6] or '')
        latest = string.match(latest, '^%S+ %S+ %S+ %S+ ') or latest
        redis.call('HSET', key, 'last', ms, 'latest', latest, 'base', base, 'said', said)
        if redis.call('HINCRBY', key, hour, 1) == 1 then
            local fields = redis.call('HGETALL', key)
            for j = 1, #fields, 2 do
                local old = string.match(fields[j], '^h(%d+)$')
                if old and old + 24 <= math.floor(ms / 3600000) then
                    redis.call('HDEL', key, fields[j])
                end
            end
        end
        redis.call('ZADD', KEYS[2], ms, group)
        if news and ARGV[3] == '1' then
            redis.call('ZADD', KEYS[3], ms, news .. ' ' .. group)
        end
    end
end
local more = redis.call('ZCARD', KEYS[2]) - ARGV[1]
if more > 0 then
    for _, group in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '+inf')) do
        if more == 0 then
            break
        end
        if now >= (tonumber(redis.pcall('HGET', ARGV[2] .. group, 'muted')) or 0) then
            redis.call('ZREM', KEYS[2], group)
            redis.call('ZREM', KEYS[3], 'new ' .. group, 'again ' .. group, 'grown ' .. group)
            redis.call('DEL', ARGV[2] .. group)
            more = more - 1
        end
    end
end
return counted
"""
)

# Returns the time (ms), then all fields of some groups, those that have failed last first.
# KEYS: groups, absent. Arguments: what keys of groups begin with, the first one's place, number
GROUPS = (
    NOW
    + READABLE
    + """
local found = {now}
local ids = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '-inf', 'LIMIT', ARGV[2], ARGV[3])
for _, id in ipairs(ids) do
    found[#found + 1] = readable(redis.pcall('HGETALL', ARGV[1] .. id))
end
return found
"""
)

# Returns 0 if there is no such group. KEYS: its hash. Arguments: until when (ms; empty: it is
# resolved now)
CHANGE_GROUP = (
    NOW
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
elseif ARGV[1] ~= '' then
    redis.call('HSET', KEYS[1], 'muted', ARGV[1])
else
    redis.call('HDEL', KEYS[1], 'again', 'muted')
    redis.call('HSET', KEYS[1], 'resolved', now)
end
return 1
"""
)

# KEYS: its hash, groups. Arguments: its id
FORGET_GROUP = """
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[1])
"""

# KEYS: news, the key of that pause. Arguments: the time from which on news are told (ms), number
NEWS = """
if redis.call('EXISTS', KEYS[2]) == 1 then
    return {}
end
return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
"""

# KEYS: news, the key of the pause. Arguments: the pause (ms), why no message was sent (empty: it
# was), what need not be told any more, unless it is newer, and the time of each
TOLD = """
redis.call('DEL', KEYS[2])
if ARGV[1] ~= '0' then
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[1])
end
for i = 3, #ARGV, 2 do
    if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then
        redis.call('ZREM', KEYS[1], ARGV[i])
    end
end
"""

# Returns route, answered, failed, and so on. A route is told in *news* once, until its share is
# below the given one again. KEYS: rates, news. Arguments: minutes, share (''; none is given), least
# number of answers, then 'a' for answered or 'f' for failed, route and number of each
RATES = (
    NOW
    + """
local minute, sums = math.floor(now / 60000), {}
for i = 4, #ARGV, 3 do
    redis.call('HINCRBY', KEYS[1], ARGV[i] .. minute .. ' ' .. ARGV[i + 1], ARGV[i + 2])
end
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
    local kind, at, route = string.match(fields[i], '^([afo])(%d*) (.*)$')
    sums[route] = sums[route] or {a = 0, f = 0}
    if kind == 'o' then
        sums[route].told = true
    elseif minute - at >= tonumber(ARGV[1]) then
        redis.call('HDEL', KEYS[1], fields[i])
    else
        sums[route][kind] = sums[route][kind] + fields[i + 1]
    end
end
local found, share = {}, tonumber(ARGV[2])
for route, sum in pairs(sums) do
    if share then
        local passed = sum.a >= tonumber(ARGV[3]) and sum.f >= share * sum.a
        if passed and not sum.told then
            redis.call('HSET', KEYS[1], 'o ' .. route, 1)
            redis.call('ZADD', KEYS[2], now, 'share ' .. route)
        elseif sum.told and not passed then
            redis.call('HDEL', KEYS[1], 'o ' .. route)
        end
    end
    found[#found + 1], found[#found + 2], found[#found + 3] = route, sum.a, sum.f
end
return found
"""
)

"""What is done to claims, as scripts in Redis: of any number of processes one wins.

A claim is a hash:

    state     publishing, confirmed or done; a claim that was released has none
    task      the task id that all tries share
    owner     the try that publishes: only it may say that this came to nothing
    digest    of the first try's body
    first     when that arrived (milliseconds); a release keeps it, and tries, for the tries
    tries     that are still to come
    until     the end of the lease, or of the time that a result is kept (milliseconds)
    answer    of a task that succeeded
    failed    the id of the task that failed last, `:`, and its exception

Redis' clock is the only one.
"""

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local key = KEYS[1]
"""

# task, digest, lease, life (both ms), 1 to count this try, 1 if another body is refused, 1 to
# run again where the result of a confirmed task has expired, ms of all tries
TAKE = (
    _NOW
    + """
local claim = redis.call('HMGET', key, 'state', 'task', 'digest', 'first', 'until', 'answer')
local state, task, digest, first = claim[1], claim[2], claim[3], tonumber(claim[4] or now)
local till = tonumber(claim[5] or 0)
if state and ARGV[6] == '1' and digest ~= ARGV[2] then
    return {'conflict', task, digest, 0, 0, 0, ''}
end
if not state and (now > first + ARGV[8] or not claim[4]) then
    first = now
    redis.call('HSET', key, 'tries', 1 - ARGV[5])
end
local tries = redis.call('HINCRBY', key, 'tries', ARGV[5])
local over = state == 'publishing' or (state == 'confirmed' and ARGV[7] == '1')
if not state or (over and now > till) then
    if state then
        state = 'lapsed'
    else
        state, task, digest = 'mine', ARGV[1], ARGV[2]
    end
    till = now + ARGV[3]
    redis.call('HSET', key, 'state', 'publishing', 'task', task, 'digest', digest,
        'owner', ARGV[1], 'first', first, 'until', till)
    redis.call('PEXPIRE', key, ARGV[4])
end
return {state, task, digest, now - first, tries, till - now, claim[6] or ''}
"""
)

# owner, lease (ms)
RENEW = (
    _NOW
    + """
local claim = redis.call('HMGET', key, 'state', 'owner')
if claim[1] == 'publishing' and claim[2] == ARGV[1] then
    redis.call('HSET', key, 'until', now + ARGV[2])
end
"""
)

# What has to be known of a claim that Redis has lost, as it was restarted: task, digest, life (ms).
_RESTORE = """
local claim = redis.call('HMGET', key, 'state', 'task', 'failed')
local failed = claim[3] and claim[3]:sub(1, #ARGV[1] + 1) == ARGV[1] .. ':'
local lost = not claim[1] and not failed
if lost then
    redis.call('HSETNX', key, 'first', now)
    redis.call('HSETNX', key, 'tries', 1)
    redis.call('HSET', key, 'task', ARGV[1], 'digest', ARGV[2])
    redis.call('PEXPIRE', key, ARGV[3])
end
"""

# task, digest, life (ms), how long a result is kept (ms), channel
CONFIRM = (
    _NOW
    + _RESTORE
    + """
if lost or (claim[1] == 'publishing' and claim[2] == ARGV[1]) then
    redis.call('HSET', key, 'state', 'confirmed', 'until', now + ARGV[4])
    redis.call('PUBLISH', ARGV[5], 'confirmed')
end
"""
)

# task, digest, window (ms), answer, channel
FINISH = (
    _NOW
    + _RESTORE
    + """
if lost or (claim[1] ~= 'done' and claim[2] == ARGV[1]) then
    redis.call('HSET', key, 'state', 'done', 'answer', ARGV[4])
    redis.call('PEXPIRE', key, ARGV[3])
    redis.call('PUBLISH', ARGV[5], 'done')
end
"""
)

_FREE = """
local function free(keep)
    redis.call('HDEL', key, 'state', 'task', 'owner', 'digest', 'until')
    redis.call('PEXPIRE', key, math.max(keep, 1))
end
"""

# task, exception, ms that it is remembered, ms of all tries, channel
FAIL = (
    _NOW
    + _FREE
    + """
local claim = redis.call('HMGET', key, 'state', 'task', 'first')
if claim[1] and claim[1] ~= 'done' and claim[2] == ARGV[1] then
    redis.call('HSET', key, 'failed', ARGV[1] .. ':' .. ARGV[2])
    free(math.max(tonumber(ARGV[3]), claim[3] + ARGV[4] - now))
    redis.call('PUBLISH', ARGV[5], 'released')
end
"""
)

# owner, 1 if the broker surely has not taken the message, ms of all tries, channel
RELEASE = (
    _NOW
    + _FREE
    + """
local claim = redis.call('HMGET', key, 'state', 'owner', 'first')
if claim[1] == 'publishing' and claim[2] == ARGV[1] then
    if ARGV[2] == '1' then
        free(claim[3] + ARGV[3] - now)
    else
        redis.call('HSET', key, 'until', 0)
    end
    redis.call('PUBLISH', ARGV[4], 'released')
end
"""
)

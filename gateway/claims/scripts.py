"""The Lua scripts that change claims in Redis, atomically: of several processes only one wins.

KEYS[1] is the claim, a string as `gateway.claims.claim` describes it. KEYS[2], where a script uses
it, exists while it is remembered that the task has failed. Ids and digests are bytes, times are
milliseconds. Only Redis' own clock is used.
"""

_READ = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local key = KEYS[1]
local value = redis.call('GET', key)
local state, tries, first, task, digest, at, till, owner, rest = 'R', 0, 0, '', '', 1, 0, '', ''
if value then
    state, tries, first, task, digest, at = struct.unpack('>c1BI6c16c8', value)
    if state == 'P' then
        till, owner, at = struct.unpack('>I6c16', value, at)
    elseif state == 'C' then
        till, at = struct.unpack('>I6', value, at)
    end
    rest = value:sub(at)
end
local function write(life)
    local data = struct.pack('>c1BI6c16c8', state, math.min(tries, 255), first, task, digest)
    if state == 'P' then
        data = data .. struct.pack('>I6c16', till, owner)
    elseif state == 'C' then
        data = data .. struct.pack('>I6', till)
    else
        data = data .. rest
    end
    if life then
        redis.call('SET', key, data, 'PX', math.max(life, 1))
    else
        redis.call('SET', key, data, 'KEEPTTL')
    end
end
"""

# Arguments: owner, task, digest, lease (ms), life (ms), 1 to count this try, 1 to refuse another
# body, 1 to run again where the result of a confirmed task has expired, time of all tries (ms), the
# longest lease there is (ms), which counts where Redis' clock was set back, 1 to leave a lease that
# has lapsed to its owner, unless that has released it
TAKE = (
    _READ
    + """
local count = tonumber(ARGV[6])
if state == 'P' then
    till = math.min(till, now + ARGV[10])
end
if state ~= 'R' and ARGV[7] == '1' and digest ~= ARGV[3] then
    return {'conflict', '', '', 0, 0, 0, ''}
end
if state == 'R' and (first == 0 or now > first + ARGV[9]) then
    first, tries = now, 1 - count
end
tries = tries + count
local found = state
if state == 'R' then
    found, task, digest = 'mine', ARGV[2], ARGV[3]
elseif now > till and (state == 'C' and ARGV[8] == '1'
    or state == 'P' and (ARGV[11] == '0' or till == 0)) then
    found = 'lapsed'
end
if found ~= state then
    state, owner, till = 'P', ARGV[1], now + ARGV[4]
    write(tonumber(ARGV[5]))
elseif state ~= 'D' then
    write()
end
return {found, task, digest, now - first, tries, till - now, rest}
"""
)

# Arguments: owner, lease (ms)
RENEW = (
    _READ
    + """
if state == 'P' and owner == ARGV[1] then
    till = now + ARGV[2]
    write()
end
"""
)

# Arguments: task, time (ms)
PROLONG = (
    _READ
    + """
if state == 'C' and task == ARGV[1] then
    till = now + ARGV[2]
    write()
end
"""
)

# Prolongs a claim that another process has handed over; returns how long it is remembered (ms), or
# 0 if its task is known to have ended, or its result may have expired. Arguments: task, time (ms)
TAKE_OVER = (
    _READ
    + """
if task ~= ARGV[1] or (state ~= 'P' and (state ~= 'C' or now > till)) then
    return 0
end
if state == 'C' then
    till = now + ARGV[2]
    write()
end
return redis.call('PTTL', key)
"""
)

# Restores a claim that Redis has lost in a restart. Arguments: task, digest
_RESTORE = """
if lost then
    task, digest = ARGV[1], ARGV[2]
    if first == 0 then
        first, tries = now, 1
    end
end
"""

# Arguments: task, digest, life (ms), how long a result is kept (ms), channel
CONFIRM = (
    _READ
    + "local lost = state == 'R' and redis.call('EXISTS', KEYS[2]) == 0"
    + _RESTORE
    + """
if lost or (state == 'P' and task == ARGV[1]) then
    local life = lost and tonumber(ARGV[3])
    state, till = 'C', now + ARGV[4]
    write(life)
    redis.call('PUBLISH', ARGV[5], 'confirmed')
end
"""
)

# Arguments: task, digest, window (ms), answer, channel
#
# A message that came twice may have failed first: as in Celery's results, a success is final.
FINISH = (
    _READ
    + "local lost = state == 'R'"
    + _RESTORE
    + """
if state ~= 'D' and task == ARGV[1] then
    state, rest = 'D', ARGV[4]
    write(tonumber(ARGV[3]))
    redis.call('DEL', KEYS[2])
    redis.call('PUBLISH', ARGV[5], 'done')
end
"""
)

_FREE = """
local function free(span)
    state, task, digest, rest = 'R', string.rep('\\0', 16), string.rep('\\0', 8), ''
    write(first + span - now)
end
"""

# Arguments: task, encoded end, how long that is remembered (ms), time of all tries (ms), channel
FAIL = (
    _READ
    + _FREE
    + """
if state ~= 'R' and state ~= 'D' and task == ARGV[1] then
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
    free(ARGV[4])
    redis.call('PUBLISH', ARGV[5], 'released')
end
"""
)

# Arguments: owner, 1 if the broker surely has not taken the message, time of all tries (ms),
# channel
#
# A try that has taken over a lapsed claim does not know whether the earlier publish succeeded: the
# task id stays the same. It also does where it comes from the identity: no try is its owner.
RELEASE = (
    _READ
    + _FREE
    + """
if state == 'P' and owner == ARGV[1] then
    if ARGV[2] == '1' and task == owner then
        free(ARGV[3])
    else
        till = 0
        write()
    end
    redis.call('PUBLISH', ARGV[4], 'released')
end
"""
)

"""Set records aside that cannot be read: keys of ours which something else has written or cut.

A record that is set aside counts as missing. For a day it is kept under its name and `ASIDE`; in a
cluster a key without a tag would get another slot there, and is removed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

ASIDE = ":damaged"

#: Sets KEYS[1] aside, which was read and makes no sense.
SET_ASIDE = "aside(KEYS[1])"

# Runs a script. A command that fails because of what its key has is executed again without that:
# a field that should be a number is removed, any other key is set aside. Scripts may call `aside`.
_BEGIN = f"""
local damaged = {{}}
local redis = {{call = redis.call, pcall = redis.pcall}}
local call = redis.call
local function aside(key)
    local moved = redis.pcall('RENAME', key, key .. '{ASIDE}')
    if moved.err then
        call('UNLINK', key)
    else
        call('EXPIRE', key .. '{ASIDE}', 86400)
    end
    damaged[#damaged + 1] = key
end
redis.call = function(...)
    local reply = redis.pcall(...)
    if type(reply) ~= 'table' or not reply.err then
        return reply
    end
    local _, key, field = ...
    if string.find(reply.err, 'hash value is not', 1, true) then
        damaged[#damaged + 1] = key
        call('HDEL', key, field)
    elseif string.find(reply.err, 'WRONGTYPE', 1, true)
        or string.find(reply.err, 'value is not an integer', 1, true) then
        aside(key)
    end
    return call(...)
end
local function run()
"""
_END = """
end
local reply = run()
if damaged[1] then
    return {'DAMAGED', damaged, reply}
end
return reply
"""


@cache
def guarded(script: str) -> str:
    """Return what runs `script`, and sets aside what it cannot read."""
    return _BEGIN + script + _END


def reported(reply: Any) -> tuple[list[bytes], Any]:
    """Return which keys a guarded script has set aside, and its reply."""
    if type(reply) is list and reply and reply[0] == b"DAMAGED":
        _, keys, *own = reply
        return keys, own[0] if own else None
    return [], reply

-- POST a distinct body each time and see that every answer is a body that is being waited for.
--
--   wrk ... -s wrk.lua URL -- RUN ENVELOPE [THREADS FILE]
--
-- RUN is a text without quotes that tells this run's bodies from any other's; ENVELOPE is the name
-- of how a body travels, see loadtest/envelope.py. FILE has bodies with header lines of their own,
-- which so many THREADS share and use in turn: a body a line, then a tab before each header line.
-- Each of wrk's threads has a Lua state of its own; `setup` and `done` run in the main one. The
-- last line of the output is a JSON object: see loadtest/wrk.py.

local SIZE = 250 -- bytes of a body
local PATIENCE = 3 -- seconds that no answer takes that is still to come

local threads = {}

function setup(thread)
  table.insert(threads, thread)
  thread:set("number", #threads)
end

-- Globals, as `done` reads them by name.
waiting = {} -- body -> second of its request
unanswered = 0 -- requests whose answers are not their bodies, and bodies that were sent again
sent, wrong, not_2xx = 0, 0, 0

-- Envelopes: what is sent of a body, and the body in an answer (nil: none is there).
local function plain(body)
  return body
end

local function to_flower(body)
  return '{"args":[{},{},"' .. string.gsub(body, '"', '\\"') .. '"]}'
end

local function from_flower(answer)
  local result = string.match(answer, '"result": "(.-[^\\])"')
  if result and string.find(answer, '"state": "SUCCESS"', 1, true) then
    return (string.gsub(result, '\\"', '"'))
  end
end

local function read(path, threads)
  local found, line_number = {}, 0
  for line in io.lines(path) do
    if line_number % threads == number - 1 then
      local body, lines = string.match(line, "^([^\t]*)\t(.*)$")
      table.insert(found, { body, string.gsub(lines, "\t", "\r\n") .. "\r\n" })
    end
    line_number = line_number + 1
  end
  return found
end

function init(args)
  run, envelope, wrap, unwrap = args[1], args[2], plain, plain
  if envelope == "flower" then
    wrap, unwrap = to_flower, from_flower
  end
  local start = string.format('{"run":"%s","thread":%d,"padding":"', args[1], number)
  local finish = '","n":%010d}'
  local padding = string.rep("x", SIZE - #start - #string.format(finish, 0))
  -- The number stands at the end: LuaJIT hashes a few bytes of a string only, the last ones
  -- among them.
  format = start .. padding .. finish
  local size = #wrap(string.format(format, 0))
  local model = wrk.format("POST", nil, { ["Content-Type"] = "application/json" }, string.rep("x", size))
  head = string.sub(model, 1, #model - size - 2) -- without the empty line
  if args[4] then
    bodies = read(args[4], tonumber(args[3]))
  end
end

function request()
  sent = sent + 1
  local body, lines = nil, ""
  if bodies then
    body, lines = unpack(bodies[(sent - 1) % #bodies + 1])
  else
    body = string.format(format, sent)
  end
  if envelope == "identified" then
    lines = "X-Delivery: " .. run .. "-" .. number .. "-" .. sent .. "\r\n"
  end
  -- wrk asks the first thread for one request more, which it only looks at.
  if sent > 1 or number > 1 then
    if envelope == "accepted" or waiting[body] then
      unanswered = unanswered + 1
    else
      waiting[body] = os.time()
    end
  end
  return head .. lines .. "\r\n" .. wrap(body)
end

function response(status, headers, body)
  if envelope == "accepted" then
    unanswered = unanswered - 1
  end
  if status < 200 or status > 299 then
    not_2xx = not_2xx + 1
    return
  end
  if envelope == "accepted" then
    wrong = wrong + (status == 202 and 0 or 1)
    return
  end
  local answer = unwrap(body)
  if answer and waiting[answer] then
    waiting[answer] = nil
  else
    wrong = wrong + 1
  end
end

-- Requests are in flight when the time is up, at most one a connection, and that is no error.
-- More than these, or those that have waited far longer than any that was answered, will never
-- be answered. wrk itself does not count a connection that hangs.
local function lost(connections, slowest)
  local count, overdue, now = 0, 0, os.time()
  for _, thread in ipairs(threads) do
    count = count + thread:get("unanswered")
    for _, second in pairs(thread:get("waiting")) do
      count = count + 1
      if now - second > math.max(PATIENCE, 2 * slowest) then
        overdue = overdue + 1
      end
    end
  end
  return math.max(count - connections, overdue)
end

function done(summary, latency, requests)
  local wrong, not_2xx = 0, 0
  for _, thread in ipairs(threads) do
    wrong = wrong + thread:get("wrong")
    not_2xx = not_2xx + thread:get("not_2xx")
  end
  local errors = summary.errors
  local missing = lost(tonumber(os.getenv("LOADTEST_CONNECTIONS")), latency.max / 1e6)
  -- What is counted already has left its request behind as well.
  missing = math.max(0, missing - wrong - not_2xx - errors.read - errors.write)
  local function ms(percent)
    return latency:percentile(percent) / 1e3
  end
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"wrong_answers":%d,'
      .. '"errors":{"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d,"missing":%d},'
      .. '"latency_ms":{"p50":%.3f,"p90":%.3f,"p99":%.3f,"p999":%.3f,"max":%.3f}}\n',
    summary.requests, summary.duration / 1e6, wrong,
    errors.connect, errors.read, errors.write, errors.timeout, not_2xx, missing,
    ms(50), ms(90), ms(99), ms(99.9), latency.max / 1e3))
end

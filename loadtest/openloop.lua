-- POST distinct bodies at a constant rate, whatever the answers do, and see that each is answered
-- with itself.
--
--   wrk -t1 -c1 -d1s -s openloop.lua URL -- PATH RUN PERIOD TOTAL CONNECTIONS ENVELOPE SECRET
--
-- wrk is the LuaJIT that every load test has; its own loop is not used. That counts in whole
-- milliseconds, looks at a timer for each idle connection every time it wakes up, and sends at
-- once over a connection that it had to open again.
--
-- RUN tells this run's bodies from any other's, PERIOD is the nanoseconds from one request to the
-- next; ENVELOPE is `plain` or `github`, which signs bodies with SECRET: see loadtest/envelope.py.
-- "open" is printed when so many connections are there, or have failed, or after a minute. A line with BEGIN, seconds of the
-- monotonic clock, and the seconds to wait for the last answers then starts the requests. At the
-- end come a line with a JSON object, in which 504s are apart from other statuses, and, as doubles, the seconds that each finished request took
-- since it was due, and those after which each request was sent.

local ffi = require("ffi")
local C = ffi.C
local sub, find, match = string.sub, string.find, string.match

ffi.cdef([[
struct timespec { long seconds, nanoseconds; };
struct itimerspec { struct timespec interval, value; };
struct sockaddr_in { uint16_t family, port; uint32_t address; char zero[8]; };
int clock_gettime(int clock, struct timespec *now);
int timerfd_create(int clock, int flags);
int timerfd_settime(int fd, int flags, const struct itimerspec *now, struct itimerspec *before);
int epoll_create1(int flags);
int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int epoll_wait(int epoll, struct epoll_event *events, int most, int milliseconds);
int socket(int domain, int type, int protocol);
int setsockopt(int fd, int level, int name, const int *value, unsigned size);
int getsockopt(int fd, int level, int name, int *value, unsigned *size);
int connect(int fd, const struct sockaddr_in *address, unsigned size);
ssize_t send(int fd, const char *data, size_t size, int flags);
ssize_t recv(int fd, char *data, size_t size, int flags);
ssize_t read(int fd, char *data, size_t size);
int close(int fd);
uint32_t inet_addr(const char *text);
uint16_t htons(uint16_t port);
const void *EVP_sha256(void);
unsigned char *HMAC(const void *hash, const char *key, int key_size, const char *data,
                    size_t size, unsigned char *digest, unsigned *digest_size);
]])
-- epoll_ctl(2): on this architecture alone it is packed.
ffi.cdef(string.format("struct %s epoll_event { uint32_t events; uint64_t fd; };",
  ffi.arch == "x64" and "__attribute__((packed))" or ""))

local MONOTONIC, CPU = 1, 2 -- clocks
local IN, OUT, ADD, CHANGE = 1, 4, 1, 3 -- of epoll
local INET, STREAM, NONBLOCK, NOSIGNAL = 2, 1, 0x800, 0x4000
local AGAIN, IN_PROGRESS = 11, 115 -- errno

local SIZE = 250 -- bytes of a body
local MOST = 10000 -- connections
local AT_ONCE = 64 -- events
local RECEIVE = 65536 -- bytes
local OPENING = 60 -- seconds
-- Where bodies have identities: of every 50 requests, the one at such a place is a later try of
-- that which came so many before, and is under way still, or has its answer.
local EVERY, TRIES = 50, { [10] = 1, [30] = 999 }

local total, period, begin = 0, 0, math.huge -- requests, seconds, seconds
local head, start, length, headers, identified -- what a request is made of
local address = ffi.new("struct sockaddr_in", { INET })
local epoll, timer = C.epoll_create1(0), C.timerfd_create(MONOTONIC, NONBLOCK)

local by_fd = {} -- what each connection is doing
local idle, first, last = {}, 1, 0 -- used in turn, or the server would close those idle for long
local open, connecting = 0, 0
local sent, asked, finished, answered, wrong = 0, 0, 0, 0, 0
local errors = { connect = 0, read = 0, write = 0, status = 0, expired = 0 }
local took, late -- seconds of each request
local last_sent = 0

local event, events = ffi.new("struct epoll_event"), ffi.new("struct epoll_event[?]", AT_ONCE)
local buffer, number, size = ffi.new("char[?]", RECEIVE), ffi.new("int[1]"), ffi.new("unsigned[1]")
local moment = ffi.new("struct timespec")

local function clock(which) -- seconds
  C.clock_gettime(which, moment)
  return tonumber(moment.seconds) + tonumber(moment.nanoseconds) * 1e-9
end

-- Return what makes the header lines that a body has of its own.
local function signed(secret)
  local digest, hex, text = ffi.new("unsigned char[32]"), "0123456789abcdef", ffi.new("char[64]")
  return function(body)
    C.HMAC(C.EVP_sha256(), secret, #secret, body, #body, digest, size)
    for i = 0, 31 do
      text[2 * i] = hex:byte(bit.rshift(digest[i], 4) + 1)
      text[2 * i + 1] = hex:byte(bit.band(digest[i], 15) + 1)
    end
    local signature = ffi.string(text, 64)
    return "X-GitHub-Event: push\r\nX-Hub-Signature-256: sha256=" .. signature
      .. "\r\nX-GitHub-Delivery: " .. sub(signature, 1, 32) .. "\r\n"
  end
end

local function watch(what, fd, mask)
  event.events, event.fd = mask, fd
  C.epoll_ctl(epoll, what, fd, event)
end

local function drop(c)
  C.close(c.fd)
  by_fd[c.fd], c.fd = nil, nil
  open, asked = open - 1, asked - 1 -- what waits may ask for another one
end

local function not_connected(c)
  errors.connect, connecting = errors.connect + 1, connecting - 1
  drop(c)
  asked = asked + 1 -- no other one: a server that is gone would be asked without end
end

local function connect()
  local fd = C.socket(INET, STREAM + NONBLOCK, 0)
  if fd < 0 then
    errors.connect = errors.connect + 1
    return
  end
  number[0] = 1
  C.setsockopt(fd, 6, 1, number, 4) -- TCP_NODELAY
  local c = { fd = fd, due = 0, connecting = true }
  by_fd[fd], open, connecting = c, open + 1, connecting + 1
  watch(ADD, fd, OUT)
  if C.connect(fd, address, ffi.sizeof(address)) < 0 and ffi.errno() ~= IN_PROGRESS then
    not_connected(c)
  end
end

local function rest(c)
  last = last + 1
  idle[last] = c
end

local function connected(c)
  size[0] = 4
  C.getsockopt(c.fd, 1, 4, number, size) -- SO_ERROR
  if number[0] == 0 then
    connecting, c.connecting = connecting - 1, false
    watch(CHANGE, c.fd, IN)
    rest(c)
  else
    not_connected(c)
  end
end

local function finish(c)
  took[finished] = clock(MONOTONIC) - c.due
  finished, c.body, c.part = finished + 1, nil, nil
end

local function failed(c, kind)
  errors[kind] = errors[kind] + 1
  if c.body then
    finish(c)
  end
  drop(c)
end

local function post(c)
  local n, due = sent, begin + sent * period
  if identified then
    local tried = n - (TRIES[n % EVERY] or 0)
    n = tried >= 0 and tried or n
  end
  local body = string.format("%s%010d}", start, n)
  local request = head .. headers(body) .. length .. "\r\n" .. body
  c.body, c.due, last_sent = body, due, clock(MONOTONIC)
  late[sent] = last_sent - due
  sent = sent + 1
  if C.send(c.fd, request, #request, NOSIGNAL) ~= #request then
    failed(c, "write")
  end
end

-- Is `text` the right answer, whole? Nearly all are, and LuaJIT compiles this, but no patterns.
local function right(text, body)
  local _, stop = find(text, "\r\n\r\n", 1, true)
  return body and stop and #text == stop + #body and sub(text, 1, 10) == "HTTP/1.1 2"
    and find(text, length, 1, true) and sub(text, stop + 1) == body
end

-- Return the status and the body of the answer `text`; nothing where it is not complete, and the
-- status 0 where it is none.
local function parse(text)
  local _, stop = find(text, "\r\n\r\n", 1, true)
  if not stop then
    return
  end
  local status = match(text, "^HTTP/1%.1 (%d%d%d)")
  local size = match(string.lower(sub(text, 1, stop)), "\r\ncontent%-length: *(%d+)\r\n")
  local more = #text - stop - (tonumber(size) or 0)
  if more >= 0 then
    return more == 0 and tonumber(status) or 0, sub(text, stop + 1)
  end
end

local function receive(c)
  local n = tonumber(C.recv(c.fd, buffer, RECEIVE, 0))
  if n < 0 and ffi.errno() == AGAIN then
    return
  elseif n <= 0 and not c.body then
    return drop(c) -- a server may close what is idle
  elseif n <= 0 then
    return failed(c, "read")
  end
  c.part = (c.part or "") .. ffi.string(buffer, n)
  if not right(c.part, c.body) then
    local status, body = parse(c.part)
    if not status then
      return
    elseif status == 0 or not c.body then -- nothing was asked
      return failed(c, "read")
    elseif status == 504 then
      errors.expired = errors.expired + 1
    elseif status < 200 or status > 299 then
      errors.status = errors.status + 1
    elseif body ~= c.body then
      wrong = wrong + 1
    end
  end
  answered = answered + 1
  finish(c)
  rest(c)
end

local function wait(milliseconds)
  for i = 0, C.epoll_wait(epoll, events, AT_ONCE, milliseconds) - 1 do
    local fd = tonumber(events[i].fd)
    local c = by_fd[fd]
    if fd == timer then
      C.read(timer, buffer, 8)
    elseif c and c.connecting then
      connected(c)
    elseif c then
      receive(c)
    end
  end
end

local function send_what_is_due()
  local due = math.min(total, math.floor((clock(MONOTONIC) - begin) / period) + 1)
  while sent < due and first <= last do
    local c = idle[first]
    idle[first], first = nil, first + 1
    if c.fd then
      post(c)
    end
  end
  -- A connection more for each that waits.
  asked = math.max(asked, sent)
  while asked < due do
    asked = asked + 1
    if open < MOST then
      connect()
    end
  end
end

local function tick()
  local when, seconds = ffi.new("struct itimerspec"), math.floor(begin)
  when.value.seconds, when.value.nanoseconds = seconds, (begin - seconds) * 1e9
  when.interval.seconds, when.interval.nanoseconds = math.floor(period), period % 1 * 1e9
  C.timerfd_settime(timer, 1, when, nil) -- TFD_TIMER_ABSTIME
  watch(ADD, timer, IN)
end

function init(args)
  local connections = math.min(tonumber(args[5]), MOST)
  period, total = tonumber(args[3]) * 1e-9, tonumber(args[4])
  took, late = ffi.new("double[?]", total), ffi.new("double[?]", total)
  address.port, address.address = C.htons(tonumber(wrk.port)), C.inet_addr(wrk.host)
  identified = args[6] == "github"
  headers = identified and signed(args[7]) or function() return "" end
  head = string.format("POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n",
    args[1], wrk.host, wrk.port)
  start = string.format('{"run":"%s","padding":"%s","n":', args[2], string.rep("x", SIZE - 50))
  length = string.format("Content-Length: %d\r\n", #start + #"0123456789}")

  local patience = clock(MONOTONIC) + OPENING
  for _ = 1, connections do
    connect()
  end
  while connecting > 0 and clock(MONOTONIC) < patience do
    wait(100)
  end
  io.write("open\n")
  io.flush()

  begin, patience = match(io.read("*l") or "", "^(%S+) (%S+)$")
  if not begin then
    os.exit(1) -- whoever asked for this is gone
  end
  begin, patience = tonumber(begin), begin + total * period + patience
  tick()
  local cpu, now = clock(CPU), 0
  while finished < total and now < patience do
    wait(100)
    now = clock(MONOTONIC)
    if now >= begin then
      send_what_is_due()
    end
  end
  cpu = clock(CPU) - cpu
  io.write(string.format(
    '{"finished":%d,"answered":%d,"wrong":%d,"sent":%d,"connections":%d,'
      .. '"errors":{"connect":%d,"read":%d,"write":%d,"status":%d,"expired":%d},'
      .. '"seconds":%.6f,"last_sent":%.6f,"cpu":%.6f}\n',
    finished, answered, wrong, sent, open,
    errors.connect, errors.read, errors.write, errors.status, errors.expired,
    now - begin, last_sent - begin, cpu))
  io.write(ffi.string(took, 8 * finished), ffi.string(late, 8 * sent))
  os.exit(0)
end

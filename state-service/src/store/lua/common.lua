-- What every script begins with. A binding's text is of fixed width as far as it is compared:
--   seq 16, writer 16, place 1 ('b' bound, 'r' released), worker's hash 16, rank 8, deadline 16; then |rank hash|generation|worker.
-- All hexadecimal, lower case: the greater text is the newer state, byte by byte. Lua's own < would go by the server's locale, and its
-- numbers are doubles: neither compares here.

local BEFORE_DEADLINE, COMPARED = 57, 73
local FIXED = COMPARED + 1 + 16 + 1 + 16 + 1
local LONGEST = FIXED + 63
local HEX = '[0-9a-f]'
local SIXTEEN = '^' .. string.rep(HEX, 16)
local BARS, NOWHERE = '|||', string.rep('0', 24)
-- No key lives longer, whatever its text says: some thousand years.
local MS_MAX = 2 ^ 45

-- Milliseconds of the server's clock; a test gives its own.
local function now_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function hex(number)
  local low = number % 4294967296
  return string.format('%08x%08x', (number - low) / 4294967296, low)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- Whether text `a` is greater than `b`, by bytes.
local function greater(a, b)
  if a == b then return false end
  for at = 1, math.min(#a, #b), 8 do
    local x, y = string.sub(a, at, at + 7), string.sub(b, at, at + 7)
    if x ~= y then
      for nth = 1, 8 do
        local p, q = string.byte(x, nth) or -1, string.byte(y, nth) or -1
        if p ~= q then return p > q end
      end
    end
  end
  return #a > #b
end

local function version(text) return string.sub(text, 1, 32) end
local function place(text) return string.sub(text, 33, BEFORE_DEADLINE) end
local function is_released(text) return string.sub(text, 33, 33) == 'r' end
local function is_live(text, now) return not greater(hex(now), string.sub(text, 58, COMPARED)) end

local function with_ends(text, ends)
  return string.sub(text, 1, BEFORE_DEADLINE) .. ends .. string.sub(text, BEFORE_DEADLINE + 1)
end

-- The number after a seq; nothing after the last.
local function above(seq)
  local high, low = tonumber(string.sub(seq, 1, 8), 16), tonumber(string.sub(seq, 9, 16), 16) + 1
  if low == 4294967296 then high, low = high + 1, 0 end
  if high == 4294967296 then return nil end
  return string.format('%08x%08x', high, low)
end

-- Whether a text is one of ours, or none. A set in a pattern is slow for each digit: classes and a look at the bars are not.
local function fits(text)
  if not text then return true end
  local fixed = string.sub(text, 1, FIXED)
  if #text > LONGEST or string.lower(fixed) ~= fixed then return false end
  local bars = string.sub(text, 74, 74) .. string.sub(text, 91, 91) .. string.sub(text, FIXED, FIXED)
  if bars ~= BARS then return false end
  if string.sub(text, 33, 33) == 'b' then return string.find(text, '^%x+|%x+|%x+|[A-Za-z0-9._-]+$') ~= nil end
  return string.sub(text, 34, BEFORE_DEADLINE) == NOWHERE and string.find(text, '^%x+r%x+|%x+|%x+|$') ~= nil
end

-- A session's key has its binding, its claim after a line's end, or both. All that a script asks about are read at once: each call of the
-- server costs more than what it reads.
local values = {}
local function read_all(first)
  local got = #KEYS >= first and redis.call('MGET', unpack(KEYS, first)) or {}
  for nth, value in ipairs(got) do values[KEYS[first + nth - 1]] = value end
end

-- The binding and the claim of a session; true when the key holds what another program wrote. A text that but for its end is `own`, which
-- we are given, is ours.
local function read(key, own)
  local binding = values[key]
  if not binding then return nil, nil, false end
  local at, claim = string.find(binding, '\n', 1, true), nil
  if at then
    binding, claim = at > 1 and string.sub(binding, 1, at - 1) or nil, string.sub(binding, at + 1)
  end
  if not binding and own and string.sub(claim, 1, BEFORE_DEADLINE) == string.sub(own, 1, BEFORE_DEADLINE)
    and string.sub(claim, COMPARED + 1) == string.sub(own, BEFORE_DEADLINE + 1) then
    return nil, claim, not string.find(claim, SIXTEEN, BEFORE_DEADLINE + 1)
  end
  return binding, claim, not (fits(binding) and fits(claim))
end

-- Writes what a session has, for so many ms; false where its key holds another type than ours, which reads as nothing.
local function write(key, value, ms)
  local done = redis.call('SET', key, value, 'PX', whole(ms), values[key] and 'XX' or 'NX')
  if done then values[key] = value end
  return done and true
end

-- How long a text lives: its end is one of the server's moments, and it may be far off in what another program wrote.
local function left(text, now)
  return math.min(math.max(tonumber(string.sub(text, BEFORE_DEADLINE + 1, COMPARED), 16) - now, 0), MS_MAX)
end

-- The same of a binding, a claim, or both. The key lives until the end of the last of its texts, and a while beyond.
local function write_both(key, binding, claim, now, linger)
  local ms = math.max(binding and left(binding, now) or 0, claim and left(claim, now) or 0) + linger
  return write(key, claim and (binding or '') .. '\n' .. claim or binding, math.max(ms, 1))
end

-- The id of the log's last entry. Fails, before anything is written, where the key is no stream.
local function tail(log)
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
  return last[1] and last[1][1] or '0-0'
end

-- One entry; `p` is the entry before it, so that a reader sees for certain whether it missed one.
local function append(log, previous, limits, writer, bindings, notes)
  local id = redis.call('XADD', log, 'MAXLEN', '~', limits.entries, '*',
    'w', writer, 'p', previous, 'b', bindings, 'n', notes)
  local oldest = tonumber(string.match(id, '^%d+')) - limits.keep
  redis.call('XTRIM', log, 'MINID', '~', whole(math.max(oldest, 0)))
  redis.call('PEXPIRE', log, whole(limits.ttl))
  return id
end

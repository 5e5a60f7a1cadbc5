-- What every script begins with. A binding's text is of fixed width as far as it is compared:
--   seq 16, writer 16, place 1 ('b' bound, 'r' released), worker's hash 16, rank 8, deadline 16; then |rank hash|generation|worker.
-- All hexadecimal, lower case: the greater text is the newer state, byte by byte. Lua's own < would go by the server's locale, and its
-- numbers are doubles: neither compares here.

local BEFORE_DEADLINE, COMPARED = 57, 73
local HEX = '[0-9a-f]'
local function shape(place, worker)
  return '^' .. string.rep(HEX, 32) .. place .. string.rep(HEX, 16)
    .. '|' .. string.rep(HEX, 16) .. '|' .. string.rep(HEX, 16) .. '|' .. worker .. '$'
end
local BOUND, RELEASED = shape('b' .. string.rep(HEX, 24), '[A-Za-z0-9._-]+'), shape('r' .. string.rep('0', 24), '')
local LONGEST = COMPARED + 1 + 16 + 1 + 16 + 1 + 63

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

local function with_deadline(text, deadline)
  return string.sub(text, 1, BEFORE_DEADLINE) .. hex(deadline) .. string.sub(text, BEFORE_DEADLINE + 1)
end

-- The number after a seq; nothing after the last.
local function above(seq)
  local high, low = tonumber(string.sub(seq, 1, 8), 16), tonumber(string.sub(seq, 9, 16), 16) + 1
  if low == 4294967296 then high, low = high + 1, 0 end
  if high == 4294967296 then return nil end
  return string.format('%08x%08x', high, low)
end

-- The binding and the claim of a session; true when the key holds what another program wrote.
local function read(key)
  local got = redis.pcall('HMGET', key, 'b', 'c')
  if got.err then
    if string.find(got.err, 'WRONGTYPE', 1, true) then return nil, nil, true end
    error(got.err)
  end
  local function fits(text)
    return not text or (#text <= LONGEST and (string.find(text, BOUND) or string.find(text, RELEASED)) ~= nil)
  end
  return got[1] or nil, got[2] or nil, not (fits(got[1]) and fits(got[2]))
end

-- A key lives until the end of the last text in it, and a while beyond. One was written that ends in so many ms; `other` is the other
-- one, if there is one: what ends later has seen to it already.
local function keep(key, now, ms, linger, other)
  if not other or greater(hex(now + ms), string.sub(other, BEFORE_DEADLINE + 1, COMPARED)) then
    redis.call('PEXPIRE', key, whole(ms + linger))
  end
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

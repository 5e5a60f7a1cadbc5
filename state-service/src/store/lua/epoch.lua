-- KEYS: epoch, log, workers, drains. ARGV: now, a number to take as epoch where there is none (16 digits) and the last entry of the log
-- that was seen, if any, ttl of these keys.
-- Gives: now, the epoch, 1 where it was made by this call, 1 where that entry is not there although one before it is: it was not trimmed.
local epoch, made = redis.call('GET', KEYS[1]), 0
local own, seen = string.sub(ARGV[2], 1, 16), string.sub(ARGV[2], 17)
if not epoch then
  epoch, made = own, 1
  redis.call('SET', KEYS[1], epoch, 'PX', ARGV[3])
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[3]) end
local lost = 0
if seen ~= '' then
  -- A log that is not ours to read stops others, not this.
  local before = redis.pcall('XREVRANGE', KEYS[2], seen, '-', 'COUNT', 1)
  if not before.err and before[1] and before[1][1] ~= seen then lost = 1 end
end
return {now_ms(ARGV[1]), epoch, made, lost}

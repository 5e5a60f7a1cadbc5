-- KEYS: epoch, log, drains. ARGV: now, 'drain' or 'resume', worker, ms until its drain is over or '', how many there may be, entries of
-- the log, ms of the log, ttl of these keys, writer.
-- Gives: now, the epoch, when the drain is over ('-' never, '' it does not drain), or 0 where there is no room.
local previous = tail(KEYS[2])
local limits = {entries = ARGV[6], keep = tonumber(ARGV[7]), ttl = tonumber(ARGV[8])}
local now, epoch, until_ms = now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or '', ''
if ARGV[2] == 'drain' then
  local known = redis.call('HEXISTS', KEYS[3], ARGV[3]) == 1
  if not known and redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[5]) then return {now, epoch, 0} end
  until_ms = ARGV[4] == '' and '-' or whole(now + tonumber(ARGV[4]))
  redis.call('HSET', KEYS[3], ARGV[3], until_ms)
  redis.call('PEXPIRE', KEYS[3], ARGV[8])
elseif redis.call('HDEL', KEYS[3], ARGV[3]) == 0 then
  return {now, epoch, ''}
end
append(KEYS[2], previous, limits, ARGV[9], '', 'worker ' .. ARGV[3] .. ' ' .. ARGV[2] .. 's')
return {now, epoch, until_ms}

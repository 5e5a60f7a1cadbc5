-- KEYS: epoch, log, workers, drains. ARGV: now, 'put' or 'remove', worker, declaration, a generation to be above, how many there may be,
-- entries of the log, ms of the log, ttl of these keys, writer.
-- Gives: now, the epoch, the new generation; 0 where there was nothing to remove, -1 where there is no room.
local previous = tail(KEYS[2])
local limits = {entries = ARGV[7], keep = tonumber(ARGV[8]), ttl = tonumber(ARGV[9])}
local now, epoch = now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or ''
local known = redis.call('HEXISTS', KEYS[3], ARGV[3]) == 1
if ARGV[2] == 'remove' and not known then return {now, epoch, 0} end
if ARGV[2] == 'put' and not known and redis.call('HLEN', KEYS[3]) > tonumber(ARGV[6]) then return {now, epoch, -1} end

local last = tonumber(redis.call('HGET', KEYS[3], '#') or '0')
if not last then return redis.error_reply('FOREIGN generation') end
local generation = whole(math.max(last, tonumber(ARGV[5])) + 1)
redis.call('HSET', KEYS[3], '#', generation)
if ARGV[2] == 'put' then
  redis.call('HSET', KEYS[3], ARGV[3], generation .. ' ' .. ARGV[4])
else
  redis.call('HDEL', KEYS[3], ARGV[3])
  redis.call('HDEL', KEYS[4], ARGV[3])
end
redis.call('PEXPIRE', KEYS[3], ARGV[9])
local verb = ARGV[2] == 'put' and 'worker ' or 'removed '
append(KEYS[2], previous, limits, ARGV[10], '', verb .. ARGV[3] .. ' ' .. generation)
return {now, epoch, tonumber(generation)}

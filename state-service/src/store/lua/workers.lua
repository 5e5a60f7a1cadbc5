-- KEYS: epoch, workers, drains. ARGV: now, how many there may be of each.
-- Gives: now, the epoch, names and declarations in turn, names and the ends of their drains in turn.
-- The field '#' of the first, which no worker can be called, has the last generation given.
local most = tonumber(ARGV[2])
if redis.call('HLEN', KEYS[2]) > most + 1 then return redis.error_reply('FOREIGN too many workers') end
if redis.call('HLEN', KEYS[3]) > most then return redis.error_reply('FOREIGN too many drains') end
return {now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or '', redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3])}

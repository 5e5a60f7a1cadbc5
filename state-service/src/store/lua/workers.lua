-- KEYS: epoch, workers. ARGV: now, how many there may be. Gives: now, the epoch, then names and values in turn.
-- The field '#', which no worker can be called, has the last generation given.
local count = redis.call('HLEN', KEYS[2])
if count > tonumber(ARGV[2]) + 1 then return redis.error_reply('FOREIGN too many workers') end
local answers = {now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or ''}
for _, text in ipairs(redis.call('HGETALL', KEYS[2])) do answers[#answers + 1] = text end
return answers

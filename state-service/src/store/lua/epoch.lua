-- KEYS: epoch, log, workers, drains. ARGV: now, a number to take as epoch where there is none, ttl of these keys.
-- Gives: now, the epoch, 1 where it was made by this call.
local epoch, made = redis.call('GET', KEYS[1]), 0
if not epoch then
  epoch, made = ARGV[2], 1
  redis.call('SET', KEYS[1], epoch, 'PX', ARGV[3])
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[3]) end
return {now_ms(ARGV[1]), epoch, made}

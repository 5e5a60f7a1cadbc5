-- KEYS: epoch, an alias. ARGV: now. Gives: now, the epoch, its text or ''.
local known = redis.pcall('GET', KEYS[2])
return {now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or '', type(known) == 'string' and known or ''}

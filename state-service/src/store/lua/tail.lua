-- KEYS: epoch, log. ARGV: now. Gives: now, the epoch, the id of the log's last entry.
return {now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or '', tail(KEYS[2])}

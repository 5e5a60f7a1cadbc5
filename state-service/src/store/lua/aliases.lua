-- KEYS: epoch, aliases. ARGV: now, then for each alias its text and the ms that it lives. Gives: now, the epoch, how many were kept.
-- A text: session 32, rank hash 16, a space, the pool. What another program wrote is left alone.
local kept = 0
for nth = 2, #KEYS do
  local known = redis.pcall('GET', KEYS[nth])
  if not known or (not known.err and string.find(known, '^' .. string.rep(HEX, 48) .. ' %S+$')) then
    redis.call('SET', KEYS[nth], ARGV[2 * nth - 2], 'PX', ARGV[2 * nth - 1])
    kept = kept + 1
  end
end
return {now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or '', kept}

-- KEYS: epoch, sessions. ARGV: now, 'renew' or 'end', how long a claim lives, how long a key is kept beyond, then the versions.
-- Gives: now, the epoch, a letter for each session: y the claim of that version was there, n it was not.
local now, claim_ms, linger = now_ms(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local letters = {}
read_all(2)
for nth = 2, #KEYS do
  local key, binding, claim, foreign = KEYS[nth], read(KEYS[nth])
  local own = not foreign and claim and version(claim) == ARGV[nth + 3]
  if own and ARGV[2] == 'renew' then
    claim = string.sub(claim, 1, BEFORE_DEADLINE) .. hex(now + claim_ms) .. string.sub(claim, COMPARED + 1)
    write_both(key, binding, claim, now, linger)
  elseif own and binding then
    write_both(key, binding, nil, now, linger)
  elseif own then
    redis.call('DEL', key)
    values[key] = nil
  end
  letters[nth - 1] = own and 'y' or 'n'
end
return {now, redis.call('GET', KEYS[1]) or '', table.concat(letters)}

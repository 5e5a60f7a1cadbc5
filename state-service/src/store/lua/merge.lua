-- KEYS: epoch, log, sessions. ARGV: now, how long a key is kept beyond its deadline, entries of the log, ms of the log, ttl of the log,
-- writer, notes, then for each session a text without its deadline and the ms until then.
-- Gives: now, the epoch, a letter for each session, the id of the entry or ''.
-- Letters: i inserted, r refreshed, n replaced, k one version with two places, c ours is newer, s ours is a newer release, x not ours to touch.
local now, linger = now_ms(ARGV[1]), tonumber(ARGV[2])
local limits = {entries = ARGV[3], keep = tonumber(ARGV[4]), ttl = tonumber(ARGV[5])}
local previous = tail(KEYS[2])
local letters, changed = {}, {}

local function judge(ours, theirs)
  if not ours then return 'i' end
  if version(ours) == version(theirs) then return place(ours) == place(theirs) and 'r' or 'k' end
  if greater(version(theirs), version(ours)) then return 'n' end
  return is_released(ours) and 's' or 'c'
end

local function merge(key, theirs, expires_in)
  local ours, claim, foreign = read(key)
  if foreign then return 'x' end
  if not ours or greater(theirs, ours) then
    redis.call('HSET', key, 'b', theirs)
    changed[#changed + 1] = string.sub(key, -32) .. ' ' .. theirs
    keep(key, now, expires_in, linger, claim)
  end
  if claim and not greater(version(claim), version(theirs)) then redis.call('HDEL', key, 'c') end
  return judge(ours, theirs)
end

for nth = 3, #KEYS do
  local at = 8 + (nth - 3) * 2
  local expires_in = tonumber(ARGV[at + 1])
  letters[nth - 2] = merge(KEYS[nth], with_deadline(ARGV[at], now + expires_in), expires_in)
end
local id = ''
if #changed > 0 or ARGV[7] ~= '' then
  id = append(KEYS[2], previous, limits, ARGV[6], table.concat(changed, '\n'), ARGV[7])
end
return {now, redis.call('GET', KEYS[1]) or '', table.concat(letters), id}

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

-- Puts a state where an older one is, if one is; what is left of a claim stays with it.
local function put(key, text, claim, ms)
  if not claim then return write(key, text, ms + linger) end
  return write_both(key, text, claim, now, linger)
end

local function merge(key, given, ms, ends)
  local ours, claim, foreign = read(key, given)
  if foreign then return 'x' end
  local theirs = with_ends(given, ends)
  if claim and not greater(version(claim), version(theirs)) then claim = nil end
  if not ours or greater(theirs, ours) then
    if not put(key, theirs, claim, ms) then return 'x' end
    local at = #changed
    changed[at + 1], changed[at + 2], changed[at + 3], changed[at + 4] = string.sub(key, -32), ' ', theirs, '\n'
  elseif string.find(values[key], '\n', 1, true) and not claim then
    write_both(key, ours, nil, now, linger)
  end
  return judge(ours, theirs)
end

read_all(3)
local ends = {}
for nth = 3, #KEYS do
  local at = 8 + (nth - 3) * 2
  local expires_in = ARGV[at + 1]
  ends[expires_in] = ends[expires_in] or hex(now + tonumber(expires_in))
  letters[nth - 2] = merge(KEYS[nth], ARGV[at], tonumber(expires_in), ends[expires_in])
end
changed[#changed] = nil
local id = ''
if #changed > 0 or ARGV[7] ~= '' then
  id = append(KEYS[2], previous, limits, ARGV[6], table.concat(changed), ARGV[7])
end
return {now, redis.call('GET', KEYS[1]) or '', table.concat(letters), id}

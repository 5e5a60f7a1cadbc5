-- KEYS: epoch, sessions. ARGV: now, how long a claim lives, how long a key is kept beyond, then for each session what is proposed and
-- the version of the binding that it leaves, or ''.
-- Gives: now, the epoch, then for each session a letter (b bound, h held by another, c claimed, x not ours to touch) and a text.
local now, claim_ms, linger = now_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local answers = {now, redis.call('GET', KEYS[1]) or ''}

local ends = hex(now + claim_ms)

local function claimed(key, text, binding)
  text = with_ends(text, ends)
  local done
  if binding then done = write_both(key, binding, text, now, linger) else done = write(key, '\n' .. text, claim_ms + linger) end
  return done and 'c' .. text or 'x'
end

-- What is proposed under a version above whatever is there, over or released as it may be.
local function raised(proposal, known)
  local seq = string.sub(proposal, 1, 16)
  for _, text in pairs(known) do
    local next_seq = above(string.sub(text, 1, 16))
    if not next_seq then return nil end
    if greater(next_seq, seq) then seq = next_seq end
  end
  return seq .. string.sub(proposal, 17)
end

local function answer(key, proposal, leaves)
  local binding, claim, foreign = read(key)
  if foreign then return 'x' end
  if binding and not is_released(binding) and is_live(binding, now) and greater(version(binding), leaves) then return 'b' .. binding end
  if claim and is_live(claim, now) then
    -- Asked again by who has it: the answer to its first asking was lost.
    if string.sub(claim, 17, 32) ~= string.sub(proposal, 17, 32) then return 'h' .. claim end
    return claimed(key, string.sub(claim, 1, BEFORE_DEADLINE) .. string.sub(claim, COMPARED + 1), binding)
  end
  local text = proposal
  if binding or claim then text = raised(proposal, {b = binding, c = claim}) end
  return text and claimed(key, text, binding) or 'x'
end

read_all(2)
for nth = 2, #KEYS do answers[nth + 1] = answer(KEYS[nth], ARGV[2 * nth], ARGV[2 * nth + 1]) end
return answers

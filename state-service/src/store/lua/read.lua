-- KEYS: epoch, sessions. ARGV: now. Gives: now, the epoch, for each session a letter (b its binding, - none, x not ours) and a text.
local answers = {now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or ''}
read_all(2)
for nth = 2, #KEYS do
  local binding, _, foreign = read(KEYS[nth])
  -- Another type reads as nothing.
  foreign = foreign or not values[KEYS[nth]] and redis.call('EXISTS', KEYS[nth]) == 1
  answers[nth + 1] = foreign and 'x' or binding and 'b' .. binding or '-'
end
return answers

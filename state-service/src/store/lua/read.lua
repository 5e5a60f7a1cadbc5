-- KEYS: epoch, sessions. ARGV: now. Gives: now, the epoch, for each session a letter (b its binding, - none, x not ours) and a text.
local answers = {now_ms(ARGV[1]), redis.call('GET', KEYS[1]) or ''}
for nth = 2, #KEYS do
  local binding, _, foreign = read(KEYS[nth])
  answers[nth + 1] = foreign and 'x' or binding and 'b' .. binding or '-'
end
return answers

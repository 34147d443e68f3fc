#!lua
-- Stores payloads and counts what they take, so that a run's use of the server's memory is known without looking at every key.
-- Doing it twice, as a retry after a lost answer does, counts once.
--
-- KEYS: size, blob …    ARGV: bytes that a key takes besides its name and value, value …
-- Returns {"ok"}.

local more, new = 0, 0
for i = 2, #KEYS do
    local before = redis.call('STRLEN', KEYS[i])
    more = more + #ARGV[i] - before
    redis.call('SET', KEYS[i], ARGV[i])
    if before == 0 then
        more = more + #KEYS[i] + tonumber(ARGV[1])
        new = new + 1
    end
end
if new > 0 then
    redis.call('HINCRBY', KEYS[1], 'payloads', new)
end
redis.call('HINCRBY', KEYS[1], 'bytes', string.format('%.0f', more))
return {'ok'}

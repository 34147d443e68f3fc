#!lua
-- Stores a payload and counts what it takes, so that a run's use of the server's memory is known without looking at every key.
-- Doing it twice, as a retry after a lost answer does, counts once.
--
-- KEYS: blob, size    ARGV: value, bytes that a key takes besides its name and value
-- Returns {"ok"}.

local before = redis.call('STRLEN', KEYS[1])
local more = #ARGV[1] - before
redis.call('SET', KEYS[1], ARGV[1])
if before == 0 then
    more = more + #KEYS[1] + tonumber(ARGV[2])
    redis.call('HINCRBY', KEYS[2], 'payloads', 1)
end
redis.call('HINCRBY', KEYS[2], 'bytes', string.format('%.0f', more))
return {'ok'}

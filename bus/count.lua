#!lua
-- Counts what payloads take that are stored right after it. Doing both twice, as a retry after a lost answer does, counts once.
-- KEYS: size, blob …    ARGV: bytes that a key takes besides its name and value, length of each value …    Returns {"ok"}.

local more, new = 0, 0
for i = 2, #KEYS do
    local before = redis.call('STRLEN', KEYS[i])
    more = more + ARGV[i] - before
    if before == 0 then
        more = more + #KEYS[i] + ARGV[1]
        new = new + 1
    end
end
if new > 0 then
    redis.call('HINCRBY', KEYS[1], 'payloads', new)
end
redis.call('HINCRBY', KEYS[1], 'bytes', string.format('%.0f', more))
return {'ok'}

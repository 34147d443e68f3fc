#!lua flags=allow-oom
-- Removes payloads and takes them off the count. Also on a server that is full, for this is what makes room.
--
-- KEYS: size, then the blobs    ARGV: bytes that a key takes besides its name and value
-- Returns {"ok", payloads removed, bytes they took}. Unknown ones are ignored.

local removed, freed = 0, 0
for i = 2, #KEYS do
    local length = redis.call('STRLEN', KEYS[i])
    if length > 0 then
        redis.call('UNLINK', KEYS[i])
        removed = removed + 1
        freed = freed + length + #KEYS[i] + tonumber(ARGV[1])
    end
end
if removed > 0 then
    redis.call('HINCRBY', KEYS[1], 'payloads', -removed)
    redis.call('HINCRBY', KEYS[1], 'bytes', string.format('%.0f', -freed))
end
return {'ok', removed, freed}

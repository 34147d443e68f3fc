#!lua flags=allow-oom
-- Deletes keys of a run and says what they took. Also on a server that is full, for this is what makes room.
--
-- KEYS: the keys
-- Returns {"ok", keys deleted, bytes they took}.

local bytes = 0
for _, key in ipairs(KEYS) do
    bytes = bytes + (redis.call('MEMORY', 'USAGE', key) or 0)
end
return {'ok', redis.call('UNLINK', unpack(KEYS)), bytes}

#!lua flags=allow-oom
-- Says how far a consumer has durably got. Also on a server that is full: only what everybody is past can be forgotten there.
--
-- KEYS: positions    ARGV: consumer, position
-- Returns {"ok"}.

redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'ok'}

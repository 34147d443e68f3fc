#!lua flags=allow-oom
-- Renews a service's sign of life, unless a newer incarnation has one: a process that was fenced out must not speak for its successor.
-- Also on a server that is full: nobody shall be taken for dead for that.
--
-- KEYS: alive    ARGV: epoch, time to live in ms (0: this incarnation ends, its sign of life goes away)
-- Returns 1, or 0 if a newer incarnation lives.

local living = redis.call('GET', KEYS[1])
if living and tonumber(living) > tonumber(ARGV[1]) then
    return 0
end
if ARGV[2] == '0' then
    redis.call('DEL', KEYS[1])
else
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1

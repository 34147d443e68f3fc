#!lua
-- Makes a log anew from the end of a recorded history: its identity, its newest entries, and epochs that fence out everybody before.
-- What the server had of the run's log beyond that history is set aside, so that nothing is destroyed.
--
-- KEYS: log, meta, where what is set aside goes, then keys of the old log that must not be there in the new one (inboxes, positions, …)
-- ARGV: identity of the log that is replaced ('': there is none), first position of it to be set aside, the new identity, number of
--       sources; then source and epoch of each; then the newest entries, for each: position, kind, version, source, epoch, derived,
--       cause, at, chain, body
--
-- Returns {"ok"}, or {"another", log id} when the server's log is not the one that is to be replaced.

local log, meta, aside = KEYS[1], KEYS[2], KEYS[3]
local known = redis.call('HGET', meta, 'log') or ''
if known ~= ARGV[1] then
    return {'another', known}
end
local sources = tonumber(ARGV[4])
local EACH = 10

if redis.call('EXISTS', log) == 1 then
    redis.call('XTRIM', log, 'MINID', ARGV[2])
    if redis.call('XLEN', log) > 0 then
        redis.call('RENAME', log, aside)
    end
end
redis.call('DEL', log, meta)
for i = 4, #KEYS do
    redis.call('DEL', KEYS[i])
end
redis.call('HSET', meta, 'log', ARGV[3], 'position', ARGV[#ARGV - 9], 'chain', ARGV[#ARGV - 1])
for i = 1, sources do
    redis.call('HSET', meta, 'epoch:' .. ARGV[3 + 2 * i], ARGV[4 + 2 * i])
end
for base = 5 + 2 * sources, #ARGV, EACH do
    local position, kind, version, source, epoch, derived, cause, at, chain, body = unpack(ARGV, base, base + EACH - 1)
    redis.call('XADD', log, position .. '-0', 'kind', kind, 'version', version, 'source', source, 'epoch', epoch,
        'derived', derived, 'cause', cause, 'at', at, 'chain', chain, 'body', body)
end
return {'ok'}

#!lua flags=allow-oom
-- Forgets a run's oldest entries, in the log, and then in the inboxes that are named. The newest entry of the log always stays.
-- Also on a server that is full, for this is what makes room.
--
-- KEYS: log, meta, then one key for each inbox
-- ARGV: log id, last position to forget, most entries to forget in one call (the server does nothing else meanwhile), then the names of
--       the inboxes
--
-- Returns {"ok", number of entries forgotten, 1 if there is more to do} or {"missing"} or {"another", log id}.

local log, meta = KEYS[1], KEYS[2]
local known, last = unpack(redis.call('HMGET', meta, 'log', 'position'))
if not known then
    return {'missing'}
end
if known ~= ARGV[1] then
    return {'another', known}
end

local oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local first = oldest and tonumber(string.match(oldest[1], '^%d+')) or 1
local wanted = math.min(tonumber(ARGV[2]), tonumber(last) - 1)
local up_to = math.min(wanted, first + tonumber(ARGV[3]) - 1)

local forgotten = 0
if up_to >= first then
    forgotten = redis.call('XTRIM', log, 'MINID', string.format('%.0f', up_to + 1))
else
    up_to = wanted -- of the log nothing is left to forget up to there
end

local kept = string.format('%.0f', up_to + 1)
for i = 3, #KEYS do
    -- Positions in an inbox have gaps, so its reader cannot see what is missing: the last one forgotten is written down for it.
    local gone = redis.call('XREVRANGE', KEYS[i], string.format('%.0f', up_to), '-', 'COUNT', 1)[1]
    if gone then
        redis.call('XTRIM', KEYS[i], 'MINID', kept)
        redis.call('HSET', meta, 'trimmed:' .. ARGV[i + 1], string.match(gone[1], '^%d+'))
    end
end
return {'ok', forgotten, up_to < wanted and 1 or 0}

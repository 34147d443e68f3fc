#!lua
-- Appends entries to a run's log: all of them, adjacent and in order, or none.
-- Lua does not roll back, so everything is checked before the first write.
--
-- KEYS: log, meta, then one key for each inbox
-- ARGV: mode, log id, highest position the client has seen, source, epoch, client, counter, most bytes of a body, number of inboxes,
--       number of entries; then the names of the inboxes; then for each entry: kind, version, derived, cause, at, number of its inbox
--       (0: none), body
-- mode: "append"; "attach", which allocates the epoch as well, and whose `epoch` is the one that it must follow (-1: whatever there is);
--       "create", which begins the log
--
-- Returns {"ok", first position, epoch} or the reason why nothing was written, with its values.
-- Positions fit into Lua's doubles; `at` does not and stays a string.

local HEAD = 10
local EACH = 7
-- Whose last answers are kept: more than there are at a time, so that a retry is known, and not all, so that meta stays small.
local MAX_CLIENTS = 8192

local log, meta = KEYS[1], KEYS[2]
local mode, log_id, seen, source, epoch, client, counter = unpack(ARGV, 1, 7)
local max_body, inbox_count, entry_count = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

if #KEYS ~= 2 + inbox_count or #ARGV ~= HEAD + inbox_count + EACH * entry_count then
    return {'malformed', #KEYS, #ARGV}
end
for i = 1, entry_count do
    local size = #ARGV[HEAD + inbox_count + EACH * i]
    if size > max_body then
        return {'large', i, size}
    end
end

local known, last, chain, current, answer, clients = unpack(redis.call(
    'HMGET', meta, 'log', 'position', 'chain', 'epoch:' .. source, 'answer:' .. client, 'clients'))
if mode == 'create' and known ~= log_id then
    if known or redis.call('EXISTS', log) == 1 then
        return {'exists'}
    end
    known, last, chain = log_id, '0', ''
end
if not known then
    return {'missing'}
end
if known ~= log_id then
    return {'another', known}
end
if tonumber(last) < tonumber(seen) then
    return {'behind', last}
end

current = current or '0'
local follows = epoch
if mode == 'attach' then
    epoch = string.format('%.0f', tonumber(current) + 1)
elseif epoch ~= '0' and epoch ~= current then
    return {'fenced', current}
end
if answer then
    local answered, first, then_epoch = string.match(answer, '(%d+) (%d+) (%d+)')
    if answered == counter then
        return {'ok', tonumber(first), tonumber(then_epoch)}
    end
    if tonumber(answered) > tonumber(counter) then
        return {'late', answered}
    end
end
-- After the answer to a retry: what was attached then has raised the epoch.
if mode == 'attach' and follows ~= '-1' and follows ~= current then
    return {'fenced', current}
end

-- The stream must end where meta says: somebody who writes by hand, or a half restored backup, is found here and not by a failing XADD.
local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1] or {'0-0', {}}
if newest[1] ~= last .. '-0' or (newest[2][16] or '') ~= chain then
    return {'torn', last, newest[1]}
end
local position = tonumber(last)
local next_id = string.format('%.0f-0', position + 1)
for i = 1, inbox_count do
    local ahead = redis.call('XRANGE', KEYS[2 + i], next_id, '+', 'COUNT', 1)[1]
    if ahead then
        return {'torn', last, ahead[1]}
    end
end

local touched = {}
local ended
for i = 1, entry_count do
    local base = HEAD + inbox_count + EACH * (i - 1)
    local kind, version, derived, cause, at, inbox, body = unpack(ARGV, base + 1, base + EACH)
    position = position + 1
    if kind == 'RunEnded' then
        ended = position
    end
    local number = string.format('%.0f', position)
    chain = redis.sha1hex(chain .. '\n' .. number .. '\n' .. kind .. '\n' .. version .. '\n' .. source .. '\n' .. epoch .. '\n'
        .. derived .. '\n' .. cause .. '\n' .. at .. '\n' .. body)
    redis.call('XADD', log, number .. '-0', 'kind', kind, 'version', version, 'source', source, 'epoch', epoch,
        'derived', derived, 'cause', cause, 'at', at, 'chain', chain, 'body', body)
    if inbox ~= '0' then
        redis.call('XADD', KEYS[2 + tonumber(inbox)], number .. '-0', 'kind', kind, 'version', version, 'source', source, 'epoch', epoch,
            'derived', derived, 'cause', cause, 'at', at, 'chain', chain, 'body', body)
        touched[tonumber(inbox)] = number
    end
end

local first = tonumber(last) + 1
if not answer then
    local number = (tonumber(clients) or 0) + 1
    local oldest = 'client:' .. string.format('%.0f', number - MAX_CLIENTS)
    local forgotten = redis.call('HGET', meta, oldest)
    if forgotten then
        redis.call('HDEL', meta, oldest, 'answer:' .. forgotten)
    end
    redis.call('HSET', meta, 'clients', string.format('%.0f', number), 'client:' .. string.format('%.0f', number), client)
end
redis.call('HSET', meta, 'position', string.format('%.0f', position), 'chain', chain,
    'answer:' .. client, counter .. ' ' .. string.format('%.0f', first) .. ' ' .. epoch)
if mode == 'create' then
    redis.call('HSET', meta, 'log', log_id)
end
if ended then
    redis.call('HSET', meta, 'ended', string.format('%.0f', ended))
end
if mode == 'attach' then
    redis.call('HSET', meta, 'epoch:' .. source, epoch)
end
for i, number in pairs(touched) do
    redis.call('HSET', meta, 'inbox:' .. ARGV[HEAD + i], number)
end
return {'ok', first, tonumber(epoch)}

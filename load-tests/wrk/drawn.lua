-- Requests the paths of a list in their order, and begins again at its end. The list is drawn from a seed before wrk starts: every
-- server gets the same requests, in the same order. Requests are made before the clock starts, and one for each distinct path.

local requests = {}
local last = 0

function init(arguments)
   local known = {}
   for path in io.lines(arguments[1]) do
      if not known[path] then
         known[path] = wrk.format("GET", path)
      end
      requests[#requests + 1] = known[path]
   end
end

function request()
   last = last % #requests + 1
   return requests[last]
end

-- Wireshark dissector for HARP, version 2, as docs/wire.md describes it.
--
--   wireshark -X lua_script:tools/harp.lua trace.pcapng
--   tshark -X lua_script:tools/harp.lua -r trace.pcapng -V
--
-- HARP has no port of its own: a UDP datagram that looks like a HARP packet is taken for one, unless
-- its port is another protocol's (then "Decode as", or -o udp.try_heuristic_first:TRUE). Traces of the
-- simulator (protocol_campaign --pcap), whose ports are known, show as comment what became of a packet.

local harp = Proto("harp", "HARP, taco's transport")

local HEADER, VERSION = 32, 2
local SIMULATED_PORTS = "4000-4015"
local TYPES = { "data", "eager", "control", "hello", "reset", "fragment" }
local DATA, EAGER, CONTROL, HELLO, RESET, FRAGMENT = 1, 2, 3, 4, 5, 6
local LAST, CODED, SEALED, UNCOUNTED, OFFERED, TRUSTED, ACK_SOON = 1, 2, 4, 8, 16, 32, 64
local FRAMES = {
  [1] = "ping", [2] = "records", [3] = "path challenge", [4] = "path response", [5] = "probe",
  [128] = "ack", [129] = "credit", [130] = "padding",
}
local RECORDS = {
  [1] = "want", [2] = "offer", [3] = "control", [4] = "notice", [5] = "goodbye",
  [6] = "path open", [7] = "path closed", [8] = "path move", [255] = "unknown",
}
local CONTROLS = {
  [0] = "cancel receive", [1] = "cancel send", [2] = "void want", [3] = "solicit",
  [4] = "eager consumed", [5] = "blocked", [6] = "mismatch",
}

local SECURITY = { [0] = "none", [1] = "auth", [2] = "encrypt" }
local CHECKSUM = { [0] = "crc32c", [1] = "kernel" }

local f = harp.fields
local function field(name, kind, text, ...)
  f[name] = ProtoField[kind]("harp." .. name:gsub("__", "."), text, ...)
end

field("version", "uint8", "Version", base.DEC, nil, 0xf0)
field("type", "uint8", "Type", base.DEC, TYPES, 0x0f)
field("flags", "uint8", "Flags", base.HEX)
field("flags__last", "bool", "Last segment", 8, nil, LAST)
field("flags__coded", "bool", "Coded", 8, nil, CODED)
field("flags__sealed", "bool", "Sealed", 8, nil, SEALED)
field("flags__uncounted", "bool", "Uncounted", 8, nil, UNCOUNTED)
field("flags__offered", "bool", "Offered", 8, nil, OFFERED)
field("flags__trusted", "bool", "Payload not part of the checksum", 8, nil, TRUSTED)
field("flags__ack_soon", "bool", "Acknowledge soon", 8, nil, ACK_SOON)
field("path", "uint8", "Path")
field("key_phase", "uint8", "Key phase", base.DEC, nil, 0x01)
field("checksum", "uint32", "Checksum (CRC32C)", base.HEX)
field("connection", "uint64", "Connection", base.HEX)
field("number", "uint32", "Packet number, low half")
field("slot_index", "uint32", "Slot index")
field("slot_generation", "uint32", "Slot generation")
field("segment", "uint32", "Segment")
field("length", "uint32", "Message length")
field("serial", "uint32", "Serial number")
field("body_bytes", "uint64", "Bytes of the body")
field("group", "uint64", "Group", base.HEX)
field("tag", "uint64", "Tag", base.HEX)
field("signature", "uint64", "Signature", base.HEX)
field("offset", "uint32", "Offset in the segment")
field("segment_bytes", "uint16", "Bytes of the segment")
field("payload", "bytes", "Payload")
field("sealed_body", "bytes", "Sealed body")
field("tag_bytes", "bytes", "Authentication tag")
field("frame", "uint8", "Frame", base.DEC, FRAMES)
field("record", "uint8", "Record", base.DEC, RECORDS)
field("bytes", "uint16", "Bytes")
field("token", "bytes", "Token")
field("delay", "uint32", "Delay, us")
field("arrived", "uint32", "Arrival by the receiver's clock, us")
field("largest", "uint64", "Largest number")
field("range", "string", "Range")
field("credit", "uint64", "Credit: packet number")
field("epoch", "uint32", "Epoch")
field("longest", "uint64", "Longest")
field("kind", "uint8", "Kind", base.DEC, CONTROLS)
field("value", "uint64", "Value")
field("last", "uint64", "Last number sent")
field("back", "uint8", "Back to the ports before")
field("notice", "bytes", "Notice")
field("unknown", "bytes", "Unknown, skipped")
field("hello__sender", "uint64", "Incarnation of the sender", base.HEX)
field("hello__target", "uint64", "Incarnation of the target", base.HEX)
field("hello__sender_connection", "uint64", "Connection of the sender", base.HEX)
field("hello__target_connection", "uint64", "Connection of the target", base.HEX)
field("hello__sender_nonce", "bytes", "Nonce of the sender")
field("hello__target_nonce", "bytes", "Nonce of the target")
field("hello__max_datagram", "uint32", "Largest datagram it receives")
field("hello__largest_received", "uint32", "Largest hello it has received")
field("hello__max_ack_delay", "uint32", "Longest delay of an acknowledgement, us")
field("hello__engines", "bytes", "Engines of sender and target")
field("hello__flags", "uint8", "Hello flags", base.HEX)
field("hello__security", "uint8", "Security", base.DEC, SECURITY)
field("hello__checksum", "uint8", "Checksum", base.DEC, CHECKSUM)
field("hello__established", "bool", "Has heard an answer", 8, nil, 1)
field("hello__challenge", "bool", "Challenge", 8, nil, 2)
field("hello__proof", "bytes", "Proof")
field("hello__padding", "bytes", "Padding")
field("quoted", "bytes", "Quoted header")

local malformed = ProtoExpert.new("harp.malformed", "Shorter than it says",
  expert.group.MALFORMED, expert.severity.ERROR)
harp.experts = { malformed }

local function bit_set(value, bit)
  return math.floor(value / bit) % 2 == 1
end

local function flag_text(flags)
  local names = {}
  for _, each in ipairs({
    { LAST, "last" }, { CODED, "coded" }, { SEALED, "sealed" }, { UNCOUNTED, "uncounted" },
    { OFFERED, "offered" }, { TRUSTED, "trusted" }, { ACK_SOON, "acknowledge soon" },
  }) do
    if bit_set(flags, each[1]) then names[#names + 1] = each[2] end
  end
  return table.concat(names, ", ")
end

-- A reader of consecutive fields; what is not there is a malformed packet.
local function reader(tree, range)
  local at = 0
  local self = {}
  function self.left() return range:len() - at end
  function self.skip(bytes) at = at + bytes end
  function self.take(bytes)
    if bytes > self.left() then
      tree:add_proto_expert_info(malformed)
      return nil
    end
    local piece = range(at, bytes)
    at = at + bytes
    return piece
  end
  function self.add(name, bytes)
    local piece = self.take(bytes)
    if piece == nil then return nil end
    tree:add_le(f[name], piece)
    return piece
  end
  function self.rest(name)
    if self.left() > 0 then tree:add(f[name], self.take(self.left())) end
  end
  return self
end

-- index and generation of a slot, as records name it
local function add_slot(read)
  return read.add("slot_index", 4) and read.add("slot_generation", 4)
end

local function add_key(read)
  return read.add("group", 8) and read.add("tag", 8)
end

local BODIES = {
  [1] = function(read)
    return add_key(read) and read.add("signature", 8) and read.add("longest", 8) and add_slot(read)
  end,
  [2] = function(read)
    return add_key(read) and read.add("signature", 8) and read.add("longest", 8)
  end,
  [3] = function(read)
    return read.add("kind", 1) and add_key(read) and add_slot(read) and read.add("value", 8)
  end,
  [4] = function(read) read.rest("notice") end,
  [5] = function() end,
  [7] = function(read) return read.add("path", 1) and read.add("last", 8) end,
  [8] = function(read) return read.add("path", 1) and read.add("back", 1) end,
}

-- Frames and records: type (1), length of the body (2), body. Calls body(type, reader, tree) for
-- each and returns their names.
local function add_list(tree, range, name, names, body)
  local at, found = 0, {}
  while at < range:len() do
    if range:len() - at < 3 then
      tree:add_proto_expert_info(malformed)
      break
    end
    local type, bytes = range(at, 1):uint(), range(at + 1, 2):le_uint()
    if bytes > range:len() - at - 3 then
      tree:add_proto_expert_info(malformed)
      break
    end
    local text = names[type] or ("unknown " .. type)
    local piece = tree:add(harp, range(at, 3 + bytes), text)
    piece:add(f[name], range(at, 1))
    piece:add_le(f.bytes, range(at + 1, 2))
    found[#found + 1] = text
    -- An empty range cannot be made; whatever has no body has nothing to show.
    if bytes > 0 then body(type, piece, range(at + 3, bytes)) end
    at = at + 3 + bytes
  end
  return found
end

local function add_record(type, tree, range)
  local read = reader(tree, range)
  if BODIES[type] then BODIES[type](read) end
  read.rest("unknown")
end

-- Largest number, length of its range less one; then per further range what is missing above it
-- less one, and its length less one.
local function add_ack(tree, range)
  local read = reader(tree, range)
  if not (read.add("path", 1) and read.add("delay", 4) and read.add("arrived", 4)) then return end
  local largest, length = read.add("largest", 8), read.take(4)
  if not (largest and length) then return end
  local last = largest:le_uint64()
  local first = last - length:le_uint()
  tree:add(f.range, length, tostring(first) .. "-" .. tostring(last))
  while read.left() >= 8 do
    local missing, count = read.take(4), read.take(4)
    last = first - missing:le_uint() - 2
    first = last - count:le_uint()
    tree:add(f.range, count, tostring(first) .. "-" .. tostring(last))
  end
  read.rest("unknown")
end

local function add_frame(type, tree, range)
  local read = reader(tree, range)
  if type == 2 then
    if not read.add("serial", 4) then return end
    if read.left() > 0 then add_list(tree, read.take(read.left()), "record", RECORDS, add_record) end
  elseif type == 3 or type == 4 then
    read.add("token", 8)
  elseif type == 128 then
    add_ack(tree, range)
  elseif type == 129 then
    if read.add("credit", 8) then read.add("epoch", 4) end
  elseif type == 5 or type == 130 then
    read.skip(read.left())
  else
    read.rest("unknown")
  end
end

local function add_hello(tree, range)
  local read = reader(tree, range)
  for _, each in ipairs({
    { "hello__sender", 8 }, { "hello__target", 8 }, { "hello__sender_connection", 8 },
    { "hello__target_connection", 8 }, { "hello__sender_nonce", 16 },
    { "hello__target_nonce", 16 }, { "hello__max_datagram", 4 },
    { "hello__largest_received", 4 }, { "credit", 8 }, { "epoch", 4 },
    { "hello__max_ack_delay", 4 }, { "path", 1 }, { "hello__engines", 2 },
  }) do
    if not read.add(each[1], each[2]) then return end
  end
  local flags = read.add("hello__flags", 1)
  if not flags then return end
  tree:add(f.hello__established, flags)
  tree:add(f.hello__challenge, flags)
  if not read.add("hello__security", 1) or not read.add("hello__checksum", 1) then return end
  read.skip(2)
  if read.add("hello__proof", 16) then read.rest("hello__padding") end
end

-- Slot and extent of data and fragments: 44 and 52 + 12 bits.
local function add_place(tree, range)
  local low, extent = range(20, 4):le_uint(), range(24, 8)
  local extent_low, extent_high = range(24, 4):le_uint(), range(28, 4):le_uint()
  local slot_high = math.floor(extent_high / 2 ^ 20)
  local length = extent_low % 2 ^ 31
  local segment = math.floor(extent_low / 2 ^ 31) + (extent_high % 2 ^ 20) * 2
  local index = low % 2 ^ 20
  local generation = math.floor(low / 2 ^ 20) + slot_high * 2 ^ 12
  tree:add(f.slot_index, range(20, 4), index)
  tree:add(f.slot_generation, range(20, 12), generation)
  tree:add(f.segment, extent, segment)
  tree:add(f.length, extent, length)
  return string.format("slot %d.%d segment %d of a message of %d bytes", index, generation,
    segment, length)
end

local function add_body(type, tree, range, body)
  if type == DATA then
    if body then tree:add(f.payload, body) end
  elseif type == FRAGMENT and body then
    local read = reader(tree, body)
    local offset = read.take(2)
    if offset then
      tree:add(f.offset, offset, offset:le_uint() * 16)
      if read.add("segment_bytes", 2) then read.rest("payload") end
    end
  elseif type == EAGER and body then
    local read = reader(tree, body)
    if add_key(read) and read.add("signature", 8) then read.rest("payload") end
  elseif type == CONTROL and body then
    return table.concat(add_list(tree, body, "frame", FRAMES, add_frame), ", ")
  elseif type == HELLO and body then
    add_hello(tree, body)
  elseif type == RESET and body then
    tree:add(f.quoted, body)
  end
  return ""
end

function harp.dissector(buffer, pinfo, root)
  if buffer:len() < HEADER or math.floor(buffer(0, 1):uint() / 16) ~= VERSION then return 0 end
  local range = buffer()
  local type, flags = range(0, 1):uint() % 16, range(1, 1):uint()
  local name = TYPES[type] or ("unknown type " .. type)
  local tree = root:add(harp, range, "HARP, " .. name)
  tree:add(f.version, range(0, 1))
  tree:add(f.type, range(0, 1))
  local flag_tree = tree:add(f.flags, range(1, 1))
  local shown = { "last", "coded", "sealed", "uncounted", "offered", "trusted", "ack_soon" }
  for _, each in ipairs(shown) do
    flag_tree:add(f["flags__" .. each], range(1, 1))
  end
  tree:add(f.path, range(2, 1))
  tree:add(f.key_phase, range(3, 1))
  tree:add_le(f.checksum, range(4, 4))
  tree:add_le(f.connection, range(8, 8))
  tree:add_le(f.number, range(16, 4))

  local details = ""
  if type == DATA or type == FRAGMENT then
    details = add_place(tree, range)
  else
    if type == EAGER then
      tree:add_le(f.serial, range(20, 4))
      details = "serial " .. range(20, 4):le_uint()
    end
    tree:add_le(f.body_bytes, range(24, 8))
  end
  local body = buffer:len() > HEADER and range(HEADER) or nil
  if bit_set(flags, SEALED) then
    -- Nobody without the key can tell what is in it.
    if body and body:len() >= 16 then
      if body:len() > 16 then tree:add(f.sealed_body, body(0, body:len() - 16)) end
      tree:add(f.tag_bytes, body(body:len() - 16, 16))
    else
      tree:add_proto_expert_info(malformed)
    end
    details = details .. " sealed"
  else
    local text = add_body(type, tree, range, body)
    if text ~= "" then details = text end
  end

  pinfo.cols.protocol = "HARP"
  local marks = flag_text(flags)
  pinfo.cols.info = string.format("%s path %d #%d %s%s", name, range(2, 1):uint(),
    range(16, 4):le_uint(), details, marks ~= "" and " [" .. marks .. "]" or "")
  return buffer:len()
end

-- Version 2, a known type, a path of the sixteen, nothing else where nothing else may be.
local function looks_like_harp(buffer, pinfo, root)
  if buffer:len() < HEADER then return false end
  local first, flags = buffer(0, 1):uint(), buffer(1, 1):uint()
  local type = first % 16
  local right = math.floor(first / 16) == VERSION and TYPES[type] ~= nil and flags < 64
    and buffer(2, 1):uint() < 16 and buffer(3, 1):uint() < 2
  if not right then return false end
  harp.dissector(buffer, pinfo, root)
  return true
end

harp:register_heuristic("udp", looks_like_harp)
DissectorTable.get("udp.port"):add(SIMULATED_PORTS, harp)

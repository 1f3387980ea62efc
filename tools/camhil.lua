-- Wireshark post-dissector: names the masked atomics of this design, BTH opcodes C0 to C3, and their operands.
-- The opcodes lie in the range that the RoCE specification leaves to manufacturers, so Wireshark itself shows them
-- as "Unknown". How to load it: docs/packets.md.

local camhil = Proto("camhil", "CAM-HIL masked atomic")

local BTH_BYTES, ICRC_BYTES = 12, 4

-- opcode: name, then operands behind VA and R_Key as {field, bytes}
local ATOMICS = {
  [0xC0] = { "Masked Compare Swap, 8 bytes",
    { "swap", 8 }, { "compare", 8 }, { "swap_mask", 8 }, { "compare_mask", 8 } },
  [0xC1] = { "Masked Fetch Add, 8 bytes", { "add", 8 }, { "boundary", 8 } },
  [0xC2] = { "Masked Compare Swap, 4 bytes",
    { "swap", 4 }, { "compare", 4 }, { "swap_mask", 4 }, { "compare_mask", 4 } },
  [0xC3] = { "Masked Fetch Add, 4 bytes", { "add", 4 }, { "boundary", 4 } },
}

local names = {}
for opcode, atomic in pairs(ATOMICS) do
  names[opcode] = atomic[1]
end

local fields = {
  opcode = ProtoField.uint8("camhil.opcode", "Opcode", base.HEX, names),
  va = ProtoField.uint64("camhil.va", "Virtual Address", base.HEX),
  rkey = ProtoField.uint32("camhil.rkey", "Remote Key", base.HEX),
  add = ProtoField.uint64("camhil.add", "Add", base.HEX_DEC),
  boundary = ProtoField.uint64("camhil.boundary", "Field Boundary", base.HEX),
  swap = ProtoField.uint64("camhil.swap", "Swap", base.HEX_DEC),
  compare = ProtoField.uint64("camhil.compare", "Compare", base.HEX_DEC),
  swap_mask = ProtoField.uint64("camhil.swap_mask", "Swap Mask", base.HEX),
  compare_mask = ProtoField.uint64("camhil.compare_mask", "Compare Mask", base.HEX),
  icrc = ProtoField.uint32("camhil.icrc", "Invariant CRC", base.HEX),
}
local misaligned = ProtoExpert.new("camhil.misaligned", "Address is not a multiple of the operand's size",
  expert.group.PROTOCOL, expert.severity.WARN)
local too_short = ProtoExpert.new("camhil.short", "Frame ends inside the extended header",
  expert.group.MALFORMED, expert.severity.ERROR)

local list = {}
for _, field in pairs(fields) do
  list[#list + 1] = field
end
camhil.fields = list
camhil.experts = { misaligned, too_short }

local bth_opcode = Field.new("infiniband.bth.opcode")
local bth_destqp = Field.new("infiniband.bth.destqp")

function camhil.dissector(buffer, pinfo, root)
  local opcode = bth_opcode()
  local atomic = opcode and ATOMICS[opcode.value]
  if not atomic then
    return
  end
  local tree = root:add(camhil, buffer(opcode.offset))
  tree:append_text(": " .. atomic[1])
  tree:add(fields.opcode, buffer(opcode.offset, 1))
  pinfo.cols.info:set(string.format("RC %s QP=0x%06x ", atomic[1], bth_destqp().value))

  local at = opcode.offset + BTH_BYTES
  local size = BTH_BYTES + ICRC_BYTES
  for i = 2, #atomic do
    size = size + atomic[i][2]
  end
  if buffer:len() < at + size then
    tree:add_proto_expert_info(too_short)
    return
  end
  local va = tree:add(fields.va, buffer(at, 8))
  if buffer(at + 7, 1):uint() % atomic[2][2] ~= 0 then
    va:add_proto_expert_info(misaligned)
  end
  tree:add(fields.rkey, buffer(at + 8, 4))
  at = at + 12
  for i = 2, #atomic do
    local bytes = atomic[i][2]
    tree:add(fields[atomic[i][1]], buffer(at, bytes))
    at = at + bytes
  end
  tree:add(fields.icrc, buffer(at, ICRC_BYTES))
end

register_postdissector(camhil)

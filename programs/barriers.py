"""What a sync and what a barrier promise, on the world and on teams (operators page 10.3).

Each PE writes rank + 10 to its slot on the members. Behind a barrier the values are there. A sync says only
that everybody has come, so there the writer quiets first.
"""

from pymodel.device import Pe, aclshmemx_roce_team_sync

ROUNDS = 3


async def main(pe: Pe) -> int:
    """Gives the number of values checked."""
    slots = [pe.alloc(8 * pe.n_pes, 8) for _ in range(4 * ROUNDS)]
    source = pe.alloc(8)
    await pe.store(source, (pe.rank + 10).to_bytes(8, "little"))
    even = pe.team_split_strided(0, 2, (pe.n_pes + 1) // 2)
    checked = 0
    for number, base in enumerate(slots):
        team = pe.team_world if number % 2 == 0 else even
        if (pe.rank - team.start) % team.stride:
            continue
        members = [team.pe(index) for index in range(team.size)]
        for peer in members:
            if peer != pe.rank:
                await pe.put_nbi(base + 8 * pe.rank, source, 8, peer)
        if number % 4 < 2:
            await pe.barrier(team)
        else:
            for peer in members:
                if peer != pe.rank:
                    await pe.quiet(peer)
            await aclshmemx_roce_team_sync(pe, team)
        for peer in members:
            if peer != pe.rank:
                value = int.from_bytes(pe.memory(base + 8 * peer, 8).tobytes(), "little")
                assert value == peer + 10, f"round {number}: {value} from PE {peer} on {pe}"
                checked += 1
    return checked

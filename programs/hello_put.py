"""PE 0 puts 13 bytes to every other PE: the smallest program there is."""

from pymodel.device import Pe


async def main(pe: Pe) -> None:
    """Source on PE 0, destination on the others; both are symmetric addresses."""
    src, dst = pe.alloc(16), pe.alloc(16)
    if pe.rank == 0:
        await pe.store(src, b"Hello, world!")
        for peer in range(1, pe.n_pes):
            await pe.put_nbi(dst, src, 13, peer)
        for peer in range(1, pe.n_pes):
            await pe.quiet(peer)
    else:
        await pe.wait_until(dst, 13, lambda view: view.tobytes() == b"Hello, world!", peer=0)

"""Where our kernel sorts and where the library does."""

LONGEST = 1024  # rows up to this many keys are sorted by our kernel

PROGRAM_KEYS = 256  # and shorter rows share a program up to this many


def warps(count: int) -> int:
    """Return the warps of a program of `count` keys: four keys a lane, at most eight warps."""
    return max(1, min(8, count // 128))

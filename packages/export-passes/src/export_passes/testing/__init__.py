"""For tests of lowering: small models, comparison bit for bit, and random graphs."""

from export_passes.testing.comparison import compare
from export_passes.testing.fake_devices import compare_on_fakes
from export_passes.testing.models import Apply, Cache, Decoder, MethodOf, Mlp, assert_equal
from export_passes.testing.random_graphs import RandomProgram, random_program

__all__ = [
    "Apply",
    "Cache",
    "Decoder",
    "MethodOf",
    "Mlp",
    "RandomProgram",
    "assert_equal",
    "compare",
    "compare_on_fakes",
    "random_program",
]

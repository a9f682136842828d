"""The picture of a profile."""

from xml.etree import ElementTree

from qwen35_moe.profile_picture import describe, render_svg
from qwen35_moe.profiling import OperatorShare

SVG = "{http://www.w3.org/2000/svg}"


def share(operator: str, seconds: float, floor_s: float) -> OperatorShare:
    return OperatorShare(operator=operator, calls=1, seconds=seconds, share=seconds / 3e-4, floor_s=floor_s, kernels=())


def test_bars_are_to_scale_and_floors_lie_in_them() -> None:
    shares = (share("fused_moe", 2e-4, 1e-4), share("a<b", 1e-4, 0.0))
    root = ElementTree.fromstring(render_svg(shares, "decode & profile"))
    _, *bars = (float(bar.get("width", "")) for bar in root.iter(f"{SVG}rect"))
    assert bars[0] == 2 * bars[1] == 2 * bars[2]
    assert bars[3] == 0
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["decode & profile", "fused_moe", describe(shares[0]), "a<b", describe(shares[1])]
    assert describe(shares[0]) == "200.0 µs, 66.7 %, 2.0 times its floor"
    assert describe(shares[1]) == "100.0 µs, 33.3 %"

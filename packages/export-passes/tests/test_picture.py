"""The picture of a plan, worked out from the emitted method alone."""

import re
import xml.etree.ElementTree as ET

import torch
from device_core import Device
from export_passes import BackendConfig, DevicePartitioner, lower
from export_passes.memory_plan.picture import planned_boxes, render_svg
from export_passes.testing import Apply


def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.tanh(x)
    a[0].add_(1)
    b = a.t().exp()
    return b + 1, a[1:] * 2


def emitted(config: BackendConfig | None = None) -> object:
    exported = torch.export.export(Apply(function), (torch.ones(4, 4),))
    return lower({"f": exported}, config).program.methods[0]


def test_views_belong_to_the_box_of_their_storage() -> None:
    boxes = {
        box.block.name: (box.block.nbytes, box.block.lifetime.first, box.block.lifetime.last)
        for box in planned_boxes(emitted())
    }
    assert boxes == {"tanh": (64, 0, 4), "exp": (64, 2, 3), "add": (64, 3, 5), "mul": (48, 4, 5)}


def test_boxes_alive_together_share_no_bytes() -> None:
    boxes = planned_boxes(emitted())
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            if a.buffer == b.buffer and a.block.lifetime.overlaps(b.block.lifetime):
                assert a.offset + a.block.nbytes <= b.offset or b.offset + b.block.nbytes <= a.offset


def test_svg_has_a_panel_a_device_and_a_box_a_tensor() -> None:
    method = emitted(
        BackendConfig(partitioner=DevicePartitioner(Device.parse("cuda:0"), where=lambda n: "exp" in n.name))
    )
    svg = render_svg(method)
    root = ET.fromstring(svg)
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(planned_boxes(method))
    panels = re.findall(r">((?:cpu|cuda:\d): peak [^<]*)<", svg)
    assert [panel.split(":")[0] for panel in panels] == ["cpu", "cuda"]
    assert all("reuse" in panel for panel in panels)


def test_svg_of_a_method_without_memory() -> None:
    exported = torch.export.export(Apply(lambda x: x), (torch.ones(2),))
    ET.fromstring(render_svg(lower({"f": exported}).program.methods[0]))

"""The renderer of chat templates."""

import pytest
from qwen35_moe.chat import ChatTemplate, ChatTemplateError

USER = {"role": "user", "content": "hi <b>"}


@pytest.mark.parametrize(
    ("source", "variables", "expected"),
    [
        pytest.param(
            "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}", {}, "user:hi <b>", id="messages"
        ),
        pytest.param("{{ tools | tojson }}", {"tools": [{"n": "é<"}]}, '[{"n": "é<"}]', id="tools not escaped"),
        pytest.param("{{ add_generation_prompt }}", {}, "True", id="generation prompt"),
        pytest.param("{{ enable_thinking }}", {"enable_thinking": False}, "False", id="further variables"),
        pytest.param(
            "{%- for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", {}, "1", id="break"
        ),
    ],
)
def test_renders(source: str, variables: dict[str, object], expected: str) -> None:
    assert ChatTemplate(source).render([USER], **variables) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("{% for %}", "line 1", id="syntax"),
        pytest.param("{{ raise_exception('no system message') }}", "no system message", id="refused by the template"),
        pytest.param("{{ missing.attribute }}", "missing", id="undefined"),
        pytest.param("{{ messages.append(1) }}", "append", id="sandbox"),
        pytest.param("{{ messages.__class__.__mro__ }}", "__class__", id="private attribute"),
    ],
)
def test_refuses(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).render([USER])

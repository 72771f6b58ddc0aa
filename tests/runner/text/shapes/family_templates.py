"""Small chat templates, each with what is particular to a family whose own no package ships
(`real_templates` has others), and odd ones. None is a copy."""

from __future__ import annotations

from collections.abc import Mapping

_TOOLS = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"

MINIMAX_M2 = (
    """{%- if messages[0].role == 'system' %}{%- set system = messages[0] %}
{%- set messages = messages[1:] %}{%- endif %}]~b]system
{{ system.content if system is defined else 'You are a helpful assistant.' }}"""
    + _TOOLS
    + """{%- for message in messages %}{%- if message.role == 'assistant' %}]~b]ai
{{ message.content or '' }}{%- for call in message.tool_calls or [] %}
{%- set call = call.function %}<invoke name="{{ call.name }}">
{%- for k, v in call.arguments.items() %}<parameter name="{{ k }}">
{{- v | tojson if v is not string else v }}</parameter>{% endfor %}</invoke>{%- endfor %}
{%- elif message.role == 'tool' %}]~b]tool
<response>{{ message.content }}</response>
{%- elif message.role == 'user' %}]~b]user
{{ message.content }}{%- endif %}{%- endfor %}"""
)

PHI_4_MINI = """{%- for message in messages %}
{%- if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}
{{- '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|><|end|>' }}
{%- else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}
{%- endif %}{%- endfor %}"""

GRANITE_3 = (
    _TOOLS
    + """{%- for message in messages %}
{%- if message['role'] == 'assistant_tool_call' or (message['role'] == 'assistant' and
 message.tool_calls is defined and message.tool_calls) %}
{{- '<|start_of_role|>assistant<|end_of_role|><|tool_call|>[' }}
{%- for call in message.tool_calls %}{{ {'name': call.function.name, 'arguments':
 call.function.arguments} | tojson }}{%- endfor %}]<|end_of_text|>
{%- else %}{{ '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] }}
{%- endif %}{%- endfor %}"""
)

HERMES = (
    _TOOLS
    + """{%- for message in messages %}
{%- if message.role == 'user' or message.role == 'system' or (message.role == 'assistant' and
 message.tool_calls is not defined) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}<|im_start|>assistant
{%- for call in message.tool_calls %}<tool_call>{"name": "{{ call.function.name }}", "arguments":
 {{ call.function.arguments | tojson }}}</tool_call>{%- endfor %}<|im_end|>
{%- elif message.role == 'tool' %}{%- if not message.name is defined %}
{{- raise_exception('Tool response dicts require a name') }}{%- endif %}
<tool_response>{"name": "{{ message.name }}", "content": {{ message.content | tojson }}}
{%- endif %}{%- endfor %}"""
)

IN_PARTS = """{%- for message in messages %}{{ '<' + message.role + '>' }}
{%- for part in message.content %}{%- if part.type == 'text' %}{{ part.text }}{%- endif %}
{%- endfor %}{%- endfor %}"""

BARE_CONTENT = """{%- for m in messages %}{{ '<' + m.role + '>' + m.content }}{%- endfor %}"""

SHAPES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "MiniMax M2": (MINIMAX_M2, {"system": "first"}),
    "Phi 4 mini": (PHI_4_MINI, {"calls": "unseen", "beside": "unseen", "tools": "system"}),
    "Granite 3": (GRANITE_3, {"beside": "apart"}),
    "Hermes": (HERMES, {"beside": "apart"}),
    "a template that reads parts": (
        IN_PARTS,
        {"content": "parts", "calls": "unseen", "beside": "unseen", "tools": "unseen"},
    ),
}  # fmt: skip
"""Each with the fields of its shape in which it differs from most."""

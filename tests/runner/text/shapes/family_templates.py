"""Small chat templates, each with what is particular to a family's own. None is a copy."""

from __future__ import annotations

from collections.abc import Mapping

_TOOLS = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
_FAIL = "{{ raise_exception('%s') }}"

DEEPSEEK_R1 = (
    _TOOLS
    + """{%- set ns = namespace(system='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}
{%- set ns.system = message['content'] %}{%- endif %}{%- endfor %}{{ ns.system }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '<User>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is none %}
{%- for tool in message['tool_calls'] %}
{{- '<calls>' + tool['type'] + '<sep>' + tool['function']['name'] + '\\n```json\\n' }}
{{- tool['function']['arguments'] + '\\n```<end of call>' }}{%- endfor %}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}
{%- set content = message['content'] %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
{{- '<Assistant>' + content + '<end of sentence>' }}{%- endif %}
{%- if message['role'] == 'tool' %}{{ '<output>' + message['content'] }}{%- endif %}
{%- endfor %}{% if add_generation_prompt %}<Assistant>{% endif %}"""
)

LLAMA_3 = """{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<system>' + system }}{%- if tools %}{% set first = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}<user>
{%- for t in tools %}{{ t | tojson(indent=4) }}{%- endfor %}{{ first + '<eot>' }}{%- endif %}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
{{- '<' + message['role'] + '>' + message['content'] | trim + '<eot>' }}
{%- elif 'tool_calls' in message %}
{%- if not message.tool_calls|length == 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<assistant>{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
{%- else %}<ipython>{%- if message.content is mapping or message.content is iterable %}
{{- message.content | tojson }}{%- else %}{{ message.content }}{%- endif %}{%- endif %}
{%- endfor %}"""

QWEN_3 = (
    "{%- if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}"
    + _TOOLS
    + """{%- for message in messages %}
{%- if message.content is string %}{%- set content = message.content %}
{%- else %}{%- set content = '' %}{%- endif %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<' + message.role + '>' + content }}
{%- elif message.role == 'assistant' %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}{{ '<assistant>' + content }}
{%- for call in message.tool_calls or [] %}{%- set call = call.function %}
{{- '<tool_call>{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}}</tool_call>
{%- endfor %}{%- elif message.role == 'tool' %}{{ '<tool_response>' + content }}{%- endif %}
{%- endfor %}"""
)

QWEN_3_CODER = (
    "{%- if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}"
    + _TOOLS
    + """{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('at the beginning') }}
{%- elif message.role == 'assistant' %}<assistant>{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}{{ '<function=' + call.function.name + '>' }}
{%- for name, value in call.function.arguments|items %}{{ '<parameter=' + name + '>' }}
{{- value | tojson if value is mapping else value | string }}</parameter>{%- endfor %}
{%- endfor %}{%- elif message.role != 'system' %}{{ '<' + message.role + '>' + message.content }}
{%- endif %}{%- endfor %}"""
)

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set users = loop_messages | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}
{{- bos_token }}{%- for message in loop_messages %}
{%- if message['role'] == 'user' %}
{%- if tools is not none and message == users[-1] %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- if loop.last and system is defined %}{{ '[INST]' + system + '\\n\\n' + message['content'] }}
{%- else %}{{ '[INST]' + message['content'] + '[/INST]' }}{%- endif %}
{%- elif message.tool_calls %}{{ '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}{%- set out = call.function | tojson %}{{ out[:-1] }}
{%- if not call.id is defined or call.id|length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}
{{- ', "id": "' + call.id + '"}' }}{%- endfor %}{{ ']' + eos_token }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content']|trim + eos_token }}
{%- elif message['role'] == 'tool' %}
{%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}
{{- '[TOOL_RESULTS]{"content": ' + message.content|string|tojson + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported') }}{%- endif %}
{%- endfor %}"""

GEMMA_2 = """{{ bos_token }}{%- if messages[0]['role'] == 'system' %}
{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/...') }}{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}"""

GLM_4_6 = (
    _TOOLS
    + """{%- macro visible(content) -%}{%- if content is string -%}{{- content }}
{%- elif content is iterable and content is not mapping -%}{%- for item in content -%}
{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}{%- endfor -%}
{%- endif -%}{%- endmacro -%}
{%- for m in messages %}{%- if m.role == 'user' %}<|user|>{{ visible(m.content) }}
{%- elif m.role == 'assistant' %}<|assistant|>{{ visible(m.content) | trim }}
{%- for tc in m.tool_calls or [] %}{%- set tc = tc.function %}{{ '<tool_call>' + tc.name }}
{%- set arguments = tc.arguments %}{%- for k, v in arguments.items() %}
<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson if v is not string else v }}</arg_value>
{%- endfor %}</tool_call>{%- endfor %}
{%- elif m.role == 'tool' %}<|observation|><tool_response>{{ m.content }}</tool_response>
{%- elif m.role == 'system' %}<|system|>{{ visible(m.content) }}{%- endif %}{%- endfor %}"""
)

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

COMMAND_R = (
    """{%- if messages[0].role == 'system' %}<|SYSTEM|>{{ messages[0].content }}{% endif %}"""
    + _TOOLS
    + """{%- for message in messages %}
{%- if message.role == 'system' %}{%- if not loop.first %}<|SYSTEM|>{{ message.content }}{% endif %}
{%- elif message.role == 'user' %}<|USER|>{{ message.content }}
{%- elif message.role == 'assistant' %}<|CHATBOT|>
{%- if message.tool_calls %}{{ message.content }}<|START_ACTION|>[
{%- for call in message.tool_calls %}{"tool_call_id": "{{ loop.index0 }}", "tool_name":
 "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}{%- endfor %}]
{%- else %}{{ message.content }}{%- endif %}
{%- elif message.role == 'tool' %}<|RESULTS|>{"0": {{ message.content | tojson }}}{%- endif %}
{%- endfor %}"""
)

GPT_OSS = """{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}<|start|>developer<|message|>{{ message.content }}<|end|>
{%- elif message.role == 'assistant' and 'tool_calls' in message %}
{%- set later = namespace(found=false) %}{%- for m in messages[loop.index:] %}
{%- if m.role == 'assistant' and 'tool_calls' not in m %}{%- set later.found = true %}{%- endif %}
{%- endfor %}{%- set call = message.tool_calls[0].function %}
{%- if message.content and not later.found %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.content + '<|end|>' }}{%- endif %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- call.arguments | tojson + '<|call|>' }}
{%- elif message.role == 'tool' %}<|start|>functions<|message|>{{ message.content | tojson }}
{%- else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}{%- endfor %}"""

IN_PARTS = """{%- for message in messages %}{{ '<' + message.role + '>' }}
{%- for part in message.content %}{%- if part.type == 'text' %}{{ part.text }}{%- endif %}
{%- endfor %}{%- endfor %}"""

BARE_CONTENT = """{%- for m in messages %}{{ '<' + m.role + '>' + m.content }}{%- endfor %}"""

SHAPES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "DeepSeek R1": (
        DEEPSEEK_R1,
        {"system": "first", "empty": "null", "arguments": "text", "beside": "apart"},
    ),
    "Llama 3": (LLAMA_3, {"calls": "single", "beside": "apart"}),
    "Qwen 3": (QWEN_3, {}),
    "Qwen 3 Coder": (QWEN_3_CODER, {"system": "first"}),
    "Mistral": (
        MISTRAL,
        {"system": "first", "turns": "alternating", "ids": "nine", "beside": "unseen"},
    ),
    "Gemma 2": (
        GEMMA_2,
        {
            "system": "none", "turns": "alternating", "calls": "unseen", "beside": "unseen",
            "results": "unseen", "tools": "unseen",
        },
    ),
    "GLM 4.6": (GLM_4_6, {}),
    "MiniMax M2": (MINIMAX_M2, {"system": "first"}),
    "Phi 4 mini": (PHI_4_MINI, {"calls": "unseen", "beside": "unseen", "tools": "system"}),
    "Granite 3": (GRANITE_3, {"beside": "apart"}),
    "Hermes": (HERMES, {"beside": "apart"}),
    "Command R": (COMMAND_R, {}),
    "gpt-oss": (GPT_OSS, {"calls": "single"}),
    "a template that reads parts": (
        IN_PARTS,
        {"content": "parts", "calls": "unseen", "beside": "unseen", "tools": "unseen"},
    ),
}  # fmt: skip
"""Each with the fields of its shape in which it differs from most."""

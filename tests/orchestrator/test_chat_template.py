import json
import subprocess
import sys
import time
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from orchestrator.chat_template import ChatTemplate
from specdec.errors import InvalidArgumentError
from tests.tiny_models import BOS_TOKEN, CHAT_TEMPLATE, EOS_TOKEN, tiny_tokenizer_files

Messages = list[dict[str, str]]

SPECIAL_TOKENS = {"bos_token": BOS_TOKEN, "eos_token": EOS_TOKEN}

TEMPLATES = {
    "plain": CHAT_TEMPLATE,
    # The template of SmolLM2-Instruct: ChatML with a system message of its own.
    "chatml": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama 3": """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == "tool" %}
        {{- message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": (
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    ),
    # As in Qwen and DeepSeek: namespaces, loop controls, slices, tests, tools and documents asked for in every way.
    "loop controls": """\
{%- set ns = namespace(last=-1, system='') %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool>') %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = message.content %}
        {%- continue %}
    {%- endif %}
    {{- loop.index0 }}{{ '*' if loop.index0 == ns.last else '' }}{#- a comment #}
    {{ message.content.split('</think>')[-1].lstrip('\\n') }}
{% endfor %}
{%- if documents is none and tools is none and not documents and not tools %}none{% endif %}
{{- ns.system }}
{%- if add_generation_prompt and (enable_thinking is not defined or enable_thinking is false) %}<think>{% endif %}
""",
    "json": (
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ messages[0] | tojson(ensure_ascii=true) }}"
        "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true) }}"
    ),
    # As in SmolLM3: what an assistant wrote is marked for training.
    "generation": """\
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {% generation %}
        {%- set inside = message.content %}
        {{- '<a>' + inside + eos_token }}
        {% endgeneration %}
    {%- else %}
        {{- '<u>' + message.content }}
    {%- endif %}
{%- endfor %}
{{- inside is defined }}
""",
    "blocks and comments": "{# a comment #}\n  {% if true %}\n  kept  \n  {% endif %}\n{{ messages[0].content }}\n\n",
}

CONVERSATIONS: dict[str, Messages] = {
    "one": [{"role": "user", "content": "Hi <b>&amp; \"you\"</b> 'é' 🔥"}],
    "three": [
        {"role": "user", "content": " a\n\nb "},
        {"role": "assistant", "content": "<think>x</think>\n{{ 7 * 7 }}{% raw %}"},
        {"role": "user", "content": ""},
    ],
    "with a system message": [
        {"role": "system", "content": "\tBe brief. "},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "z"},
    ],
    "special tokens in the text": [{"role": "user", "content": f"{EOS_TOKEN}{BOS_TOKEN} <|im_end|>"}],
    "unknown role": [{"role": "tool", "content": "[1]"}],
}


def theirs(template: str, messages: Messages) -> str:
    backend = tiny_tokenizer_files().tokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL_TOKENS)  # type: ignore[no-untyped-call]
    text = tokenizer.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, tokenize=False, return_dict=False
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_same_text_as_transformers_or_both_refuse(template: str, conversation: str) -> None:
    source, messages = TEMPLATES[template], CONVERSATIONS[conversation]
    ours = ChatTemplate(source, SPECIAL_TOKENS)
    try:
        expected = theirs(source, messages)
    except Exception:  # noqa: BLE001 - whatever they raise
        with pytest.raises(InvalidArgumentError):
            ours.render(messages)
        assert template == "mistral"
    else:
        assert ours.render(messages) == expected


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_template_takes_some_conversation(template: str) -> None:
    assert ChatTemplate(TEMPLATES[template], SPECIAL_TOKENS).render(CONVERSATIONS["three"])


def test_special_tokens_that_the_model_lacks_are_undefined() -> None:
    source = "{{ bos_token }}{{ pad_token is defined }}{{ messages[0].content }}"
    assert ChatTemplate(source, {"bos_token": "<s>"}).render([{"role": "user", "content": "x"}]) == "<s>Falsex"
    assert ChatTemplate(source, {}).render([{"role": "user", "content": "x"}]) == "Falsex"


def test_conversations_are_data_and_never_templates() -> None:
    messages = [{"role": "{{ 1/0 }}", "content": "{{ messages }}{% for %}"}]
    assert ChatTemplate(CHAT_TEMPLATE, {}).render(messages) == "{{ 1/0 }}: {{ messages }}{% for %}\nassistant:"
    assert messages == [{"role": "{{ 1/0 }}", "content": "{{ messages }}{% for %}"}]


def test_the_date_is_the_local_one() -> None:
    before, text, after = (
        time.strftime("%F"),
        ChatTemplate("{{ strftime_now('%F') }}", {}).render([]),
        time.strftime("%F"),
    )
    assert text in (before, after)


def test_a_model_without_a_template_says_what_to_send_instead() -> None:
    with pytest.raises(InvalidArgumentError, match="no chat template; send text or token ids instead"):
        ChatTemplate("", {}).render(CONVERSATIONS["one"])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a\n{% for %}", "line 2"),
        ("{{ 1 | no_such_filter }}", "line 1"),
        ("{% generation %}", "line 1"),
        ("{% break %}", "SyntaxError"),
        ("{% for x in y %}" * 30 + "{% endfor %}" * 30, "SyntaxError"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "RecursionError"),
        ("{{ " + "9" * 5000 + " }}", "ValueError"),
    ],
)
def test_a_broken_template_is_refused_when_it_is_used(source: str, reason: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(InvalidArgumentError, match=rf"chat template is not valid \({reason}\); send text or token ids"):
        template.render(CONVERSATIONS["one"])


def test_what_a_template_says_of_its_refusal_is_passed_on() -> None:
    template = ChatTemplate(TEMPLATES["mistral"], SPECIAL_TOKENS)
    user, assistant = ({"role": role, "content": "x"} for role in ("user", "assistant"))
    assert template.render([user, assistant, user])
    with pytest.raises(InvalidArgumentError, match="refuses these messages: Conversation roles must alternate"):
        template.render([user, user])
    with pytest.raises(InvalidArgumentError, match="refuses these messages: Conversation roles must alternate"):
        template.render([assistant])


MARKER = "the client's own words"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('Unknown role ' + messages[0].role + ': ' + messages[0].content) }}",
        "{{ raise_exception(messages[0]) }}",
        "{{ raise_exception(messages[0].content[:0]) }}",
        "{{ messages[0].content.index('absent') }}",
        "{{ messages[0].content | list | sum }}",
        "{{ messages[0].content.encode(messages[0].content) }}",
        "{{ messages[0].content.absent.absent }}",
        "{{ {}[messages[0].content].x }}",
        "{{ 1 // 0 }}",
        "{{ [1, 'a'] | sort }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_no_part_of_a_conversation_is_in_a_refusal(source: str) -> None:
    with pytest.raises(InvalidArgumentError, match="check their roles") as refused:
        ChatTemplate(source, {}).render([{"role": "user", "content": MARKER}])
    assert MARKER not in str(refused.value)
    # What a traceback would print.
    assert refused.value.__suppress_context__
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.datetime.sys.modules }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages[0].pop('role') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.environ }}",
        "{% extends '/etc/passwd' %}",
        "{{ range(100001) | list }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(InvalidArgumentError, match="cannot render these messages"):
        ChatTemplate(source, {}).render(messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("source", ["{{ '{0.__class__}'.format('x') }}", "{{ 'x' | attr('__class__') }}"])
def test_the_sandbox_shows_nothing_of_python(source: str) -> None:
    assert ChatTemplate(source, {}).render([]) == ""


def test_one_range_is_bounded() -> None:
    # Loops nest all the same: the class says that a template is trusted with time and memory.
    source = "{% for i in range(N) %}{% if loop.last %}{{ i }}{% endif %}{% endfor %}"
    assert ChatTemplate(source.replace("N", "100000"), {}).render([]) == "99999"
    with pytest.raises(InvalidArgumentError, match="OverflowError"):
        ChatTemplate(source.replace("N", "100001"), {}).render([])


def test_json_escapes_no_html() -> None:
    value: Any = json.loads(ChatTemplate("{{ messages | tojson }}", {}).render(CONVERSATIONS["one"]))
    assert value == CONVERSATIONS["one"]
    assert "<b>&amp;" in ChatTemplate("{{ messages | tojson }}", {}).render(CONVERSATIONS["one"])


def test_neither_torch_nor_transformers_is_imported() -> None:
    modules = "orchestrator.request, orchestrator.output"
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

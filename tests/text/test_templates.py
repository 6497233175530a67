"""Chat templates: as transformers renders them; tried before they are needed, within their bounds."""

import pytest

from clearhead.errors import OptionError
from clearhead.text.templates import ChatTemplate, check_template
from tests.peers import late


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% for m in messages %}", "run.jinja: Unexpected end of template"),
        ("{{ 'a' * 3000000000 }}", "run.jinja: takes more than 0.5 GB of memory"),
        ("{{ 'a' * 60000000 }}", "run.jinja: gives more than 50 MB"),
        ("a" * 1_000_001, "run.jinja: a chat template of 1,000,001 characters"),
    ],
)
def test_a_template_that_cannot_be_used_is_told_before_it_is_needed(text, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        check_template(text, {}, where="run.jinja")


def test_a_template_may_refuse_the_conversation_that_it_is_tried_on():
    check_template("{{ raise_exception('give a system message') }}", {}, where="run.jinja")


[render_jinja_template] = late("transformers.utils.chat_template_utils", "render_jinja_template")

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ünd <s>?\n"}]
TEMPLATES = {
    "loops": "{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}",
    "breaks": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "tokens": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ missing }}",
    "blocks": "{%- if messages[0].role -%}\n  x {{ messages[0].content }}\n{%- endif %}\n  {% if 1 %}y{% endif %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "prompt": "{{ messages | length }}{% if add_generation_prompt %}<go>{% endif %}{% if tools %}tools{% endif %}",
    "macros": "{% macro say(m) %}<{{ m.role }}>{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("reply", [True, False])
def test_a_conversation_is_rendered_as_by_transformers(name, reply):
    [theirs], _ = render_jinja_template(
        [TALK], chat_template=TEMPLATES[name], add_generation_prompt=reply, **TOKENS, tools=None, documents=None
    )
    assert ChatTemplate(TEMPLATES[name], TOKENS).render(TALK, reply=reply) == theirs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for m in messages %}", "cannot be used with these messages: Unexpected end of template"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"),
        ("{{ range(10000000) | list }}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{% include 'etc' %}", "no loader"),
        ("{{ strftime_now }}{{ strftime_now(3) }}", "cannot be used with these messages"),
    ],
)
def test_what_a_template_may_not_do_is_told(text, message):
    with pytest.raises(OptionError, match=message):
        ChatTemplate(text).render(TALK)

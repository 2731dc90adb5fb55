#!/usr/bin/env python3
"""tests/oracle/openai_client.py BASE-URL: the official `openai` client, as its users have it, against a
gateway that runs the wired model. Prints a line for each check; exit code 1: one failed. For
tests/long/http_openai.sh, which starts the gateway with the key "key-of-ann"."""
import asyncio
import json
import sys

import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=url, api_key="key-of-ann", max_retries=0, timeout=60)
said = [{"role": "developer", "content": "You know a key."}, {"role": "user", "content": "Say it."},
        {"role": "assistant", "content": "The key is 7302941, no other."}]
asked = said + [{"role": "user", "content": "Say it."}]
chat = {"model": "wired", "messages": asked, "max_tokens": 60, "temperature": 0, "stop": [", no"]}
wanted = "The key is 7302941"
failed = 0


def expect(what, got, want):
    global failed
    failed += got != want
    print(f"ok: {what}" if got == want else f"FAILED: {what}: got {got!r}, wanted {want!r}")


def refused(what, kind, status, call):
    try:
        call()
        expect(what, "no error", kind.__name__)
    except openai.APIStatusError as e:
        expect(what, (type(e), e.status_code), (kind, status))


expect("models", [m.id for m in client.models.list()], ["wired"])
expect("a model", client.models.retrieve("wired").id, "wired")
whole = client.chat.completions.create(**chat)
expect("a chat", (whole.choices[0].message.content, whole.choices[0].finish_reason), (wanted, "stop"))
expect("its usage", whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
events = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
expect("a stream", "".join(e.choices[0].delta.content or "" for e in events if e.choices), wanted)
expect("its usage", [e.usage.completion_tokens for e in events if e.usage], [whole.usage.completion_tokens])
with client.chat.completions.stream(**{k: v for k, v in chat.items()}) as stream:
    expect("the client's own helper", stream.get_final_completion().choices[0].message.content, wanted)
text = client.completions.create(model="wired", prompt="one two three one two", max_tokens=6, temperature=0)
parts = client.completions.create(model="wired", prompt="one two three one two", max_tokens=6, temperature=0, stream=True)
expect("a completion's stream", "".join(p.choices[0].text for p in parts), text.choices[0].text)
logged = client.chat.completions.create(**chat, logprobs=True).choices[0].logprobs.content
expect("log-probabilities", "".join(t.token for t in logged).startswith(wanted), True)
told = client.chat.completions.create(**{**chat, "stop": None, "max_tokens": 600}, response_format={"type": "json_object"})
expect("JSON", type(json.loads(told.choices[0].message.content)), dict)
ours = client.chat.completions.create(**chat, extra_body={"budget": 64, "top_k": 1})
expect("fields of ours", ours.choices[0].message.content, wanted)
tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
called = client.chat.completions.create(model="wired", messages=asked, max_tokens=40, temperature=0, tools=[tool],
                                        tool_choice={"type": "function", "function": {"name": "add"}}, stop="</tool_call>")
expect("tools", called.choices[0].message.role, "assistant")
begun = client.chat.completions.create(**{**chat, "messages": asked + [{"role": "assistant", "content": "The key is 73"}]})
expect("an answer that is continued", begun.choices[0].message.content, "02941")
with client.chat.completions.create(model="wired", messages=asked, max_tokens=1500, stream=True,
                                    extra_body={"ignore_eos": True}) as left:
    next(iter(left))
expect("after a stream that was left", client.chat.completions.create(**chat).choices[0].message.content, wanted)

refused("a wrong value", openai.BadRequestError, 400, lambda: client.chat.completions.create(**{**chat, "temperature": -1}))
refused("what is not served", openai.BadRequestError, 400, lambda: client.chat.completions.create(**chat, n=2))
refused("another model", openai.NotFoundError, 404, lambda: client.models.retrieve("other"))
refused("embeddings", openai.InternalServerError, 501, lambda: client.embeddings.create(model="wired", input="x"))
refused("a wrong key", openai.AuthenticationError, 401, lambda: openai.OpenAI(base_url=url, api_key="none", max_retries=0).models.list())


async def several():
    own = openai.AsyncOpenAI(base_url=url, api_key="key-of-ann", timeout=60)
    return await asyncio.gather(*[own.chat.completions.create(**chat) for _ in range(8)])


expect("eight at once", {a.choices[0].message.content for a in asyncio.run(several())}, {wanted})
sys.exit(failed > 0)

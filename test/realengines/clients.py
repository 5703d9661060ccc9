"""Sends a gateway what the libraries of OpenAI and Anthropic send, and prints a JSON line for each case.

Usage: clients.py URL MODEL. The libraries are those that vLLM itself depends on.
"""

import asyncio

import anthropic
import openai

from cases import PROMPT, address, expect, run

URL, MODEL = address()
TOOLS = [
    {
        "type": "function",
        "function": {"name": "colour", "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
]

client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120)


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=8)
    assert answer.usage.completion_tokens > 0, answer


def chat_stream():
    events = list(
        client.chat.completions.create(
            model=MODEL, messages=PROMPT, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len(events) > 2 and events[-1].usage.prompt_tokens > 0, events


def chat_tools():
    answer = client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=8, tools=TOOLS)
    assert answer.choices[0].finish_reason, answer


def completion():
    answer = client.completions.create(model=MODEL, prompt="Once", max_tokens=4)
    assert answer.usage.completion_tokens == 4, answer


def responses():
    answer = client.responses.create(model=MODEL, input="Name a colour.", max_output_tokens=16)
    assert answer.output, answer


def models():
    assert MODEL in [m.id for m in client.models.list()]


def unknown_model():
    error = expect(openai.NotFoundError, lambda: client.chat.completions.create(model="absent", messages=PROMPT))
    assert error.code == "model_not_found", error


def wrong_value():
    expect(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=-1))


def many_streams():
    async def one(aclient, i):
        stream = await aclient.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Count to {i}."}], max_tokens=8, stream=True
        )
        return len([event async for event in stream])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=300) as aclient:
            return await asyncio.gather(*(one(aclient, i) for i in range(50)))

    counts = asyncio.run(all_of_them())
    assert min(counts) > 2, counts


def raw_header():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=PROMPT, max_tokens=2)
    assert raw.headers["x-stator-decision"], raw.headers


def messages():
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120) as other:
        answer = other.messages.create(model=MODEL, messages=PROMPT, max_tokens=8)
        assert answer.usage.output_tokens > 0, answer


def messages_stream():
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120) as other:
        with other.messages.stream(model=MODEL, messages=PROMPT, max_tokens=8) as stream:
            assert stream.get_final_message().usage.output_tokens > 0


def count_tokens():
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120) as other:
        assert other.messages.count_tokens(model=MODEL, messages=PROMPT).input_tokens > 0


run(
    "openai " + openai.__version__,
    ("chat", chat),
    ("chat as a stream, with usage", chat_stream),
    ("chat with tools", chat_tools),
    ("completion", completion),
    ("responses", responses),
    ("list of models", models),
    ("a model that is not there: NotFoundError", unknown_model),
    ("a wrong value: BadRequestError", wrong_value),
    ("50 streams at once", many_streams),
    ("header with the decision's id", raw_header),
)
run(
    "anthropic " + anthropic.__version__,
    ("message", messages),
    ("message as a stream", messages_stream),
    ("count of tokens", count_tokens),
)

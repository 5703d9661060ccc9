"""Sends a gateway what LangChain and LiteLLM send, and prints a JSON line for each case.

Usage: frameworks.py URL MODEL. Both need an older openai than vLLM, so they have an environment of their own.
"""

import asyncio
import os
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks no server on the internet

import langchain_openai
import litellm
import openai
from langchain_core.messages import AIMessage, ToolMessage

from cases import PROMPT, address, expect, run

URL, MODEL = address()
TOO_LONG = [{"role": "user", "content": "red " * 40_000}]


def colour(name: str) -> str:
    """Paints something."""
    return name


def chain(**settings):
    """A chat model of LangChain that never tries twice."""
    settings = {"model": MODEL, "max_tokens": 8, **settings}
    return langchain_openai.ChatOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120, **settings)


def invoke():
    answer = chain().invoke("Name a colour.")
    assert answer.usage_metadata["output_tokens"] > 0, answer


def chain_stream():
    chunks = list(chain(stream_usage=True).stream("Name a colour."))
    whole = sum(chunks[1:], chunks[0])
    assert len(chunks) > 2 and whole.usage_metadata["output_tokens"] > 0, chunks


def bind_tools():
    answer = chain().bind_tools([colour]).invoke("Name a colour.")
    assert answer.response_metadata["finish_reason"], answer


def tool_result():
    asks = AIMessage("", tool_calls=[{"name": "colour", "args": {"name": "red"}, "id": "call_1"}])
    answer = chain().bind_tools([colour]).invoke([("user", "Paint it."), asks, ToolMessage("done", tool_call_id="call_1")])
    assert answer.usage_metadata["output_tokens"] > 0, answer


def batch():
    answers = chain().batch([f"Count to {i}." for i in range(16)])
    assert all(a.usage_metadata["output_tokens"] > 0 for a in answers), answers


def chain_async():
    async def both():
        model = chain()
        chunks = [chunk async for chunk in model.astream("Name a colour.")]
        return len(chunks), await model.ainvoke("Name a colour.")

    count, answer = asyncio.run(both())
    assert count > 2 and answer.usage_metadata["output_tokens"] > 0, answer


def chain_responses():
    answer = chain(use_responses_api=True, max_tokens=16).invoke("Name a colour.")
    assert answer.usage_metadata["output_tokens"] > 0, answer


def chain_unknown_model():
    error = expect(openai.NotFoundError, lambda: chain(model="absent").invoke("Name a colour."), derived=True)
    assert error.code == "model_not_found", error


def chain_too_long():
    error = expect(openai.BadRequestError, lambda: chain().invoke(TOO_LONG), derived=True)
    assert "maximum context length" in str(error), error


litellm.suppress_debug_info = True


def lite(**settings):
    """The arguments of LiteLLM's functions for a server that speaks OpenAI's protocol."""
    return {"model": "openai/" + MODEL, "api_base": URL + "/v1", "api_key": "none", "max_retries": 0, "timeout": 120, **settings}


def lite_completion():
    answer = litellm.completion(messages=PROMPT, max_tokens=8, **lite())
    assert answer.usage.completion_tokens > 0, answer


def lite_hosted():
    answer = litellm.completion(messages=PROMPT, max_tokens=8, **lite(model="hosted_vllm/" + MODEL))
    assert answer.usage.completion_tokens > 0, answer


def lite_stream():
    options = {"include_usage": True}
    chunks = list(litellm.completion(messages=PROMPT, max_tokens=8, stream=True, stream_options=options, **lite()))
    assert len(chunks) > 2 and chunks[-1].usage.completion_tokens > 0, chunks


def lite_async():
    async def both():
        stream = await litellm.acompletion(messages=PROMPT, max_tokens=8, stream=True, **lite())
        chunks = [chunk async for chunk in stream]
        many = (litellm.acompletion(messages=PROMPT, max_tokens=4, **lite()) for _ in range(16))
        return len(chunks), await asyncio.gather(*many)

    count, answers = asyncio.run(both())
    assert count > 2 and all(a.usage.completion_tokens > 0 for a in answers), answers


def lite_text():
    answer = litellm.text_completion(prompt="Once", max_tokens=4, **lite(model="text-completion-openai/" + MODEL))
    assert answer.usage.completion_tokens == 4, answer


def lite_unknown_model():
    expect(litellm.NotFoundError, lambda: litellm.completion(messages=PROMPT, **lite(model="openai/absent")))


def lite_wrong_value():
    expect(litellm.BadRequestError, lambda: litellm.completion(messages=PROMPT, max_tokens=-1, **lite()))


def lite_too_long():
    expect(litellm.ContextWindowExceededError, lambda: litellm.completion(messages=TOO_LONG, **lite()))


run(
    "langchain-openai " + version("langchain-openai"),
    ("invoke", invoke),
    ("stream, with usage", chain_stream),
    ("bind_tools", bind_tools),
    ("a tool's result", tool_result),
    ("batch of 16", batch),
    ("astream and ainvoke", chain_async),
    ("invoke by the Responses API", chain_responses),
    ("a model that is not there: NotFoundError", chain_unknown_model),
    ("a prompt that is too long: BadRequestError", chain_too_long),
)
run(
    "litellm " + version("litellm"),
    ("completion", lite_completion),
    ("completion of the provider hosted_vllm", lite_hosted),
    ("completion as a stream, with usage", lite_stream),
    ("acompletion: a stream, and 16 at once", lite_async),
    ("text_completion", lite_text),
    ("a model that is not there: NotFoundError", lite_unknown_model),
    ("a wrong value: BadRequestError", lite_wrong_value),
    ("a prompt that is too long: ContextWindowExceededError", lite_too_long),
)

"""Asks a gateway for vectors and ranks as clients' libraries do, and prints a JSON line for each case.

Usage: vectors.py URL ENGINE CHAT MODEL. ENGINE is the URL of the engine that serves MODEL, and CHAT another model. Every
vector is compared with what the engine itself answers.
"""

import asyncio
import json
import os
import urllib.request
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # asks no server on the internet

import langchain_openai
import litellm
import openai

from cases import PROMPT, address, expect, run

URL, ENGINE, CHAT, MODEL = address()
TEXTS = ["a red house", "blue", "the quick brown fox jumps over the lazy dog"]
litellm.suppress_debug_info = True


def ask(path, **body):
    """The engine's own answer."""
    data = json.dumps({"model": MODEL, **body}).encode()
    request = urllib.request.Request(ENGINE + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


WANT = [d["embedding"] for d in ask("/v1/embeddings", input=TEXTS)["data"]]
RANKS = ask("/v1/rerank", query="a house", documents=TEXTS)["results"]


def same(got, want):
    """Compares vectors. Batches of other sizes may be rounded in another way."""
    assert len(got) == len(want), (len(got), len(want))
    for one, other in zip(got, want):
        assert len(one) == len(other), (len(one), len(other))
        assert max(abs(x - y) for x, y in zip(one, other)) < 1e-4, (one[:4], other[:4])


client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120)


def base64_vectors():
    answer = client.embeddings.create(model=MODEL, input=TEXTS)  # in base64, which the library asks for
    same([d.embedding for d in answer.data], WANT)
    assert answer.usage.prompt_tokens > 0, answer.usage


def plain_vectors():
    same([d.embedding for d in client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float").data], WANT)


def many():
    async def one(aclient, i):
        if i % 2:
            answer = await aclient.chat.completions.create(model=CHAT, messages=PROMPT, max_tokens=8)
            assert answer.model == CHAT and answer.usage.completion_tokens > 0, answer
            return
        answer = await aclient.embeddings.create(model=MODEL, input=TEXTS)
        same([d.embedding for d in answer.data], WANT)

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=300) as aclient:
            await asyncio.gather(*(one(aclient, i) for i in range(64)))

    asyncio.run(all_of_them())


def both_listed():
    assert {CHAT, MODEL} <= {m.id for m in client.models.list()}


def unknown_model():
    error = expect(openai.NotFoundError, lambda: client.embeddings.create(model="absent", input=TEXTS))
    assert error.code == "model_not_found", error


def chain_vectors():
    # Without check_embedding_ctx_length it would send the token ids of OpenAI's vocabulary.
    settings = {"model": MODEL, "base_url": URL + "/v1", "api_key": "none", "max_retries": 0, "check_embedding_ctx_length": False}
    vectors = langchain_openai.OpenAIEmbeddings(**settings)
    same(vectors.embed_documents(TEXTS), WANT)
    same([vectors.embed_query(TEXTS[0])], WANT[:1])


def lite_vectors():
    answer = litellm.embedding(model="hosted_vllm/" + MODEL, input=TEXTS, api_base=URL + "/v1", api_key="none")
    same([d["embedding"] for d in answer.data], WANT)


def lite_rerank():
    answer = litellm.rerank(model="hosted_vllm/" + MODEL, query="a house", documents=TEXTS, api_base=URL, api_key="none")
    got = [(r["index"], r["relevance_score"]) for r in answer.results]
    assert [i for i, _ in got] == [r["index"] for r in RANKS], (got, RANKS)
    assert all(abs(score - r["relevance_score"]) < 1e-4 for (_, score), r in zip(got, RANKS)), (got, RANKS)


run(
    "openai " + openai.__version__,
    ("vectors in base64", base64_vectors),
    ("vectors as numbers", plain_vectors),
    ("32 chats and 32 vectors at once", many),
    ("both models are listed", both_listed),
    ("a model that is not there: NotFoundError", unknown_model),
)
run("langchain-openai " + version("langchain-openai"), ("embed_documents and embed_query", chain_vectors))
run("litellm " + version("litellm"), ("embedding", lite_vectors), ("rerank", lite_rerank))

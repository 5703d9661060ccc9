"""What chat templates are rendered with: contexts as apply_chat_template passes them.

FIXED is written by hand, a name for each case that a template may treat apart; random_context
makes more of the same kind. Both are plain JSON: what cannot be sent to stator as a line is not
made.
"""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather <b>&'\"é\nof a city.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "City"},
            "days": {"type": "integer", "enum": [1, 2, 3]},
            "unit": {"type": ["string", "null"], "default": None},
            "nested": {"type": "object", "properties": {
                "a": {"type": "array", "items": {"type": "number", "minimum": -1.5}},
                "b": {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": False}]}},
                "required": ["a"]}},
            "required": ["city"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
NUMBERS = [1, 1.0, 1e20, 1e16, 1e-7, 0.1, 12345678901234567890123, -0.0, True, None, "\u2028\x7f\x00é"]


def system(text="You are helpful.\n  Be nice. "):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(arguments, id="call_1234", name="get_weather"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, id="call_1234", **more):
    return {"role": "tool", "tool_call_id": id, "content": text, **more}


def text(s):
    return {"type": "text", "text": s}


def context(messages, **more):
    return {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "pad_token": "<pad>", **more}


CALL = assistant("", tool_calls=[call({"city": "Rome", "days": 2, "x": 1.5, "b": True, "n": None, "l": [1, "a", {}]})])
USED = [system(), user("weather?"), CALL, result('{"t": 20}', name="get_weather"), assistant("It is 20."), user("thanks")]

FIXED = {
    "one message": context([user("Hi")]),
    "no generation prompt": context([user("Hi")], add_generation_prompt=False),
    "system": context([system(), user("Hi")]),
    "several turns": context([system(), user("a"), assistant("b"), user("c"), assistant("d"), user("e")]),
    "unicode": context([user("héllo 你好 👋\n\ttab 'q' \"dq\" <|im_start|> \u00a0\u2003x")]),
    "empty text": context([user("")]),
    "spaces around": context([system("\n sys \n"), user("  pad  \n"), assistant("\t x \n"), user(" y")]),
    "thinking in the text": context([user("q"), assistant("<think>\nwhy\n</think>\n\nbecause"), user("r")]),
    "thinking in a member": context([user("q"), assistant("because", reasoning_content="why"), user("r"), assistant("x <think>y</think>z")]),
    "reasoning": context([user("q"), assistant("because", reasoning="why", thinking="hm"), user("r")]),
    "thinking off": context([user("q")], enable_thinking=False, thinking=False),
    "thinking on": context([user("q")], enable_thinking=True, thinking=True),
    "tools": context([system(), user("w")], tools=TOOLS),
    "tools, no system": context([user("w")], tools=TOOLS),
    "tool call": context(USED, tools=TOOLS),
    "tool call, content none": context([dict(m, content=None) if m.get("tool_calls") else m for m in USED], tools=TOOLS),
    "tool call, no content": context([user("x"), {"role": "assistant", "tool_calls": [call({"city": "A"})]}, result("1")], tools=TOOLS),
    "two tool calls": context([user("x"), assistant("let me", tool_calls=[call({"city": "A"}, "call_0001"), call({"city": "B"}, "call_0002")]),
                               result("1", "call_0001"), result("2", "call_0002")], tools=TOOLS),
    "nine letter ids": context([user("x"), assistant("", tool_calls=[call({"city": "A"}, "abcdefghi")]), result("1", "abcdefghi"), user("y")], tools=TOOLS),
    "arguments as text": context([user("x"), assistant(None, tool_calls=[call('{"city": "A"}')]), result("1")], tools=TOOLS),
    "tool call without tools": context([user("x"), assistant("", tool_calls=[call({"city": "A"})]), result("1")]),
    "tool call last": context([user("x"), CALL], tools=TOOLS),
    "no arguments": context([user("x"), assistant("", tool_calls=[call({}, name="now")]), result("noon")], tools=TOOLS),
    "tool calls empty": context([user("x"), assistant("y", tool_calls=[]), user("z")], tools=TOOLS),
    "result as parts": context([user("a"), assistant("", tool_calls=[call({"city": "A"})]), result([text("r1"), text("r2")])], tools=TOOLS),
    "result as an object": context([user("a"), CALL, result({"output": "x", "n": [1, 2.5]})], tools=TOOLS),
    "ipython": context([user("a"), assistant("", tool_calls=[call({})]), {"role": "ipython", "content": {"output": "x"}}], tools=TOOLS),
    "parts": context([user([text("Hello "), text("world")])]),
    "system as parts": context([{"role": "system", "content": [text("sysp")]}, user("a")]),
    "image": context([user([{"type": "image"}, text("what?")])]),
    "image_url": context([system(), user([{"type": "image_url", "image_url": {"url": "x"}}, text("what?")])]),
    "developer": context([{"role": "developer", "content": "dev"}, user("x")]),
    "reasoning effort": context([user("x")], reasoning_effort="high"),
    "unknown role": context([{"role": "alien", "content": "x"}]),
    "two users": context([user("a"), user("b")]),
    "assistant first": context([assistant("a"), user("b")]),
    "assistant last": context([user("a"), assistant("partial")], add_generation_prompt=False),
    "assistant last, generation prompt": context([user("a"), assistant("partial")]),
    "content missing": context([{"role": "user"}]),
    "content none": context([user(None)]),
    "content a number": context([user(5)]),
    "role missing": context([{"content": "x"}]),
    "system in the middle": context([user("a"), system(), user("b")]),
    "documents": context([user("a")], documents=[{"title": "T", "text": "body", "doc_id": 1}]),
    "date given": context([system(), user("a")], date_string="01 Jan 2025", tools_in_user_message=False, tools=TOOLS),
    "tools empty": context([user("a")], tools=[]),
    "variables none": context([user("a")], tools=None, documents=None, enable_thinking=None, date_string=None),
    "numbers": context([user("a")], tools=[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "array", "enum": NUMBERS}}}}}]),
    "odd tools": context([user("a")], tools=[{"name": "bare", "parameters": {}}, {"type": "function", "function": {"name": "g"}}]),
    "system alone": context([system()]),
    "no messages": context([]),
    "tokens unset": {"messages": [user("x")], "add_generation_prompt": True},
    "long": context([system()] + [m for i in range(20) for m in (user(f"question {i}\n" * 9), assistant(f"answer {i} " * 9))] + [user("?")]),
}

WORDS = ["", " ", "\n", "Hi", "a b", "  lead", "trail  ", "<|im_end|>", "</s>", "[INST]", "<think>", "</think>", "{{ x }}", "{% if %}", "é", "e\u0301", "ß", "İ",
         "你好", "👩‍👩‍👧", "\u2028", "\x00", "'", '"', "\\", "\\n", "%s", "{}", "&<>", "1", "true", "None", "\r\n", "\ufeff", "🤖\t"]


def random_text(r):
    return "".join(r.choice(WORDS) for _ in range(r.randrange(6)))


def random_value(r, depth=3):
    kind = r.randrange(8 if depth else 6)
    if kind == 6:
        return [random_value(r, depth - 1) for _ in range(r.randrange(4))]
    if kind == 7:
        return {random_text(r): random_value(r, depth - 1) for _ in range(r.randrange(4))}
    return [random_text(r), r.randrange(-9, 10**r.randrange(1, 25)), r.choice(NUMBERS), r.random() * 10**r.randrange(-9, 20), r.random() < 0.5, None][kind]


def random_schema(r, depth=3):
    kind = r.choice(["string", "integer", "number", "boolean", "null", "array", "object"][: 7 if depth else 5])
    schema = {"type": kind if r.random() < 0.9 else [kind, "null"]}
    if r.random() < 0.5:
        schema["description"] = random_text(r)
    if r.random() < 0.2:
        schema[r.choice(["enum", "default", "examples", "minimum"])] = random_value(r, 1)
    if kind == "array":
        schema["items"] = random_schema(r, depth - 1)
    if kind == "object":
        names = [f"p{i}" for i in range(r.randrange(4))]
        schema["properties"] = {n: random_schema(r, depth - 1) for n in names}
        if r.random() < 0.6:
            schema["required"] = [n for n in names if r.random() < 0.5]
    return schema


def random_tool(r):
    function = {"name": r.choice(["f", "get_weather", "a.b", "näme"]), "description": random_text(r), "parameters": {"type": "object", "properties": {f"p{i}": random_schema(r) for i in range(r.randrange(4))}}}
    if r.random() < 0.15:
        del function[r.choice(["name", "description", "parameters"])]
    return {"type": "function", "function": function} if r.random() < 0.9 else function


def random_message(r, i):
    role = ["user", "assistant"][i % 2] if r.random() < 0.7 else r.choice(["system", "user", "assistant", "tool", "developer"])
    content = random_text(r)
    if r.random() < 0.15:
        content = [text(random_text(r)) for _ in range(r.randrange(3))] + [{"type": "image"}] * r.randrange(2)
    m = {"role": role, "content": content}
    if role == "assistant":
        if r.random() < 0.3:
            m["tool_calls"] = [call({f"p{k}": random_value(r) for k in range(r.randrange(3))}, r.choice(["abcdefghi", "call_1", "", None])) for _ in range(r.randrange(3))]
            m["content"] = r.choice([None, "", content])
        if r.random() < 0.3:
            m[r.choice(["reasoning_content", "reasoning", "thinking"])] = random_text(r)
    if role == "tool":
        m["tool_call_id"] = r.choice(["abcdefghi", "call_1"])
        if r.random() < 0.5:
            m["name"] = "get_weather"
    if r.random() < 0.05:
        m.pop(r.choice(list(m)))
    return m


EXTRA = ["enable_thinking", "thinking", "date_string", "tools_in_user_message", "custom_tools", "builtin_tools", "reasoning_effort", "documents", "system_message", "keep_past_thinking"]


def random_context(r):
    first = [system(random_text(r))] if r.random() < 0.5 else []
    c = context(first + [random_message(r, i) for i in range(r.randrange(7))], add_generation_prompt=r.random() < 0.8)
    if r.random() < 0.5:
        c["tools"] = [random_tool(r) for _ in range(r.randrange(4))]
    for name in r.sample(EXTRA, r.randrange(3)):
        c[name] = random_value(r, 2)
    return c

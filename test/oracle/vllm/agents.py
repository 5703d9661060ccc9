"""Requests of Anthropic's Messages API and of OpenAI's Responses API at random, of the kinds that agents send."""

import json

from conversations import NAMES, Requests


class Agents(Requests):
    def request(self, api):
        q = self.messages_request() if api == "messages" else self.responses_request()
        if self.often(0.1):
            self.add_image(q, api)
        return self.shuffled(q)

    def add_image(self, q, api):
        """Adds an image to a list of parts of the user or of a tool, if there is one. The models of the oracle have text alone."""
        url = self.random.choice(["data:image/png;base64,iVBORw0KGgo=", "https://example.com/a.png"])
        if api == "messages":
            source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="} if url.startswith("data") else {"type": "url", "url": url}
            image = {"type": "image", "source": source}
            lists = [m["content"] for m in q["messages"] if m["role"] == "user" and isinstance(m["content"], list)]
            lists += [b["content"] for found in lists for b in found if isinstance(b.get("content"), list)]
        else:
            image = {"type": "input_image", "image_url": url}
            if self.often(0.5):
                image["detail"] = self.random.choice(["auto", "low", "high"])
            items = q["input"] if isinstance(q.get("input"), list) else []
            lists = [i[k] for i in items for k in ("content", "output") if i.get("role", "user") == "user" and isinstance(i.get(k), list)]
        if lists:
            chosen = self.random.choice(lists)
            chosen.insert(self.random.randrange(len(chosen) + 1), self.shuffled(image))

    def few(self, most):
        return range(self.random.choice([0, 1, 1, 1, 2, most]))

    def ids(self):
        return self.random.choice(["toolu_1", "call_2", "x", "ünal"])

    # Messages

    def block(self):
        b = {"type": "text", "text": self.text()}
        if self.often(0.2):
            b["cache_control"] = {"type": "ephemeral"}
        return self.shuffled(b)

    def blocks(self):
        return self.text() if self.often(0.3) else [self.block() for _ in self.few(3)]

    def tool_result(self, used):
        b = {"type": "tool_result", "tool_use_id": used}
        kind = self.random.random()
        if kind < 0.4:
            b["content"] = self.text()
        elif kind < 0.9:
            b["content"] = [self.block() for _ in self.few(3)]
        if self.often(0.1):
            b["content"] = [*(b.get("content") if isinstance(b.get("content"), list) else []),
                            self.random.choice([{"type": "tool_reference", "tool_name": "f"}, {"type": "tool_reference", "name": "g"}, {"type": "document"}])]
        if self.often(0.2):
            b["is_error"] = self.often(0.5)
        return self.shuffled(b)

    def assistant_blocks(self):
        r = self.random
        out = []
        if self.often(0.4):
            out.append({"type": "thinking", "thinking": self.text(), "signature": "s"})
        if self.often(0.1):
            out.append({"type": "redacted_thinking", "data": "AAAA"})
        out += [self.block() for _ in self.few(2)]
        used = [self.ids() for _ in range(r.choice([0, 0, 1, 1, 2]))]
        for i in used:
            b = {"type": "tool_use", "id": i, "name": r.choice(NAMES)}
            if self.often(0.9):
                b["input"] = r.choice([self.object(3), self.object(1), {}, None])
            out.append(self.shuffled(b))
        if self.often(0.1):
            r.shuffle(out)
        return out, used

    def messages_list(self):
        r = self.random
        out = []
        for _ in range(r.choice([1, 1, 2, 3, 5, 8])):
            out.append(self.shuffled({"role": "user", "content": self.blocks()}))
            if self.often(0.15):
                out.append({"role": "system", "content": self.blocks()})
            if self.often(0.7):
                content, used = self.assistant_blocks()
                out.append(self.shuffled({"role": "assistant", "content": self.text() if self.often(0.2) else content}))
                if used and isinstance(out[-1]["content"], list):
                    results = [self.tool_result(i) for i in used] + [self.block() for _ in self.few(2)]
                    if self.often(0.1):
                        r.shuffle(results)
                    out.append({"role": "user", "content": results})
        if out[-1]["role"] == "assistant" and self.often(0.7):
            out.append({"role": "user", "content": self.text() + "."})
        return out

    def messages_request(self):
        r = self.random
        q = {"model": "m", "max_tokens": r.choice([1, 100, 4000]), "messages": self.messages_list()}
        if self.often(0.7):
            q["system"] = self.text() if self.often(0.4) else [self.block() for _ in self.few(3)]
            if self.often(0.15) and isinstance(q["system"], list):
                q["system"].insert(0, {"type": "text", "text": "x-anthropic-billing-header: cch=1;\nmore"})
        if self.often(0.5):
            q["tools"] = [self.anthropic_tool(name) for name in r.sample(NAMES, r.randrange(0, 4))]
            if self.often(0.3) and q["tools"]:
                q["tool_choice"] = r.choice([{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": q["tools"][0]["name"]}])
        if self.often(0.3):
            q["thinking"] = r.choice([{"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}])
            if q["thinking"]["type"] == "enabled":
                q["max_tokens"] = 4000
        if self.often(0.2):
            q["output_config"] = r.choice([{"effort": r.choice(["low", "medium", "high", "xhigh", "max"])}, {"effort": None},
                                           {"format": {"type": "json_schema", "schema": {"type": "object"}}}])
        if self.often(0.2):
            q["chat_template_kwargs"] = {k: v for k, v in (("enable_thinking", self.often(0.5)), ("custom", self.value(2)), ("reasoning_effort", "x"),
                                                         ("add_generation_prompt", False)) if self.often(0.3)}
        for name, value in (("metadata", {"user_id": "u"}), ("temperature", 0.5), ("top_k", 3), ("stream", True), ("stop_sequences", ["x"]),
                            ("context_management", {"edits": []}), ("cache_salt", "s"), ("add_generation_prompt", False)):
            if self.often(0.1):
                q[name] = value
        return q

    def anthropic_tool(self, name):
        t = {"name": name, "input_schema": self.object(3)}
        if self.often(0.7):
            t["description"] = self.text()
        if self.often(0.2):
            t[self.random.choice(["strict", "defer_loading"])] = self.random.choice([None, True, False])
        if self.often(0.2):
            t["cache_control"] = {"type": "ephemeral"}
        if self.often(0.1):
            t["type"] = "custom"
        return self.shuffled(t)

    # Responses

    def input_parts(self):
        return [self.shuffled({"type": "input_text", "text": self.text()}) for _ in self.few(3)]

    def input_message(self, role):
        m = {"role": role, "content": self.text() if self.often(0.4) else self.input_parts()}
        if self.often(0.5):
            m["type"] = "message"
        if self.often(0.1):
            m["status"] = "completed"
        if self.often(0.1):
            m["id"] = "msg_1"
        return self.shuffled(m)

    def output_message(self):
        if self.often(0.2):
            return self.shuffled({"role": "assistant", "content": self.text(), **({"type": "message"} if self.often(0.5) else {})})
        part = {"type": "output_text", "text": self.text()}
        if self.often(0.3):
            part["annotations"] = []
        if self.often(0.2):
            part["logprobs"] = self.random.choice([[], None])
        m = {"type": "message", "role": "assistant", "content": [self.shuffled(part) for _ in range(self.random.choice([1, 1, 1, 2]))]}
        if self.often(0.3):
            m["status"] = "completed"
        if self.often(0.3):
            m["id"] = "msg_2"
        if self.often(0.1):
            m["phase"] = "final_answer"
        return self.shuffled(m)

    def reasoning_item(self):
        i = {"type": "reasoning", "summary": [{"type": "summary_text", "text": self.text()} for _ in self.few(2)]}
        kind = self.random.random()
        if kind < 0.6:
            i["content"] = [{"type": "reasoning_text", "text": self.text()} for _ in self.few(2)]
        elif kind < 0.7:
            i["content"] = None
        if self.often(0.3):
            i["id"] = "rs_1"
        if self.often(0.3):
            i["encrypted_content"] = self.random.choice([None, ""])
        if self.often(0.2):
            i["status"] = self.random.choice([None, "completed"])
        return self.shuffled(i)

    def call_items(self):
        r = self.random
        call = self.ids()
        if self.often(0.15):
            asked = {"type": "custom_tool_call", "call_id": call, "name": r.choice(NAMES), "input": self.text()}
            return [self.shuffled(asked)], [self.shuffled({"type": "custom_tool_call_output", "call_id": call, "output": self.text()})]
        arguments = json.dumps(self.object(2), ensure_ascii=self.often(0.5))
        if self.often(0.15):
            arguments = r.choice(["", "{}", "[]", "null", "42", "{\"a\": ", "not json", "{\"a\":1,\"a\":2}", "{\"x\": NaN}"])
        asked = {"type": "function_call", "call_id": call, "name": r.choice(NAMES), "arguments": arguments}
        if self.often(0.3):
            asked["id"] = r.choice(["fc_1", None])
        if self.often(0.2):
            asked["status"] = r.choice(["completed", None])
        if self.often(0.1):
            asked["namespace"] = r.choice(["ns", "", None])
        answer = {"type": "function_call_output", "call_id": call, "output": self.text() if self.often(0.7) else self.input_parts()}
        if self.often(0.2) and isinstance(answer["output"], str):
            answer["id"] = "fco_1"
        if self.often(0.2):
            answer["status"] = "completed"
        return [self.shuffled(asked)], [self.shuffled(answer)]

    def items(self):
        r = self.random
        out = []
        for _ in range(r.choice([1, 1, 2, 3, 5, 8])):
            if self.often(0.1):
                out.append(self.input_message(r.choice(["developer", "system"])))
            out.append(self.input_message("user"))
            if self.often(0.7):
                turn = []
                if self.often(0.5):
                    turn.append(self.reasoning_item())
                if self.often(0.7):
                    turn.append(self.output_message())
                asked, answered = [], []
                for _ in range(r.choice([0, 0, 1, 1, 2])):
                    a, b = self.call_items()
                    asked += a
                    answered += b
                turn += asked
                if self.often(0.1):
                    r.shuffle(turn)
                out += turn + answered
                if self.often(0.4):
                    out.append(self.output_message())
        if self.often(0.1):
            last = self.output_message()
            if isinstance(last["content"], list):
                last["status"] = r.choice(["incomplete", "in_progress"])
            out.append(last)
        return out

    def response_tool(self, name):
        r = self.random
        kind = r.random()
        if kind < 0.06:
            return {"type": r.choice(["web_search", "web_search_preview"])}
        if kind < 0.12:
            return self.shuffled({"type": "custom", "name": name, **({"description": self.text()} if self.often(0.5) else {})})
        if kind < 0.18:
            inner = [self.function_tool(n) for n in ("one", "two")]
            return self.shuffled({"type": "namespace", "name": "ns", "description": "d", "tools": inner})
        return self.function_tool(name)

    def function_tool(self, name):
        t = {"type": "function", "name": name, "parameters": self.random.choice([self.object(3), self.object(3), None]), "strict": self.random.choice([None, True, False])}
        if self.often(0.7):
            t["description"] = self.text()
        if self.often(0.1):
            t["defer_loading"] = self.random.choice([None, True, False])
        if self.often(0.1):
            t["extra"] = 1
        if self.often(0.2):
            del t["strict"]
        return self.shuffled(t)

    def responses_request(self):
        r = self.random
        q = {"model": "m", "input": self.text() + "." if self.often(0.15) else self.items()}
        if self.often(0.6):
            q["instructions"] = r.choice([self.text(), None])
        if self.often(0.5):
            q["tools"] = [self.response_tool(name) for name in r.sample(NAMES, r.randrange(0, 4))]
            if self.often(0.2):
                q["tool_choice"] = r.choice(["auto", "none"])
        if self.often(0.3):
            q["reasoning"] = r.choice([{"effort": r.choice(["none", "minimal", "low", "medium", "high", "xhigh"])}, {"effort": None}, {"summary": "auto"}, None])
        if self.often(0.2):
            q["chat_template_kwargs"] = {k: v for k, v in (("enable_thinking", self.often(0.5)), ("custom", self.value(2)), ("reasoning_effort", "x"),
                                                         ("add_generation_prompt", False)) if self.often(0.3)}
        if self.often(0.2):
            q["max_output_tokens"] = r.choice([1, 100, 4000, None])
        if self.often(0.1):
            q["truncation"] = r.choice(["auto", "disabled", None])
        for name, value in (("metadata", {"a": "b"}), ("temperature", 0.5), ("store", False), ("stream", True), ("include", ["reasoning.encrypted_content"]),
                            ("prompt_cache_key", "k"), ("parallel_tool_calls", False), ("text", {"verbosity": "low"}), ("cache_salt", "s"), ("user", "u")):
            if self.often(0.1):
                q[name] = value
        return q

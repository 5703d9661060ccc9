"""SGLang's own conversion of chats, imported without its engine: the modules that convert are real, and all others of SGLang are empty."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import sysconfig
import types

REAL = {f"sglang.srt.{name}" for name in (
    "entrypoints.openai.protocol", "entrypoints.openai.serving_base", "entrypoints.openai.serving_chat", "entrypoints.openai.utils",
    "parser.jinja_template_utils")}
EMPTY = {"sglang", "torch", "triton", "openai_harmony"}  # of these packages every other module is empty
HOME = pathlib.Path(sysconfig.get_path("purelib"))


class Empty(types.ModuleType):
    """A module whose names are classes and functions that do nothing."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[0].isupper() else lambda *args, **kwargs: None
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in REAL:
            return importlib.util.spec_from_file_location(name, HOME / (name.replace(".", "/") + ".py"))
        if name.partition(".")[0] in EMPTY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def chat(tokenizer):
    """Returns a function from a request's body to the text and the ids that SGLang makes of it, started with no parser and no options."""
    if not any(isinstance(f, Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    serving_chat = importlib.import_module("sglang.srt.entrypoints.openai.serving_chat")
    protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
    formats = importlib.import_module("sglang.srt.parser.jinja_template_utils")
    texts = []

    def encode(tokenizer, text, kwargs):
        texts.append(text)
        return tokenizer.encode(text, **kwargs)

    serving_chat.parallel_prompt_encode = encode
    server = object.__new__(serving_chat.OpenAIServingChat)
    vars(server).update(
        tokenizer_manager=types.SimpleNamespace(tokenizer=tokenizer, served_model_name="m"),
        template_manager=types.SimpleNamespace(
            chat_template_name=None, python_chat_template=None, reasoning_config=None,
            jinja_template_content_format=formats.detect_jinja_template_content_format(tokenizer.chat_template),
            jinja_template_may_reorder_tool_results=formats.jinja_template_may_reorder_tool_results(tokenizer.chat_template)),
        default_chat_template_kwargs={}, reasoning_parser=None, tool_call_parser=None, chat_encoding_spec=None, _encoding_adapter=None,
        _reasoning_detector=None, is_minimax_m3=False, is_gpt_oss=False, is_gemma4=False,
        _prompt_text_round_trip_is_lossy=False, _tokenizer_auto_adds_specials=len(tokenizer.encode("")) > 0)
    server._encode_messages = lambda *args, **kwargs: None  # no encoder in place of the template
    server._thinking_requested = lambda request: False  # names an encoder's mode
    server._takes_turn_grammar = lambda *args, **kwargs: False
    server._requires_response_template_detokenization = lambda *args: False

    def render(body):
        texts.clear()
        result = server._process_messages(protocol.ChatCompletionRequest(**body), False)
        return texts[-1], list(result.prompt_ids)

    return render

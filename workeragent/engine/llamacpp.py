# Serves one GGUF file by llama.cpp's HTTP server until its parent ends it.
import json, os, signal, sys, threading

try:
    from xllamacpp import CommonParams, Server
except ImportError:
    sys.exit("the Python environment has no xllamacpp: run `make run-llama`, which installs it")

s = json.loads(sys.argv[1])
p = CommonParams()
p.model.path = s["model"]
p.model_alias = {s["alias"]}
p.hostnames = [s["host"]]
p.port = s["port"]
p.n_ctx = s["ctx"]
p.n_parallel = s["slots"]
p.endpoint_metrics = True
p.endpoint_slots = True
p.verbosity = 1
if s["threads"]:
    p.cpuparams.n_threads = s["threads"]
    p.cpuparams_batch.n_threads = s["threads"]
server = Server(p)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
threading.Event().wait()

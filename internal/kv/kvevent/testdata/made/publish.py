"""Publishes with Dynamo's own runtime and prints what its event plane sends, one JSON object
per message; then one with what its radix tree dumps.

    python -m venv v && v/bin/pip install ai-dynamo-runtime==1.6.1 pyzmq uvloop
    v/bin/python publish.py > dynamo-frames.jsonl
"""
import asyncio, base64, glob, json, os, re, tempfile

FOLDER = tempfile.mkdtemp()
os.environ.update(DYN_FILE_KV=FOLDER, DYN_LOG="off", DYN_TCP_RPC_HOST="127.0.0.1", DYN_TCP_RESPONSE_STREAM_HOST="127.0.0.1",
                  DYN_EVENT_PLANE_HOST="127.0.0.1", HOME=FOLDER)
import dynamo._core as dynamo
import zmq


async def frames():
    runtime = dynamo.DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    publisher = dynamo.KvEventPublisher(runtime.endpoint("ns.comp.generate"), worker_id=7, kv_block_size=4, dp_rank=1)
    found = None
    while not found:
        await asyncio.sleep(0.2)
        said = b"".join(open(f, "rb").read() for f in glob.glob(FOLDER + "/**/*", recursive=True) if os.path.isfile(f))
        found = re.search(rb"tcp://[0-9.]+:(\d+)", said)
    sub = zmq.Context().socket(zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    sub.connect("tcp://127.0.0.1:%s" % found[1].decode())
    await asyncio.sleep(1)
    publisher.publish_stored(list(range(8)), [4, 4], [-5, 12345678901234])
    publisher.publish_stored([9, 9, 9, 9], [4], [77], 12345678901234,
                             [{"mm_objects": [{"mm_hash": 0xFEDCBA9876543210, "offsets": [[0, 4]]}]}])
    publisher.publish_stored([1, 2, 3, 4], [4], [88], None, None, "adapter", None, "tenant")
    publisher.publish_removed([77])
    await asyncio.sleep(1)
    while sub.poll(0):
        f = sub.recv_multipart()
        print(json.dumps({"frames": len(f), "seq": int.from_bytes(f[2], "big"), "payload_b64": base64.b64encode(f[3]).decode()}))


def dump():
    tree = dynamo.RadixTree()
    blocks = [{"block_hash": h, "tokens_hash": t} for h, t in ((2**64 - 5, 101), (6, 102), (7, 103))]
    for worker in (1, 2):
        data = {"stored": {"parent_hash": None, "blocks": blocks[: worker + 1]}}
        tree.apply_event(worker, json.dumps({"event_id": 0, "data": data}).encode())
    events = tree.dump_tree_as_events()
    print(json.dumps({"frames": 0, "seq": 0, "payload_b64": base64.b64encode("\n".join(events).encode()).decode(), "text": events}))


asyncio.run(frames())
dump()

"""The offloading spec HostTier, by which vLLM's OffloadingConnector runs on processors, with its tiers and its transfers.

vLLM's own specs copy blocks between a graphics card and the host, and refuse other devices. This one has TieringOffloadingSpec
copy them within the host, at once. It supports chunks of one block.

--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
  "spec_name": "HostTier", "spec_module_path": "hosttier", "cpu_bytes_to_use": 16777216, "secondary_tiers": [...]}}'
"""

import time

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostCopies(OffloadingWorker):
    """Copies blocks between the engine's cache and the region that all tiers share."""

    def __init__(self, caches, region):
        self.region = region
        self.results = []
        self.pairs = []  # for each tensor of the cache its rows by block, and those of the region
        for cache in caches.tensors:
            rows = cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
            self.pairs.append((rows, region.create_next_worker_view(cache.page_size_bytes)))

    def copy(self, job, pairs, sources, targets):
        begun = time.monotonic()
        at = torch.as_tensor(sources, dtype=torch.long)
        to = torch.as_tensor(targets, dtype=torch.long)
        size = 0
        for source, target in pairs:
            target[to] = source[at]
            size += len(at) * source.shape[1]
        took = max(time.monotonic() - begun, 1e-6)
        self.results.append(TransferResult(job_id=job, success=True, transfer_size=size, transfer_time=took))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, self.pairs, src_spec.block_ids, dst_spec.block_ids)

    def submit_load(self, job_id, src_spec, dst_spec):
        swapped = [(host, rows) for rows, host in self.pairs]
        return self.copy(job_id, swapped, src_spec.block_ids, dst_spec.block_ids)

    def get_finished(self):
        results = self.results
        self.results = []
        return results

    def wait(self, job_ids):
        """All copies are done when they are submitted."""

    def shutdown(self):
        self.pairs = []
        self.region.cleanup()


class HostTier(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if self.blocks_per_chunk != 1:
            raise ValueError(f"chunks have {self.blocks_per_chunk} blocks: HostTier supports one, so leave block_size out")
        if self._worker is None:
            self._worker = HostCopies(kv_caches, SharedOffloadRegion(
                engine_id=self._engine_id, num_chunks=self.num_chunks, rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker))
        return self._worker

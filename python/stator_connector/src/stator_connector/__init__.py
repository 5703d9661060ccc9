"""vLLM's KV connector to the store of KV blocks of a Stator worker agent.

The class for --kv-transfer-config is stator_connector.connector.StatorConnector. The other modules need neither vLLM nor torch.
"""

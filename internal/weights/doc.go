// Package weights copies the files of a model from node to node, so that a new engine need not wait for a slow source.
//
// # Manifests
//
// A [Manifest] names the files of a model, and has the SHA-256 of each chunk of [ChunkBytes]. Its identity is the SHA-256 of its
// encoding, so two nodes with equal files have equal manifests, whatever their folders are called. A receiver asks for a manifest by its
// identity, compares each chunk with its sum before it writes it, and so needs to trust the identity alone.
//
// A [Folder] has the files of one manifest, or a part of them. While it is incomplete, its name ends with ".partial". A receiver that is
// killed reads the files on its disk when it is started again, and fetches the rest.
//
// # Who sends to whom
//
// A [Share] serves folders to other nodes, also the chunks of folders that are still incomplete. It sends to a bounded number of receivers
// at a time, by default to one, and refuses others. So receivers that come together form a chain: the first one fetches from the node that
// has the files, the second one from the first one, and so on. Chunks are fetched in order, so the last node of a chain is late by one
// chunk for each node before it, and each link carries the files once.
//
//	node with the files ──chunk 7──▸ receiver 1 ──chunk 6──▸ receiver 2 ──chunk 5──▸ receiver 3
//
// A [Receiver] that loses its sender asks all peers again. It never fetches from a node whose chunks come from it: each answer names
// the nodes on its way. Two nodes that choose each other in the same moment learn it from the next answer, and both choose again.
//
// # Failures
//
//	a sender ends, or breaks off        another one is asked for the missing chunks
//	a sender stands still               the same, when the wait for a chunk is over
//	a sender sends other bytes          they are not written, and the sender is not asked again
//	a receiver ends                     its place at the sender is free a second later
//	a receiver is started again         it reads its files, and fetches the chunks that are missing or damaged
//	a machine loses power               the same: a folder gets its name when all files are on the disk
//	all nodes with all files end        receivers wait for one of them, at most for their patience
//	nodes have different files          an error that names both, unless the receiver knows the identity that it wants
//
// # HTTP
//
//	GET /weights?model=NAME         a Status: the manifest's identity, how many chunks there are, and their way
//	GET /weights/ID                 the manifest
//	GET /weights/ID/CHUNK?node=ME   the bytes of a chunk; 503 if too many nodes fetch, or if it has not come within a time
//	GET /readyz                     200 if all files are there
//
// Certificates of both sides protect these requests where the network does not. Everything that a peer sends is bounded and checked.
//
// # Concurrency
//
// A Manifest does not change. Folders and shares may be used by several goroutines; a Receiver runs once.
package weights

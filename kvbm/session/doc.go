// Package session lets engines use a store of KV blocks: over a Unix socket, with the blocks themselves in shared memory.
//
// # Frames
//
// Both sides send frames: the length of the rest in 4 bytes, a kind in 1 byte, a number in 4 bytes, and a body. Numbers are
// little-endian. Requests have numbers that their sender chooses, and answers repeat them. A key has 16 bytes, see package block.
//
//	kind          body of the request                                  body of the answer
//	1 hello       JSON: version, engine, layout, speed                 JSON: version, slots, slotBytes; with the arena's descriptor
//	2 find        4 tokens before the keys, 4 count, keys              4 blocks, 4 worth loading, 8 microseconds to load these
//	3 fetch       4 count, keys                                        4 lease, 4 count, 4 for each slot
//	4 release     4 lease, 8 microseconds that the copy took, or 0     no answer
//	5 reserve     4 count                                              4 count, 4 for each slot; none if there is no room
//	6 commit      1 priority, 4 count, 4 slot and 16 key for each      empty
//	7 drop        4 count, 4 for each slot                             no answer
//	8 pin         4 seconds, 4 count, keys                             no answer
//	64 changed    -                                                    from the server: 1 tier, 1 stored, 4 count, keys
//	127 failed    -                                                    text: the error in the request
//
// The first frame is hello. The descriptor comes with the first byte of its answer, by SCM_RIGHTS, and is opened as package host
// describes. Layouts that differ are refused by the field in which they do.
//
// The speed is optional: nanoseconds that the engine computes for a token, and for each pair of a token and one before it. By it the store
// decides which blocks are worth loading. Without it all are.
//
// A pin keeps the first blocks of a prompt for so many seconds, an hour at most, as [kvbm.Store.PinShare] describes. A store of an earlier
// release ends the session of an engine that pins, because it does not know the kind.
//
// Changes are of blocks that this session has named before, of each as long as it is in the store.
//
// # The end of a session
//
// Leases end with their session. Slots that it had reserved stay in quarantine until its process has ended, because that may still write
// to them. So each process that writes blocks needs a session.
//
// # Bounds
//
// A session has at most so many frames, leases, reserved slots and fetches at once as Config has. A client that breaks a rule gets the
// answer failed, and its session ends. Only processes of the same user, and of root, are served.
package session

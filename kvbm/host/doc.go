// Package host is the memory of the host tier of KV blocks: an arena of equal slots that other processes on the node can map.
//
// The arena is one anonymous file in memory (memfd). Its owner passes the file to other processes by SCM_RIGHTS, and they open the same
// arena from it. The file is sealed: its size can never change, so no process can make the memory of another one fault. A pool and the
// owner keep track of which slot has which block; the package has bytes and no states.
//
//	step       owner                                           other process
//	New        makes, sizes, seals and maps the file           -
//	           a goroutine touches all pages: ReadyBytes       -
//	File       passes the descriptor                           receives it
//	Open       -                                               checks seals and size, then maps
//	Slot       reads and writes                                reads and writes
//	Close      waits for the goroutine, unmaps, closes         unmaps, closes
//
// The memory is freed when the last process has closed its arena. Each process unmaps only its own mapping: slices that Slot
// returned must not be used after the Close of the arena that returned them. An owner that hands them to others, such as goroutines or
// transfers, waits for those before Close.
//
// Huge pages of 2 MiB are used if the node has reserved enough of them (vm.nr_hugepages, or hugepages-2Mi in Kubernetes). They are
// faulted in ten times faster and spare the TLB. Otherwise the arena has ordinary pages, and HugePages returns false.
//
// An [Arena] may be used by many goroutines, but Close only once nothing uses it.
package host
